"""A folder for `datasets.load_from_disk`: what `DatasetDict.save_to_disk` writes of the rows.

    dataset_dict.json                   {"splits": ["train", "validation"]}
    <part>/dataset_info.json            the features: the columns and their types
    <part>/state.json                   the shards in order, the split and a fingerprint
    <part>/data-<i>-of-<n>.arrow        Arrow's IPC stream format, without footer; `datasets`
                                        maps it and keeps no copy in memory
    input_ids and the columns of the option; lists of one length unless `padding: none`
    and, where the strategy of any part is one_document, those of `documents.keep_columns`,
    strings or null
    lost        what no column tells of

TRL's SFTTrainer takes `columns: [seq_lengths]` with `padding: none` for rows packed already, and
makes position_ids of them where it trains padding-free; `labels` are used as they are.

`_fingerprint`, under which `datasets` keeps the results of `map`, is a hash of the content. A
part with a dash in its name, which `datasets` refuses for a split, has the split null.

Source: huggingface/datasets at 5.2.0: arrow_dataset.py lines 1780-1970 (save_to_disk) and
2000-2120 (load_from_disk), dataset_dict.py lines 1360-1433, arrow_writer.py line 641 (metadata),
naming.py line 29 (names of splits).
"""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import xxhash

from tokflow.exports.columns import (
    TYPES,
    Column,
    ColumnOptions,
    batches_of_tables,
    layout_of_columns,
    make_columns,
    schema_of,
    sequence_bytes,
    with_loss_mask,
    written_positions,
)
from tokflow.exports.format import Format, Portion
from tokflow.exports.kept import KeptOfSequences
from tokflow.exports.new_files import open_hashed
from tokflow.exports.options import PartRows
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.token_files import (
    numbered_files,
    numbered_names,
    sequences_within,
)
from tokflow.store.arrow import to_numpy
from tokflow.store.config import Listed, Size

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 1_000, 100_000_000
"""A record batch of `save_to_disk`: config.py lines 190 and 201."""

FILE_BYTES = 500_000_000
"""Default size of a file of Arrow data: config.py's MAX_SHARD_SIZE."""


class HfDatasetOptions(ColumnOptions):
    """datasets: a folder for `load_from_disk`, with dataset_dict.json and
    <part>/data-<i>-of-<n>.arrow."""

    columns: Listed[Column] = ("attention_mask", "segment_ids", "position_ids")
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 at other than loss tokens), seq_lengths (tokens of each segment)."""
    shard_size: Size | None = None
    """Most bytes of Arrow data in a file (max_shard_size); default: 500MB."""
    feature_type: Literal["List", "Sequence"] = "List"
    """Name of a list in dataset_info.json: List as `datasets` writes it since version 4;
    Sequence for readers with version 3 or older, which newer ones take too."""


def write(part: Part, options: HfDatasetOptions, folder: Path) -> None:
    """Write the folder of a part."""
    names = with_loss_mask(options.columns, is_chats=part.has_loss_mask)
    kept = KeptOfSequences(part)
    features = {name: _feature(name, options.feature_type) for name in names}
    features |= {name: {"dtype": "string", "_type": "Value"} for name in kept.names}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = schema_of(names, kept.names).with_metadata(metadata)
    size = sequence_bytes(names, part.sequence_length)
    sizes = _sizes(part.rows, options, size)
    at_once = _at_once(size)
    hasher = xxhash.xxh3_64(json.dumps([part.name, metadata]).encode())
    names_of_files, written = [], written_positions(part, options.padding)
    for path, batches in numbered_files(
        part, sizes, options, folder / part.name / "data", ".arrow", at_once=at_once
    ):
        names_of_files.append(path.name)
        with open_hashed(path) as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                table = make_columns(batch, schema, written, kept)
                writer.write_table(table)
                _hash_table(hasher, table)
    texts = {"citation": "", "description": "", "homepage": "", "license": ""}
    info = {**texts, "features": features}
    _write_json(folder / part.name / "dataset_info.json", dict(sorted(info.items())))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names_of_files],
        "_fingerprint": hasher.hexdigest(),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None if "-" in part.name else part.name,
    }
    _write_json(folder / part.name / "state.json", state)


def _sizes(rows: PartRows, options: HfDatasetOptions, row_bytes: int) -> list[int]:
    usual = sequences_within(FILE_BYTES, row_bytes)
    return options.sizes(rows.num_sequences, item_bytes=row_bytes, usual=usual)


def _at_once(sequence_bytes: int) -> int:
    return min(MAX_BATCH_ROWS, sequences_within(MAX_BATCH_BYTES, sequence_bytes))


def finish(parts: Sequence[Part], options: HfDatasetOptions, folder: Path) -> None:
    """Write the dictionary of the parts."""
    names = [part.name for part in parts]
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))


def _hash_table(hasher: xxhash.xxh3_64, table: pa.Table) -> None:
    """Hash the lists of a table: 0.1 s for a gigabyte."""
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_string(chunk.type):
                hasher.update(json.dumps(chunk.to_pylist()).encode())
                continue
            hasher.update(to_numpy(chunk.offsets).data)
            hasher.update(to_numpy(chunk.values).data)


def _feature(name: str, kind: str) -> dict[str, Any]:
    return {"feature": {"dtype": str(TYPES[name]), "_type": "Value"}, "_type": kind}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def portions(export: Export, part: str) -> list[Portion]:
    """Return the record batches of a part, memory-mapped where they are of one length."""
    options, length = export.options, export.manifest.details["sequence_length"]
    is_chats = export.has_loss_mask(part)
    size = sequence_bytes(with_loss_mask(options.columns, is_chats=is_chats), length)
    return batches_of_tables(
        export,
        numbered_names(export.manifest, f"{part}/data", ".arrow"),
        _sizes(export.rows(part), options, size),
        _batch,
        at_once=_at_once(size),
        is_mapped=True,
    )


def _batch(path: Path, number: int, keeps: Sequence[str]) -> pa.RecordBatch:
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as batches:
        return next(islice(batches, number, None))


FORMAT = Format(
    HfDatasetOptions,
    lambda options: layout_of_columns(options.columns),
    write,
    portions,
    finish=finish,
)
