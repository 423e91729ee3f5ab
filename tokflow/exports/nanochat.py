"""nanochat's base data: the documents as text, in parquet shards; nanochat tokenizes them itself.

    base_data/shard_<i>.parquet    column text; zstd, no dictionary, no statistics
                                   the last shard is the part `validation`, all before it `train`
    lost       every token: what is kept is the text they were made of, whole documents or, where
               the split cuts characters, the pieces

Put `base_data` where nanochat looks: $NANOCHAT_BASE_DIR/base_data_climbmix (`base_data` before
March 2026). A rank reads every n-th row group of a file, so each file, the last above all, needs
as many row groups as there are ranks: lower `documents_per_group` where `validation` is small.
Unlike nanochat's script, which leaves out what fills no shard, the shard with the rest is written.

Source: karpathy/nanochat at 92d63d4, nanochat/dataset.py (list_parquet_files,
parquets_iter_batched), nanochat/dataloader.py (_document_batches), and
dev/repackage_data_reference.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.errors import ConfigError
from tokflow.exports.format import Arrays, Counts, Format, Layout, counts_of_stream, fixed
from tokflow.exports.names import FILE_DIGITS, check_num_files, numbered
from tokflow.exports.options import check_counts, check_level
from tokflow.exports.part import Part
from tokflow.store.arrow import to_numpy
from tokflow.store.manifest import Manifest

PARTS = ("train", "validation")

FOLDER = "base_data"
"""Of its own, since nanochat takes every .parquet beside the shards for one."""

SCHEMA = pa.schema([pa.field("text", pa.string())])

MAX_TEXT_BYTES = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class NanochatOptions:
    """Options of the nanochat format."""

    characters_per_file: int = 250_000_000
    """A shard is closed once it has so many (chars_per_shard) and its last row group is full."""
    documents_per_group: int = 1_024
    """Documents of a row group (row_group_size), which is made in memory."""
    compression_level: int = 3
    """Of zstd: 1 to 22."""

    def __post_init__(self) -> None:
        check_counts(self, ("characters_per_file", "documents_per_group"), where="nanochat")
        check_level(self.compression_level, 22, where="nanochat")


def write(parts: Sequence[Part], options: NanochatOptions, folder: Path) -> Counts:
    """Write the shards of `train` and then the one of `validation`.

    Raises: ConfigError for other parts, or where one of the two has no document.
    """
    by_name = {part.name: part for part in parts}
    _check_parts([*by_name])
    (folder / FOLDER).mkdir()
    counts: Counts = {}
    num_files = 0
    for name in PARTS:
        part = by_name[name]
        limit = options.characters_per_file if name == "train" else None
        num_documents, first = 0, num_files
        for groups in _files(_groups(part, options.documents_per_group), limit):
            # Known only once all before are written: characters are counted on the way.
            check_num_files(
                num_files + 1, digits=FILE_DIGITS, where="nanochat", option="characters_per_file"
            )
            num_documents += _write_file(groups, options, folder / FOLDER, num_files)
            num_files += 1
        if num_files == first:
            raise _refused(f"a document in {name}, for the last shard is validation", "none")
        counts |= counts_of_stream(part, num_tokens=part.num_tokens, num_documents=num_documents)
    return counts


def _check_parts(names: Sequence[str]) -> None:
    if {*names} != {*PARTS}:
        raise _refused("the parts train and validation, which nanochat knows", ", ".join(names))


def _refused(expected: str, found: str) -> ConfigError:
    return ConfigError(
        where="exports: nanochat",
        expected=expected,
        found=found,
        remedy="change `split.parts`, or name another format",
    )


def _groups(part: Part, num_documents: int) -> Iterator[pa.ChunkedArray]:
    """Yield the texts of a part, so many at a time; the last may be fewer."""
    waiting: list[pa.Array] = []
    num_waiting = 0
    for texts in part.texts():
        rest = texts
        while len(rest):
            some = rest[: num_documents - num_waiting]
            rest = rest[len(some) :]
            waiting.append(_as_strings(some))
            num_waiting += len(some)
            if num_waiting == num_documents:
                yield pa.chunked_array(waiting)
                waiting, num_waiting = [], 0
    if waiting:
        yield pa.chunked_array(waiting)


def _as_strings(texts: pa.Array) -> pa.StringArray:
    """Return the texts as nanochat's script has them, with offsets of 32 bits.

    Raises: ConfigError where their bytes need more.
    """
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
    if offsets[-1] - offsets[0] > MAX_TEXT_BYTES:
        raise _refused("texts below 2 GiB", f"one of {int(np.diff(offsets).max()):,} bytes")
    data = texts.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]))
    short = pa.py_buffer((offsets - offsets[0]).astype(np.int32))
    return pa.StringArray.from_buffers(len(texts), short, data)


def _files(
    groups: Iterator[pa.ChunkedArray], characters: int | None
) -> Iterator[Iterator[pa.ChunkedArray]]:
    """Yield the row groups of each file, which is closed once it has so many characters."""
    import pyarrow.compute as pc

    group = next(groups, None)

    def of_file() -> Iterator[pa.ChunkedArray]:
        nonlocal group
        num_characters = 0
        while group is not None and (characters is None or num_characters < characters):
            num_characters += sum(int(to_numpy(pc.utf8_length(c)).sum()) for c in group.chunks)
            yield group
            group = next(groups, None)

    while group is not None:
        yield of_file()


def _write_file(
    groups: Iterator[pa.ChunkedArray], options: NanochatOptions, folder: Path, number: int
) -> int:
    """Return how many documents were written."""
    num_documents = 0
    with pq.ParquetWriter(
        folder / _name(number),
        SCHEMA,
        compression="zstd",
        compression_level=options.compression_level,
        use_dictionary=False,
        write_statistics=False,
    ) as writer:
        for texts in groups:
            table = pa.Table.from_arrays([texts], schema=SCHEMA)
            writer.write_table(table, row_group_size=options.documents_per_group)
            num_documents += len(texts)
    return num_documents


def _name(number: int) -> str:
    return f"shard_{number:05d}.parquet"


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the texts of a part, a row group at a time; (num_documents,) of str."""
    names = numbered(manifest, lambda number: f"{FOLDER}/{_name(number)}")
    for name in names[:-1] if part == "train" else names[-1:]:
        with pq.ParquetFile(folder / name) as file:
            for group in range(file.num_row_groups):
                texts = file.read_row_group(group)["text"].to_pylist()
                yield {"texts": np.array(texts, dtype=object)}


FORMAT = Format(
    description="nanochat: base_data/shard_<i>.parquet of texts, the last of them validation",
    options=NanochatOptions,
    layout=fixed(Layout(made_of="texts", keeps=("texts",))),
    write=write,
    read=read,
    check=lambda options, declared: _check_parts(declared.parts),
)
