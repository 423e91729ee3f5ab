"""WebDataset shards of sequences as DCLM's tokshuf makes and open_lm trains on them.

    <part>/shard_<i>.tar       ustar; a member for each row, mtime 0, called by shard and row:
    00000000_00000005.json.gz  a gzip member of the row as JSON: [464,2068,7586,...], mtime 0; with
                               `shards: by_file` the shard's digits are a hash of its first row
    <part>/manifest.jsonl      {"num_sequences":8192,"shard":"shard_00000000"} for each shard
    lost       segment_ids, position_ids, loss_mask: open_lm sees documents by EOS alone, and
               padding only if `--target-mask-individual` names its id

open_lm makes inputs and labels of one row, so that a row has one token more than `--seq-len`, and
a shorter one is left out with a warning: `packing: {sequence_length: 2048, label_token: true}`
is for `--seq-len 2048`. Its other flags: `--dataset-manifest <part>/manifest.jsonl --data-key
json.gz`. It needs as many shards as it has workers in all: raise `shards` for more.
Rows come in the order of the part, where tokshuf shuffles them.

Source: mlfoundations/dclm at a6c55c3, rust_processing/tokshuf-rs/src/main.rs (write_contexts,
finalize_chunk, get_manifest_line); mlfoundations/open_lm at 9bb92ef, open_lm/data.py lines
300-450, open_lm/file_utils.py (get_metadata_file, which leaves out a last line without newline:
the one that tokshuf's manifest ends with).
"""

import json
import mmap
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, Portion
from tokflow.exports.options import PartRows, ShardOptions
from tokflow.exports.table_files import Located
from tokflow.exports.token_files import files_of, open_hashed, sequences_within
from tokflow.pools.machine import in_order
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Size

TOKENS_AT_ONCE = 500_000
"""Made into members at one go, by each of two threads; read at one go."""

END = bytes(2 * tarfile.BLOCKSIZE)

MAX_ROWS = 10**8
"""Most rows of a shard, for a member's name has eight digits."""

GZIP_MAGIC = b"\x1f\x8b"


SEQUENCES_PER_FILE = 8_192
"""Default: wds_chunk_size."""


class WebdatasetOptions(ShardOptions):
    """WebDataset of DCLM and open_lm: <part>/shard_<i>.tar of .json.gz rows, and manifest.jsonl."""

    shard_size: Size | None = None
    """Most bytes of a shard before compression, such as 500MB, counted as 6 for each id and 1,024
    for each sequence. Default: 8,192 sequences (wds_chunk_size)."""
    compression: Literal["gz", "none"] = "gz"
    """gz: members are .json.gz, none: .json; open_lm's `--data-key` says which."""
    compression_level: int | None = None
    """gz: 1 to 9, default 3 (tokshuf has 6). Of 16 million GPT-2 ids of source code, in rows of
    2,048 on two cores, 3 writes 15 million a second into 19.4 MB and 6 writes 10 million into
    18.0 MB; `compression: none` writes 30 million into 73 MB."""


def write(part: Part, options: WebdatasetOptions, folder: Path) -> Iterator[FileFacts]:
    """Write a folder of shards."""
    at_once = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    suffix = ".json.gz" if options.compression == "gz" else ".json"

    def contents(batch: Sequences) -> list[bytes]:
        texts = [msgspec.json.encode(token_ids) for token_ids in batch.token_ids.tolist()]
        if options.compression == "none":
            return texts
        return [zlib.compress(text, options.compression_level or 3, wbits=31) for text in texts]

    for number, batches in files_of(part, _sizes(part.rows, options), options, at_once):
        num_sequences, key = 0, f"{number:08d}"
        with open_hashed(folder / _name(part.name, number)) as file:
            for batch in in_order(contents, batches):
                for content in batch:
                    if options.is_by_file and not num_sequences:
                        key = xxhash.xxh32_hexdigest(content)
                    member = tarfile.TarInfo(f"{key}_{num_sequences:08d}{suffix}")
                    member.size = len(content)
                    file.write(member.tobuf(tarfile.USTAR_FORMAT))
                    file.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
                    num_sequences += 1
            file.write(END)
        yield {"num_sequences": num_sequences}


def _name(part: str, number: int, *_: Any) -> str:
    return f"{part}/shard_{number:08d}.tar"


def finish(parts: Sequence[Part], options: WebdatasetOptions, folder: Path) -> None:
    """Write manifest.jsonl of each part."""
    for part in parts:
        lines = [{**of, "shard": Path(_name("", n)).stem} for n, of in enumerate(part.files)]
        texts = (json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / part.name / "manifest.jsonl").write_text("".join(texts))


def _sizes(rows: PartRows, options: WebdatasetOptions) -> list[int]:
    row_bytes = 6 * rows.sequence_length + 2 * tarfile.BLOCKSIZE
    return options.sizes(rows, row_bytes, SEQUENCES_PER_FILE, most=MAX_ROWS)


def portions(export: Export, part: str) -> list[Portion]:
    """Return some rows of a shard each."""
    sizes = _sizes(export.rows(part), export.options)
    names = [_name(part, number) for number in range(len(sizes))]
    shards = {name: Located(export.folder / name, _end_of, _members) for name in names}
    decoder = msgspec.json.Decoder(list[int])

    def load(name: str, number: int, rows: slice) -> Arrays:
        texts = [
            zlib.decompress(member, 31) if member.startswith(GZIP_MAGIC) else member
            for member in shards[name].taken(rows)
        ]
        found = [*map(decoder.decode, texts)]
        return {"token_ids": np.array(found, dtype=export.dtype).reshape(len(found), -1)}

    at_once = sequences_within(TOKENS_AT_ONCE, export.manifest.details["sequence_length"])
    return export.batch_portions(load, names, sizes, at_once)


def _end_of(data: mmap.mmap, start: int) -> int:
    """Return the byte behind the member that begins at a byte, or the end of the file where there
    is none but the blocks of zeros."""
    header = data[start : start + tarfile.BLOCKSIZE]
    if not header.strip(b"\0"):
        return len(data)
    member = tarfile.TarInfo.frombuf(header, tarfile.ENCODING, "surrogateescape")
    blocks = 1 + -(-member.size // tarfile.BLOCKSIZE)
    return min(start + blocks * tarfile.BLOCKSIZE, len(data))


def _members(data: bytes) -> Iterator[bytes]:
    """Yield the content of each member of a stretch of a tar."""
    with tarfile.open(fileobj=BytesIO(data), mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            yield b"" if file is None else file.read()


FORMAT = Format(
    WebdatasetOptions,
    lambda options: Layout("sequences", ("token_ids",)),
    write,
    _name,
    portions=portions,
    finish=finish,
    sizes=_sizes,
)
