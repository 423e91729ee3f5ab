"""WebDataset shards of sequences as DCLM's tokshuf makes and open_lm trains on them.

    <part>/shard_<i>.tar       ustar; a member for each row, mtime 0, called by shard and row:
    00000000_00000005.json.gz  a gzip member of the row as JSON: [464,2068,7586,...], mtime 0
    <part>/manifest.jsonl      {"num_sequences":8192,"shard":"shard_00000000"} for each shard
    lost       segment_ids, position_ids, loss_mask: open_lm sees documents by EOS alone, and
               padding only if `--target-mask-individual` names its id

open_lm makes inputs and labels of one row, so that a row has one token more than `--seq-len`, and
a shorter one is left out with a warning: `packing: {sequence_length: 2048, label_token: true}`
is for `--seq-len 2048`. Its other flags: `--dataset-manifest <part>/manifest.jsonl --data-key
json.gz`. It needs as many shards as it has workers in all: lower `sequences_per_file` for more.
Rows come in the order of the part, where tokshuf shuffles them.

Source: mlfoundations/dclm at a6c55c3, rust_processing/tokshuf-rs/src/main.rs (write_contexts,
finalize_chunk, get_manifest_line); mlfoundations/open_lm at 9bb92ef, open_lm/data.py lines
300-450, open_lm/file_utils.py (get_metadata_file, which leaves out a last line without newline:
the one that tokshuf's manifest ends with).
"""

import json
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import (
    Annotated,
    Literal,
)

import msgspec
import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.exports.format import Arrays, Counts, Format, Layout, fixed
from tokflow.exports.json_text import JsonList, JsonRows
from tokflow.exports.names import numbered
from tokflow.exports.options import check_level
from tokflow.exports.part import Part
from tokflow.exports.row_files import damage_named, write_files
from tokflow.exports.shards import rows_within
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest
from tokflow.tokens.prefetch import in_order

TOKENS_AT_ONCE = 500_000
"""Made into members at one go, by each of two threads."""

BLOCK_BYTES = 512
"""A header's size; what follows it is filled up to a multiple."""

END = bytes(2 * BLOCK_BYTES)

MAX_ROWS = 10**8

READ_ROWS = 1_000


class WebdatasetOptions(Config):
    """Options of the webdataset format."""

    sequences_per_file: Annotated[
        int, Field(ge=1, le=MAX_ROWS), "for a member's name has eight digits"
    ] = 8_192
    """Sequences per shard (wds_chunk_size)."""
    compression: Literal["gz", "none"] = "gz"
    """gz: members are .json.gz, none: .json; open_lm's `--data-key` says which."""
    compression_level: int | None = None
    """gz: 1 to 9, default 3 (tokshuf has 6). Of 16 million GPT-2 ids of source code, in rows of
    2,048 on two cores, 3 writes 15 million a second into 19.4 MB and 6 writes 10 million into
    18.0 MB; `compression: none` writes 30 million into 73 MB."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        largest = 9 if self.compression == "gz" else None
        check_level(self.compression_level, largest)


def write(parts: Sequence[Part], options: WebdatasetOptions, folder: Path) -> Counts:
    """Write a folder of shards for each part that has a row."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder / part.name)
    return counts


def _write_part(part: Part, options: WebdatasetOptions, folder: Path) -> Counts:
    manifest: list[str] = []
    if part.num_sequences:
        folder.mkdir()
        members = _Members(part, options)

    def write_file(number: int, groups: Iterator[Sequences]) -> None:
        num_rows = 0
        with (folder / f"shard_{number:08d}.tar").open("wb") as file:
            for block, num_in_block in in_order(members.of, _numbered(number, groups)):
                file.write(block)
                num_rows += num_in_block
            file.write(END)
        line = {"num_sequences": num_rows, "shard": f"shard_{number:08d}"}
        manifest.append(json.dumps(line, separators=(",", ":")) + "\n")

    counts = write_files(
        part,
        write_file,
        columns=(),
        per_file=options.sequences_per_file,
        at_once=rows_within(TOKENS_AT_ONCE, part.sequence_length),
    )
    if manifest:
        (folder / "manifest.jsonl").write_text("".join(manifest))
    return counts


Numbered = tuple[int, int, Sequences]
"""A shard's ordinal, the ordinal in it of the first row, and rows."""


def _numbered(shard: int, groups: Iterator[Sequences]) -> Iterator[Numbered]:
    first = 0
    for rows in groups:
        yield shard, first, rows
        first += len(rows)


class _Members:
    """Makes rows into members of a tar."""

    def __init__(self, part: Part, options: WebdatasetOptions) -> None:
        self._table = JsonRows(part.vocab_size - 1, pad_id=part.pad_id, before=["["], after="")
        self._is_gzipped = options.compression == "gz"
        self._level = options.compression_level or 3

    def of(self, numbered: Numbered) -> tuple[bytes, int]:
        """Return the headers and contents of rows, end to end, and the number of rows."""
        shard, first, rows = numbered
        text, starts = self._table.text([JsonList("[", rows.token_ids)])
        edges = starts.tolist()
        bodies: list[memoryview | bytes] = [text[start:stop] for start, stop in pairwise(edges)]
        if self._is_gzipped:  # with wbits 31 zlib writes the header of gzip, time 0
            bodies = [zlib.compress(body, self._level, 31) for body in bodies]
        headers = tar_headers(
            shard,
            np.arange(first, first + len(rows)),
            np.array([*map(len, bodies)], dtype=np.int64),
            suffix=".json.gz" if self._is_gzipped else ".json",
        )
        fill = [bytes(-len(body) % BLOCK_BYTES) for body in bodies]
        pieces = [piece for member in zip(headers, bodies, fill, strict=True) for piece in member]
        return b"".join(pieces), len(rows)


def tar_headers(
    shard: int, rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], *, suffix: str
) -> npt.NDArray[np.uint8]:
    """Return the headers of members `<shard>_<row><suffix>` of these sizes; shape (n, 512)."""
    member = tarfile.TarInfo(f"{shard:08d}_{0:08d}{suffix}")
    member.mode = 0o644
    template = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    template[148:156] = b" " * 8  # the checksum is of a header with blanks in its place
    headers = np.tile(np.frombuffer(template, dtype=np.uint8), (len(rows), 1))
    headers[:, 9:17] = _digits(rows, base=10, width=8)
    headers[:, 124:135] = _digits(sizes, base=8, width=11)
    checksums = headers.sum(axis=1, dtype=np.int64)
    headers[:, 148:154] = _digits(checksums, base=8, width=6)
    headers[:, 154] = 0
    return headers


def _digits(values: npt.NDArray[np.int64], *, base: int, width: int) -> npt.NDArray[np.int64]:
    powers = base ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return values[:, None] // powers % base + ord("0")


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the rows of a part, a thousand at a time; token_ids (rows, sequence_length).

    Raises: CorruptOutputError for a shard that is no tar of such rows.
    """
    details = manifest.details
    for name in numbered(manifest, lambda number: f"{part}/shard_{number:08d}.tar"):
        with damage_named(folder / name, expected="a tar of rows as JSON"):
            rows = _rows_of(folder / name)
            while some := list(islice(rows, READ_ROWS)):
                token_ids = np.array(some, dtype=details["dtype"])
                yield {"token_ids": token_ids.reshape(-1, details["sequence_length"])}


def _rows_of(path: Path) -> Iterator[list[int]]:
    decoder = msgspec.json.Decoder(list[int])
    with tarfile.open(path, "r|") as tar:
        for member in tar:
            file = tar.extractfile(member)
            data = b"" if file is None else file.read()
            yield decoder.decode(zlib.decompress(data, 31) if member.name[-3:] == ".gz" else data)


FORMAT = Format(
    description="WebDataset of DCLM and open_lm: <part>/shard_<i>.tar of .json.gz rows, and "
    "manifest.jsonl",
    options=WebdatasetOptions,
    layout=fixed(Layout(made_of="sequences", keeps=("token_ids",))),
    write=write,
    read=read,
)
