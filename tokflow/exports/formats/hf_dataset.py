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

TRL's SFTTrainer takes `columns: [labels, seq_lengths]` with `padding: none` for rows packed
already: `labels` are used as they are, and of seq_lengths it makes position_ids and cumulative
lengths where it trains with `padding_free=True, packing=False, max_length=None`. A max_length would
cut input_ids and labels, and not the lengths; it is refused.

`_fingerprint`, under which `datasets` keeps the results of `map`, is a hash of the content. A
part with a dash in its name, which `datasets` refuses for a split, has the split null.

Source: huggingface/datasets at 5.2.0: arrow_dataset.py lines 1780-1970 (save_to_disk) and
2000-2120 (load_from_disk), dataset_dict.py lines 1360-1433, arrow_writer.py line 641 (metadata),
naming.py line 29 (names of splits). huggingface/trl at 1.16.0: trainer/sft_trainer.py lines 168-254
(the collator), 998-1003 and 1407-1464 (max_length).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import xxhash

from tokflow.exports import FileFacts, Part
from tokflow.exports.columns import Lists
from tokflow.exports.options import Column, ColumnOptions
from tokflow.exports.table_files import TableFiles, lists_in, schema_in_files
from tokflow.exports.token_files import entry_of, open_hashed, sequences_within
from tokflow.store.config import Listed, Size
from tokflow.store.tables import looked_into

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 1_000, 100_000_000
"""A record batch of `save_to_disk`: config.py lines 190 and 201."""

FILE_BYTES = 500_000_000
"""Default size of a file of Arrow data: config.py's MAX_SHARD_SIZE."""


class HfDatasetOptions(ColumnOptions):
    """datasets: a folder for `load_from_disk`, with dataset_dict.json and
    <part>/data-<i>-of-<n>.arrow."""

    columns: Listed[Column] = ("attention_mask", "segment_ids", "position_ids")
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 at other than loss tokens and at the first token of each segment),
    next_loss_mask (the loss mask of labels that are shifted), seq_lengths (tokens of each segment),
    seq_start_id (where each begins)."""
    shard_size: Size | None = None
    """Most bytes of Arrow data in a file (max_shard_size); default: 500MB."""
    feature_type: Literal["List", "Sequence"] = "List"
    """Name of a list in dataset_info.json: List as `datasets` writes it since version 4;
    Sequence for readers with version 3 or older, which newer ones take too."""


def write(part: Part, options: HfDatasetOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the folder of a part."""
    for path in FILES.write_each(part, options, folder):
        yield {"sha256": entry_of(path).sha256}


def finish(parts: Sequence[Part], options: HfDatasetOptions, folder: Path) -> None:
    """Write what describes each part, and the dictionary of the parts."""
    texts = {"citation": "", "description": "", "homepage": "", "license": ""}
    for part in parts:
        features, num = _features(schema_in_files(part, options), options), len(part.files)
        names = [Path(FILES.name(part.name, number, options, num)).name for number in range(num)]
        content = [part.name, _metadata(features), *(facts["sha256"] for facts in part.files)]
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in names],
            "_fingerprint": xxhash.xxh3_64_hexdigest(json.dumps(content).encode()),
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None if "-" in part.name else part.name,
        }
        info = dict(sorted({**texts, "features": features}.items()))
        for name, of in {"dataset_info.json": info, "state.json": state}.items():
            (folder / part.name / name).write_text(json.dumps(of, indent=2))
    names = [part.name for part in parts]
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))


def _features(schema: pa.Schema, options: HfDatasetOptions) -> dict[str, Any]:
    text, kind = {"dtype": "string", "_type": "Value"}, options.feature_type
    return {
        of.name: text
        if pa.types.is_string(of.type)
        else {"feature": {"dtype": str(of.type.value_type), "_type": "Value"}, "_type": kind}
        for of in schema
    }


def _metadata(features: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of the schema in each file."""
    return {"huggingface": json.dumps({"info": {"features": features}})}


@contextmanager
def _new(path: Path, schema: pa.Schema, options: HfDatasetOptions) -> Iterator[Any]:
    described = schema.with_metadata(_metadata(_features(schema, options)))
    with open_hashed(path) as file, pa.ipc.new_stream(file, described) as writer:
        yield writer


def _batch(path: Path, number: int, rows: slice, columns: Sequence[str]) -> dict[str, Lists]:
    with looked_into(path) as mapped, pa.ipc.open_stream(mapped) as batches:
        return lists_in(next(islice(batches, number, None)), columns)


FILES: TableFiles = TableFiles(
    name=lambda part, number, options, num, *_: f"{part}/data-{number:05d}-of-{num:05d}.arrow",
    new=_new,
    reader=lambda options: _batch,
    at_once=lambda rows, options: min(
        MAX_BATCH_ROWS, sequences_within(MAX_BATCH_BYTES, FILES.bytes_of_row(rows, options))
    ),
    file_bytes=FILE_BYTES,
    is_mapped=lambda options: True,
)

# Version 2: `_fingerprint` is a hash of the files.
FORMAT = replace(FILES.format(HfDatasetOptions, version=2), write=write, finish=finish)
