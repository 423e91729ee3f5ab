"""Each peer's own writer writes the files of our exports, of the same tokens: a table."""

import csv
import gzip
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow_tests.interop.harness import (
    BYTES,
    KINDS,
    MANY,
    PARTS,
    Known,
    assert_same,
    known_dataset,
    python_of,
    read_with,
    write_with,
)
from tokflow_tests.tiny import many_ids

pytestmark = pytest.mark.interop

Pairs = Iterator[tuple[Path, Path]]
"""Our files and the peer's, which must hold the same."""


@dataclass(frozen=True)
class Writing:
    """An export, and how its peer writes the same into a folder of its own."""

    peer: str
    write: Callable[[Known, Path], Pairs]
    kinds: Sequence[str] = ("bytes",)
    export: Mapping[str, Any] = field(default_factory=dict)
    """Options of the known dataset and of the format."""
    format: str = ""
    """Default: the peer's name."""


def archai(known: Known, peer: Path) -> Pairs:
    """Write all three parts, of the same texts."""
    write_with("archai", known.documents("train"), peer, vocab_size=known.vocab_size)
    names = ["config.json", "test.npy", "train.npy", "validation.npy"]
    assert _names(peer / "cache") == {*names, "tokenizer.pkl"}
    return ((known.folder / name, peer / "cache" / name) for name in names)


def datatrove(known: Known, peer: Path) -> Pairs:
    for part in PARTS:
        documents = [document for document in known.documents(part) if document]
        token_size = np.dtype(known.dtype).itemsize
        write_with("datatrove", documents, peer, part=part, token_size=token_size, name="mine")
    files = [*peer.iterdir()]
    assert len(files) == 6
    return ((known.folder / path.name.split(".")[0] / f"00000_{path.name}", path) for path in files)


def easydel(known: Known, peer: Path) -> Pairs:
    rows = known.rows("train")
    columns = {
        "input_ids": rows["token_ids"],
        "attention_mask": (rows["segment_ids"] != 0).astype(np.int64),
        "segment_ids": rows["segment_ids"],
        "position_ids": rows["position_ids"],
    }
    write_with("easydel", [], peer, arrays=columns)
    return _pairs(known.folder / "train", peer / "train")


def levanter(known: Known, peer: Path) -> Pairs:
    write_with("levanter", known.documents("train"), peer)
    assert sum(path.is_file() for path in (peer / "train").rglob("*")) == 5
    return _pairs(known.folder / "train", peer / "train")


def litdata(codec: str | None) -> Callable[[Known, Path], Pairs]:
    """Return what writes the documents, cut at the edges of chunks, as items."""

    def write(known: Known, peer: Path) -> Pairs:
        offsets = known.offsets("train")
        size = 60 // np.dtype(known.dtype).itemsize // 9 * 9
        edges = np.unique([*offsets, *range(0, offsets[-1], size)])
        items = [ids.tolist() for ids in np.split(known.token_ids("train"), edges[1:-1])]
        dtype = "int32" if known.dtype == "uint32" else "uint16"
        write_with("litdata", items, peer, dtype=dtype, chunk_size=size, compression=codec)
        return _pairs(known.folder / "train", peer)

    return write


def mds(**options: Any) -> Callable[[Known, Path], Pairs]:
    def write(known: Known, peer: Path) -> Pairs:
        rows = known.rows("train")
        arrays = {
            "tokens": rows["token_ids"].astype(np.int32),
            "a": rows["position_ids"].astype(np.int32),
            "z": rows["segment_ids"].astype(np.int32),
            "mask": (rows["segment_ids"] != 0).astype(np.uint8),
        }
        columns = {name: f"ndarray:{array.dtype}:8" for name, array in arrays.items()}
        given = {"size_limit" if name == "shard_size" else name: of for name, of in options.items()}
        write_with("mds", [], peer, arrays=arrays, columns=columns, **given)
        return _pairs(known.folder / "train", peer)

    return write


MDS_FIELDS = {"tokens": "token_ids", "a": "position_ids", "z": "segment_ids", "mask": "loss_mask"}


def megatron(known: Known, peer: Path) -> Pairs:
    for part in PARTS:
        write_with("megatron", known.documents(part), peer, part=part, vocab_size=known.vocab_size)
    files = [*peer.iterdir()]
    assert len(files) == 4
    return ((known.folder / path.name, path) for path in files)


def modalities(known: Known, peer: Path) -> Pairs:
    texts = [document[:-1] for document in known.documents("train")]  # it puts EOS itself
    write_with("modalities", texts, peer, vocab_size=known.vocab_size, eos_id=known.eos_id)
    yield known.folder / "train.pbin", peer / "train.pbin"


NOT_EMPTY = {
    "bytes": {"train-0.jsonl": ["a", "The quick brown fox", "größe"], "train-1.jsonl": ["x" * 99]},
    "many": {"train-0.jsonl": ["w65536 w0", "w69999 w7 w65535"], "train-1.jsonl": ["w3 w4"]},
}
"""modalities leaves out an empty text, and with it all that are packed at the same time."""


def dolma(known: Known, peer: Path) -> Pairs:
    """Write the token file, and the lines that say where each document comes from."""
    texts = MANY if known.dtype == "uint32" else BYTES
    names = [name for name in sorted(texts) if name.startswith("train")]
    origins = [(name, row) for name in names for row in range(len(texts[name]))]
    write_with(
        "dolma",
        known.documents("train"),
        peer,
        dtype=known.dtype,
        raw_files=[name for name, _ in origins],
        rows=[row for _, row in origins],
    )
    return _pairs(known.folder / "train", peer)


def webdataset(known: Known, peer: Path) -> Pairs:
    write_with("webdataset", known.rows("train")["token_ids"].tolist(), peer)
    assert _names(peer) == {path.name for path in (known.folder / "train").glob("*.tar")}
    return ((known.folder / "train" / path.name, path) for path in peer.iterdir())


SAVED = {
    "input_ids": "int32",
    "attention_mask": "int8",
    "segment_ids": "int32",
    "position_ids": "int32",
}


def hf_dataset(known: Known, peer: Path) -> Pairs:
    """Save both parts to disk."""
    arrays = {f"{part}.{n}": a for part in PARTS for n, a in known.columns(part).items()}
    write_with("datasets", [], peer, arrays=arrays, columns=dict.fromkeys(PARTS, SAVED))
    names = {path.relative_to(peer).as_posix() for path in peer.rglob("*") if path.is_file()}
    assert len(names) == 7
    assert names <= {*known.manifest.files}
    return ((known.folder / name, peer / name) for name in sorted(names))


def _pairs(ours: Path, theirs: Path) -> Pairs:
    """Pair all files of two folders, which must have the same names."""
    names = [
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        for folder in (ours, theirs)
    ]
    assert names[0] == names[1]
    return ((ours / name, theirs / name) for name in names[0])


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def content_of(path: Path) -> Any:
    """Return the bytes of a file, but where a peer's own change from run to run: what they say."""
    data = path.read_bytes()
    if path.suffix == ".tar":
        with tarfile.open(path) as tar:
            return {member.name: json.loads(tar.extractfile(member).read()) for member in tar}
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if path.suffix == ".gz":
        return [*csv.reader(gzip.decompress(data).decode().splitlines())]
    if path.suffix == ".pbin":
        end = 12 + int.from_bytes(data[:8], "little")
        return data[:end], pickle.loads(data[end:])
    if path.name == "state.json":
        fingerprint = json.loads(data)["_fingerprint"]
        assert len(fingerprint) == 16
        return data.replace(fingerprint.encode(), b"")
    if path.name == "index.json" and b'"updated_at"' in data:
        return {**json.loads(data), "updated_at": None}
    return data


CHUNKS = {"block_size": 9, "shard_size": 60}
SHA1 = {"shard_size": 800, "hashes": ["sha1", "xxh64"]}
MD5 = {"shard_size": 800, "hashes": ["md5", "xxh3_128"], "compression": "zstd"}
LEVEL = {"shard_size": 2_000, "compression": "zstd"}
ALL, TWO = tuple(KINDS), ("bytes", "many")

# fmt: off
WRITINGS = [
    Writing("datatrove", datatrove, ALL, {"tokenizer_name_or_path": "mine"}),
    Writing("easydel", easydel),
    Writing("levanter", levanter, ("without EOS", "many")),
    Writing("litdata", litdata(None), TWO, CHUNKS),
    Writing("litdata", litdata("zstd"), TWO, {**CHUNKS, "compression": "zstd"}),
    Writing("litdata", litdata("zstd:9"), TWO,
            {**CHUNKS, "compression": "zstd", "compression_level": 9}),
    Writing("mds", mds(), export={"columns": MDS_FIELDS}),
    Writing("mds", mds(**SHA1), export={"columns": MDS_FIELDS, **SHA1}),
    Writing("mds", mds(**MD5), export={"columns": MDS_FIELDS, **MD5}),
    Writing("mds", mds(**{**LEVEL, "compression": "zstd:12"}),
            export={"columns": MDS_FIELDS, **LEVEL, "compression_level": 12}),
    Writing("megatron", megatron, ALL),
    Writing("modalities", modalities, export={"files": NOT_EMPTY["bytes"]}),
    Writing("modalities", modalities, ("many",), {"files": NOT_EMPTY["many"]}),
    Writing("dolma", dolma, ALL, format="olmo"),
    Writing("webdataset", webdataset, export={"compression": "none", "shard_size": 4 * 1_072}),
    Writing("datasets", hf_dataset, TWO, format="hf_dataset"),
]
# fmt: on


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.peer}-{kind}-{number}")
        for number, case in enumerate(WRITINGS)
        for kind in case.kinds
    ],
)
def test_the_files_are_those_that_the_peer_writes(case: Writing, kind: str, tmp_path: Path):
    python_of(case.peer)  # skips or fails before anything is built
    ours, format_ = tmp_path / "ours", case.format or case.peer
    known = known_dataset(ours, format_, **KINDS[kind], **case.export)

    for mine, theirs in case.write(known, tmp_path / "peer"):
        assert content_of(mine) == content_of(theirs), theirs.name


@pytest.mark.parametrize("kind", ["bytes", "many"])
def test_the_files_are_those_that_archai_writes(kind: str, tmp_path: Path):
    texts = {"bytes": ["ab", "c", "one document"], "many": ["w65536 w3", "w69999 w65535 w1"]}
    parts = (*PARTS, "test")
    known = known_dataset(
        tmp_path / "ours",
        "archai",
        **KINDS[kind],
        files={f"{part}.jsonl": texts[kind] for part in parts},
        attributes={"split": {"parts": {part: {"files": f"{part}.jsonl"} for part in parts}}},
        dataset_file_path=str(tmp_path / "peer" / "texts"),
        tokenizer_name="",  # the peer's tokenizer was made in memory
    )

    for mine, theirs in archai(known, tmp_path / "peer"):
        assert content_of(mine) == content_of(theirs), theirs.name


def test_the_files_are_those_of_datatroves_own_tokenizer_step(tmp_path: Path):
    tokenizer = tmp_path / "many.json"
    tokenizer.write_text(many_ids())
    options = {"tokenizer_name_or_path": str(tokenizer)}
    known = known_dataset(tmp_path / "ours", "datatrove", ids="many", **options)
    texts = [text for name in sorted(MANY) if name.startswith("train") for text in MANY[name]]

    given = {"texts": texts, "tokenizer": str(tokenizer), "eos_token": "<eos>"}
    write_with("datatrove", [], tmp_path / "peer", **given)

    for suffix in ("", ".index", ".metadata"):
        ours = known.folder / "train" / f"00000_train.ds{suffix}"
        theirs = tmp_path / "peer" / f"train_00000_unshuffled.ds{suffix}"
        assert ours.read_bytes() == theirs.read_bytes(), suffix


def test_what_lance_writes_as_its_example_does_has_the_same_rows_and_columns(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "lance")

    write_with("lance", known.documents("train"), tmp_path / "peer")

    theirs = read_with("lance", tmp_path / "peer", "train")
    ours = read_with("lance", known.folder, "train")
    assert set(theirs) == set(ours)
    assert_same(ours, theirs)


def test_shards_that_datasets_saves_hold_the_same_table(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "hf_dataset", shards=5)
    arrays = {f"train.{name}": values for name, values in known.columns("train").items()}

    given = {"columns": {"train": SAVED}, "num_shards": {"train": 3}}
    write_with("datasets", [], tmp_path / "peer", arrays=arrays, **given)

    ours, theirs = (table_of(folder / "train") for folder in (known.folder, tmp_path / "peer"))
    assert len({*(known.folder / "train").glob("*.arrow")}) > 1
    assert ours.schema.metadata
    assert theirs.equals(ours)


def test_trls_packer_writes_the_same_columns_and_as_few_rows(tmp_path: Path):
    packing = {"strategy": "best_fit", "sequence_length": 8, "overlong": "split"}
    options = {"columns": ["seq_lengths"], "padding": False, "attributes": {"packing": packing}}
    known = known_dataset(tmp_path / "ours", "hf_dataset", **options)

    write_with("trl", known.documents("train"), tmp_path / "peer", sequence_length=8)

    ours, theirs = (table_of(folder / "train") for folder in (known.folder, tmp_path / "peer"))
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    for name in ("input_ids", "seq_lengths"):
        values = [
            sorted(table[name].combine_chunks().flatten().to_pylist()) for table in (ours, theirs)
        ]
        assert values[0] == values[1], name
    assert len(ours) <= len(theirs)


def table_of(folder: Path) -> pa.Table:
    """Return the table that the shards of a saved dataset hold."""
    state = json.loads((folder / "state.json").read_text())
    shards = [folder / each["filename"] for each in state["_data_files"]]
    tables = [pa.ipc.open_stream(shard.read_bytes()).read_all() for shard in shards]
    return pa.concat_tables(tables).combine_chunks()
