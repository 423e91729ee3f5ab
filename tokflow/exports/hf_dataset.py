"""A folder for `datasets.load_from_disk`: what `DatasetDict.save_to_disk` writes of the rows.

    dataset_dict.json                   {"splits": ["train", "validation"]}
    <part>/dataset_info.json            the features: the columns and their types
    <part>/state.json                   the shards in order, the split and a fingerprint
    <part>/data-<i>-of-<n>.arrow        Arrow's IPC stream format, without footer; `datasets`
                                        maps it and keeps no copy in memory
    input_ids and the columns of the option; lists of one length unless `padding: false`
    lost        what no column tells of

TRL's SFTTrainer takes `columns: [seq_lengths]` with `padding: false` for rows packed already, and
makes position_ids of them where it trains padding-free; `labels` are used as they are.

`_fingerprint`, under which `datasets` keeps the results of `map`, is a hash of the content. A
part with a dash in its name, which `datasets` refuses for a split, has the split null.

Source: huggingface/datasets at 5.2.0: arrow_dataset.py lines 1780-1970 (save_to_disk) and
2000-2120 (load_from_disk), dataset_dict.py lines 1360-1433, arrow_writer.py line 641 (metadata),
naming.py line 29 (names of splits).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import xxhash

from tokflow.exports.columns import (
    TYPES,
    check_columns,
    layout_of_columns,
    read_columns,
    schema_of,
    with_loss_mask,
)
from tokflow.exports.format import Arrays, Counts, Format
from tokflow.exports.part import Part
from tokflow.exports.row_files import file_names, named_files, rows_per_file, write_tables
from tokflow.exports.shards import rows_within
from tokflow.store.arrow import to_numpy
from tokflow.store.config import Config, Count, Listed
from tokflow.store.manifest import Manifest

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 1_000, 100_000_000
"""A record batch of `save_to_disk`: config.py lines 190 and 201."""


class HfDatasetOptions(Config):
    """Options of the hf_dataset format."""

    columns: Listed[str] = ("attention_mask", "segment_ids", "position_ids")
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 where nothing is learnt), seq_lengths (tokens of each segment)."""
    padding: bool = True
    """Whether rows are filled up to sequence_length; if not, a list ends at its last token."""
    megabytes_per_file: Count = 500
    """Arrow data per shard (max_shard_size)."""
    sequences_per_file: Count | None = None
    """Sequences per shard; given instead of `megabytes_per_file`."""
    feature_type: Literal["List", "Sequence"] = "List"
    """What dataset_info.json calls a list: List as `datasets` writes it since version 4;
    Sequence for readers with version 3 or older, which newer ones take too."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        check_columns(self.columns, padding=self.padding)


def write(parts: Sequence[Part], options: HfDatasetOptions, folder: Path) -> Counts:
    """Write a folder for each part that has a row, and the dictionary of them; nothing where no
    part has one."""
    counts: Counts = {}
    for part in parts:
        if part.num_sequences:
            (folder / part.name).mkdir()
        counts |= _write_part(part, options, folder / part.name)
    names = [part.name for part in parts if part.num_sequences]
    if names:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))
    return counts


def _write_part(part: Part, options: HfDatasetOptions, folder: Path) -> Counts:
    names = with_loss_mask(options.columns, part)
    features = {name: _feature(name, options.feature_type) for name in names}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = schema_of(names).with_metadata(metadata)
    row_bytes = sum(TYPES[name].bit_width // 8 * part.sequence_length + 4 for name in names)
    per_batch = min(MAX_BATCH_ROWS, rows_within(MAX_BATCH_BYTES, row_bytes))
    per_file = rows_per_file(options, part, where="hf_dataset", row_bytes=row_bytes)
    files = file_names(part, per_file, ".arrow", stem="data")
    hasher = xxhash.xxh3_64(json.dumps([part.name, metadata]).encode())

    @contextmanager
    def open_writer(number: int) -> Iterator[_HashedWriter]:
        with pa.ipc.new_stream(str(folder / files[number]), schema) as writer:
            yield _HashedWriter(writer, hasher)

    counts = write_tables(
        part, schema, open_writer, per_file=per_file, at_once=per_batch, padding=options.padding
    )
    if files:
        _write_json(folder / "dataset_info.json", _info(features))
        _write_json(folder / "state.json", _state(part.name, files, hasher.hexdigest()))
    return counts


@dataclass(frozen=True, slots=True)
class _HashedWriter:
    """Writes tables and hashes what is in them: 0.1 s for a gigabyte."""

    writer: pa.ipc.RecordBatchStreamWriter
    hasher: xxhash.xxh3_64

    def write_table(self, table: pa.Table) -> None:
        self.writer.write_table(table)
        for column in table.columns:
            for chunk in column.chunks:
                self.hasher.update(to_numpy(chunk.offsets).data)
                self.hasher.update(to_numpy(chunk.values).data)


def _feature(name: str, kind: str) -> dict[str, Any]:
    return {"feature": {"dtype": str(TYPES[name]), "_type": "Value"}, "_type": kind}


def _info(features: dict[str, Any]) -> dict[str, Any]:
    texts = {"citation": "", "description": "", "homepage": "", "license": ""}
    return dict(sorted({**texts, "features": features}.items()))


def _state(part: str, files: Sequence[str], fingerprint: str) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None if "-" in part else part,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, a record batch at a time, memory-mapped where rows are of
    one length; each field (rows, sequence_length)."""
    for name in named_files(manifest, f"{part}/data", ".arrow"):
        with pa.memory_map(str(folder / name)) as mapped, pa.ipc.open_stream(mapped) as batches:
            for batch in batches:
                yield read_columns(pa.Table.from_batches([batch]), manifest)


FORMAT = Format(
    description="datasets: a folder for `load_from_disk`, with dataset_dict.json and "
    "<part>/data-<i>-of-<n>.arrow",
    options=HfDatasetOptions,
    layout=lambda options: layout_of_columns(options.columns),
    write=write,
    read=read,
)
