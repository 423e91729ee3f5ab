"""Each peer's own reader finds the known tokens in our exports: a table of claims."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow_tests.interop.harness import (
    KINDS,
    PARTS,
    Known,
    assert_same,
    known_dataset,
    python_of,
    read_parts,
)

pytestmark = pytest.mark.interop


@dataclass(frozen=True)
class Reading:
    """An export, how its peer reads a part of it, and what it must find."""

    claim: str
    peer: str
    fields: str
    """Those of FIELDS that the peer gives; of `datasets` the columns."""
    format: str = ""
    """Default: the peer's name."""
    kinds: Sequence[str] = ("bytes",)
    export: Mapping[str, Any] = field(default_factory=dict)
    """Options of the known dataset and of the format."""
    reader: Mapping[str, Any] = field(default_factory=dict)
    """Options of the peer's reader; a callable is given the known dataset."""
    also: Callable[[Known, str], Mapping[str, Any]] = lambda known, part: {}
    """What else must be found."""
    parts: Sequence[str] = PARTS


def blocks(known: Known, part: str, length: int = 8) -> np.ndarray:
    token_ids = known.token_ids(part)
    return token_ids[: len(token_ids) // length * length].reshape(-1, length)


def pairs(known: Known, part: str, shift: int) -> np.ndarray:
    """Return inputs (shift 0) or labels (shift 1) of 8 tokens, all that are whole."""
    token_ids = known.token_ids(part)
    count = (len(token_ids) - 1) // 8 * 8
    return token_ids[shift : count + shift].reshape(-1, 8)


def positions(known: Known, part: str) -> np.ndarray:
    """Return positions in blocks: they begin anew with each block and each document."""
    offsets, places = np.unique(known.offsets(part)), np.arange(blocks(known, part).size)
    of_document = offsets[np.searchsorted(offsets, places, "right") - 1]
    return (places - np.maximum(places // 8 * 8, of_document)).reshape(-1, 8)


FIELDS: dict[str, Callable[[Known, str], Any]] = {
    "token_ids": lambda known, part: known.token_ids(part),
    "again": lambda known, part: known.token_ids(part),  # read in another way
    "num_tokens": lambda known, part: len(known.token_ids(part)),
    "dtype": lambda known, part: known.dtype,
    "signed": lambda known, part: known.dtype.replace("uint32", "int32"),
    "offsets": lambda known, part: known.offsets(part),
    "offsets_of_tokens": lambda known, part: np.unique(known.offsets(part)),
    "blocks": blocks,
    "blocks_again": blocks,
    "inputs": lambda known, part: pairs(known, part, 0),
    "next": lambda known, part: pairs(known, part, 1),
    "positions": positions,
    "rows": lambda known, part: known.rows(part)["token_ids"],
    "segment_ids": lambda known, part: known.rows(part)["segment_ids"],
    "position_ids": lambda known, part: known.rows(part)["position_ids"],
    "is_token": lambda known, part: (known.rows(part)["segment_ids"] != 0).astype(int),
}


def num_files(known: Known, part: str, pattern: str) -> int:
    return len(list((known.folder / part).glob(pattern)))


def datatrove_names(known: Known, part: str) -> Mapping[str, Any]:
    count = num_files(known, part, "*.ds")
    return {"names": [f"{number:05d}_{part}.ds" for number in range(count)]}


def datatrove_sizes(known: Known, part: str) -> Mapping[str, Any]:
    assert part != "train" or num_files(known, part, "*.ds") == 4
    return datatrove_names(known, part)


def litdata_blocks(length: int) -> Callable[[Known, str], Mapping[str, Any]]:
    """Expect whole blocks of the stream, if it is not cut into chunks of another length."""

    def expected(known: Known, part: str) -> Mapping[str, Any]:
        assert length != 9 or num_files(known, "train", "*.bin") > 2
        found = blocks(known, part, length)
        return {"blocks": found, "blocks_again": found}

    return expected


def litdata_rests(known: Known, part: str) -> Mapping[str, Any]:
    """Expect that of each chunk of 27 tokens what fills no block of 8 is lost."""
    token_ids = known.token_ids(part)
    chunks = np.split(token_ids, range(27, len(token_ids), 27))
    whole = [chunk[: len(chunk) // 8 * 8].reshape(-1, 8) for chunk in chunks]
    return {"blocks": np.concatenate(whole)}


def litdata_files(known: Known, part: str) -> Mapping[str, Any]:
    """Expect that of each chunk what fills no block of 9 is lost."""
    index = json.loads((known.folder / part / "index.json").read_text())
    sizes = [chunk["dim"] for chunk in index["chunks"]]
    chunks = np.split(known.token_ids(part), np.cumsum(sizes)[:-1])
    assert len(sizes) > 2
    return {"blocks": np.concatenate([c[: len(c) // 9 * 9].reshape(-1, 9) for c in chunks])}


def lance_files(known: Known, part: str) -> Mapping[str, Any]:
    sizes = [min(30, len(known.token_ids(part)) - n) for n in range(0, known.offsets(part)[-1], 30)]
    return {"types": ["input_ids: int64"], "rows_per_file": sizes, "num_versions": 1}


def lance_documents(known: Known, part: str) -> Mapping[str, Any]:
    offsets = known.offsets(part)
    return {"token_offset": offsets[:-1], "num_tokens": np.diff(offsets)}


def lance_types(known: Known, part: str) -> Mapping[str, Any]:
    names = ("input_ids", "segment_ids", "position_ids")
    return {"types": [f"{name}: fixed_size_list<item: int32>[8]" for name in names]}


def megatron_sequences(known: Known, part: str) -> Mapping[str, Any]:
    """Expect that no sequence is empty."""
    return {"sequence_lengths": [len(document) for document in known.documents(part) if document]}


def modalities_sharing(known: Known, part: str) -> Mapping[str, Any]:
    """Expect blocks of 8, of which each begins with the last token of the one before."""
    return {"blocks": np.lib.stride_tricks.sliding_window_view(known.token_ids(part), 8)[::7]}


def olmo_files(known: Known, part: str) -> Mapping[str, Any]:
    """Expect that of each file what fills no row is left out."""
    paths = sorted((known.folder / part).glob("part-*.npy"))
    files = [np.fromfile(path, known.dtype).astype(int) for path in paths]
    assert len(files) == 4
    assert np.concatenate(files).tolist() == known.token_ids(part).tolist()
    return {"blocks": np.concatenate([f[: len(f) // 8 * 8].reshape(-1, 8) for f in files])}


def olmo_documents(known: Known, part: str) -> Mapping[str, Any]:
    """Expect every document that has tokens, sorted by them, whole."""
    documents = sorted(filter(None, known.documents(part)))
    lengths = map(len, documents)
    offsets = [*itertools.accumulate(lengths, initial=0)]
    return {"token_ids": [*itertools.chain(*documents)], "offsets": offsets}


def easydel_shards(known: Known, part: str) -> Mapping[str, Any]:
    """Expect shards of 7 rows, and row groups of 3."""
    num_rows = len(known.rows(part)["token_ids"])
    sizes = [min(7, num_rows - first) for first in range(0, num_rows, 7)]
    return {
        "names": [f"shard-{number:05d}.parquet" for number in range(len(sizes))],
        "rows_per_file": sizes,
        "groups_per_file": [-(-size // 3) for size in sizes],
    }


def easydel_lists(known: Known, part: str) -> Mapping[str, Any]:
    """Expect rows that end at their last token, and no attention_mask."""
    names = ["input_ids", "segment_ids", "position_ids"]
    columns = known.columns(part, padding=False)
    lists = {each: columns[each] for name in names for each in (name, f"{name}.lengths")}
    return {**lists, "columns": names}


def easydel_rest(known: Known, part: str) -> Mapping[str, Any]:
    return {"rows": known.rows(part)["token_ids"][5:]}


def mds_columns(*names: str) -> Callable[[Known, str], Mapping[str, Any]]:
    """Expect these columns and no other; of MDS_FIELDS also what they hold."""

    def expected(known: Known, part: str) -> Mapping[str, Any]:
        rows = {**known.rows(part), "loss_mask": FIELDS["is_token"](known, part)}
        if names == ("tokens",):
            return {"columns": names, "tokens": rows["token_ids"].astype(np.int32)}
        assert num_files(known, part, "shard.*") > 2
        return {"columns": names, **{name: rows[MDS_FIELDS[name]] for name in names}}

    return expected


def webdataset_shards(per_file: int) -> Callable[[Known, str], Mapping[str, Any]]:
    """Expect each row's key and shard."""

    def expected(known: Known, part: str) -> Mapping[str, Any]:
        numbers = np.arange(len(known.rows(part)["token_ids"]))
        return {
            "keys": [f"{n // per_file:08d}_{n % per_file:08d}" for n in numbers],
            "shards": [f"shard_{n // per_file:08d}.tar" for n in numbers],
            "manifest": np.bincount(numbers // per_file),
        }

    return expected


def no_rows(known: Known, part: str) -> Mapping[str, Any]:
    return {"rows": []}


def both_parts(known: Known, part: str) -> Mapping[str, Any]:
    return {"parts": PARTS}


def saved_part(known: Known, part: str) -> Mapping[str, Any]:
    """Expect what a saved part says of itself."""
    types = dict(zip(ROW.split(), ("int32", "int8", "int32", "int32"), strict=True))
    features = {
        name: {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "List"}
        for name, dtype in types.items()
    }
    return {"parts": PARTS, "split": part, "features": json.dumps(features)}


def trl_batches(known: Known, part: str) -> Mapping[str, Any]:
    """Expect the documents end to end; TRL has no label for a document's first token."""
    columns = known.columns(part, padding=False)
    token_ids, position_ids = columns["input_ids"], columns["position_ids"]
    starts = np.flatnonzero(position_ids == 0)
    return {
        "input_ids": token_ids,
        "position_ids": position_ids,
        "labels": np.where(position_ids == 0, -100, token_ids),
        "cu_seq_lens": np.diff([*starts, len(position_ids)]),
    }


ALL, TWO, TRAIN = tuple(KINDS), ("bytes", "many"), ("train",)
ROW = "input_ids attention_mask segment_ids position_ids"
EVERY = f"{ROW} loss_mask labels"
USUAL = ["segment_ids", "position_ids"]
UNPADDED = {"columns": ["labels", "seq_lengths"], "padding": False}
LENGTHS = {"columns": ["seq_lengths"], "padding": False}
FILES = {"files": {part: f"{part}-*" for part in PARTS}}
CHUNKS = {"block_size": 9, "shard_size": 60}
MDS_FIELDS = {"tokens": "token_ids", "a": "position_ids", "z": "segment_ids", "mask": "loss_mask"}
SMALL_MDS = {"columns": MDS_FIELDS, "shard_size": 800}
NAMED = {"prefix": "mine.v1", "key": "content"}
TOKEN_SIZE = {"token_size": lambda known: np.dtype(known.dtype).itemsize}
OLMO = {
    "vocab_size": lambda known: known.vocab_size,
    "eos_id": lambda known: 256 if known.eos_id is None else known.eos_id,
    "dtype": lambda known: known.dtype,
    "sequence_length": 8,
}
OLMO_WHOLE = {**OLMO, "sequence_length": 128}
FILLED = {
    "files": {"train-0.jsonl": ["x" * 8, "", "y" * 88], "validation-0.jsonl": ["z"]},
    "block_size": 11,
    "shard_size": 68,
}

OF_FIELDS = mds_columns("a", "mask", "tokens", "z")

# fmt: off
READINGS = [
    Reading("inputs and labels", "archai", "token_ids signed inputs next", kinds=ALL,
             also=lambda k, p: {"has_tokenizer": False}),
    Reading("documents, rows and positions", "datatrove",
             "token_ids offsets_of_tokens blocks positions", kinds=ALL, reader=TOKEN_SIZE,
             also=datatrove_names),
    Reading("files of a given size", "datatrove", "token_ids offsets_of_tokens",
             export={"shard_size": 100}, also=datatrove_sizes),
    Reading("documents and full rows", "levanter", "token_ids again offsets num_tokens blocks",
             kinds=("without EOS", "many")),
    Reading("every whole block", "litdata", "", kinds=ALL, export=CHUNKS, reader={"block_size": 9},
             also=litdata_blocks(9)),
    Reading("compressed chunks", "litdata", "", export={**CHUNKS, "compression": "zstd"},
             reader={"block_size": 9}, also=litdata_blocks(9)),
    Reading("every token where blocks fill the chunks", "litdata", "", export=FILLED,
             reader={"block_size": 11}, also=litdata_blocks(11), parts=TRAIN),
    Reading("chunks of whole raw files, of which each loses a rest", "litdata", "",
             export={**CHUNKS, "shards": "by_file"}, reader={"block_size": 9},
             also=litdata_files, parts=TRAIN),
    Reading("another block size loses a rest of each chunk", "litdata", "", export=CHUNKS,
             reader={"block_size": 8}, also=litdata_rests, parts=TRAIN),
    Reading("blocks taken, and all scanned", "lance", "token_ids again", kinds=ALL,
             export={"shards": None, "shard_size": 240}, also=lance_files),
    Reading("shards of whole raw files", "lance", "token_ids again", export={"shard_size": 240}),
    Reading("every document", "lance", "token_ids", kinds=("without EOS",),
             reader={"layout": "documents"}, also=lance_documents),
    Reading("sequences", "lance", "rows segment_ids position_ids", kinds=TWO,
             export={"layout": "sequences", "shards": 5}, reader={"layout": "sequences"},
             also=lance_types),
    Reading("documents", "megatron", "token_ids offsets signed", kinds=ALL,
             also=megatron_sequences),
    Reading("prefix and key", "megatron", "token_ids", export={**NAMED, "dtype": "int32"},
             reader=NAMED, also=lambda k, p: {"signed": "int32"}, parts=TRAIN),
    Reading("documents and blocks", "modalities", "token_ids offsets dtype blocks", kinds=ALL,
             reader={"block_size": 8}),
    Reading("blocks that share a token", "modalities", "",
             reader={"block_size": 8, "reuse_last_target": True}, also=modalities_sharing,
             parts=TRAIN),
    Reading("rows of the stream", "olmo", "blocks", kinds=TWO, reader=OLMO, parts=TRAIN),
    Reading("what fills no row of each file is left out", "olmo", "",
             export={"shard_size": 100}, reader=OLMO, also=olmo_files, parts=TRAIN),
    Reading("documents packed whole", "olmo", "", kinds=TWO, reader=OLMO_WHOLE,
             also=olmo_documents),
    Reading("documents told apart by the lines", "olmo", "", kinds=ALL,
             export={"shard_size": 100}, reader={**OLMO_WHOLE, "from_lines": True},
             also=olmo_documents),
    Reading("every row of every shard", "easydel", "rows segment_ids position_ids is_token",
             kinds=TWO, export={"shards": None, "shard_size": 7 * 120, "sequences_per_group": 3},
             also=easydel_shards),
    Reading("rows of their own length, without a mask", "easydel", "", kinds=TWO,
             export={"padding": "none", "attention_mask": False}, reader={"is_ragged": True},
             also=easydel_lists),
    Reading("begins at any row", "easydel", "", export={"sequences_per_group": 3},
             reader={"start_at": 5}, also=easydel_rest, parts=TRAIN),
    Reading("every row", "mds", "", kinds=TWO,
             also=mds_columns("tokens")),
    Reading("every field from many shards", "mds", "", export=SMALL_MDS,
             also=OF_FIELDS, parts=TRAIN),
    Reading("hashes", "mds", "", export={**SMALL_MDS, "hashes": ["xxh64", "sha1"]},
             reader={"validate_hash": "sha1"}, also=OF_FIELDS,
             parts=TRAIN),
    Reading("compressed shards", "mds", "",
             export={**SMALL_MDS, "hashes": ["sha1"], "compression": "zstd"},
             reader={"validate_hash": "sha1"}, also=OF_FIELDS,
             parts=TRAIN),
    Reading("every row in order", "webdataset", "rows", kinds=TWO, also=webdataset_shards(8_192)),
    Reading("plain rows in many shards", "webdataset", "rows", kinds=TWO,
             export={"compression": "none", "shard_size": 3 * 1_072}, reader={"data_key": "json"},
             also=webdataset_shards(3)),
    Reading("shards of whole raw files", "webdataset", "rows",
             export={"shards": "by_file", "shard_size": 3 * 1_072}),
    Reading("no pair has as many tokens as a row", "webdataset", "", reader={"seq_len": 8},
             also=no_rows),
    Reading("load_from_disk", "datasets", ROW, "hf_dataset", kinds=ALL,
             export={"shards": 4}, also=saved_part),
    Reading("shards of whole raw files", "datasets", ROW, "hf_dataset",
             export={"shard_size": 600}, also=saved_part),
    Reading("the older name of a list", "datasets", ROW, "hf_dataset",
             export={"feature_type": "Sequence"}, also=saved_part),
    Reading("lengths and no padding", "datasets", "input_ids labels seq_lengths", "hf_dataset",
             export=UNPADDED),
    Reading("a folder", "datasets", ROW, "arrow", export={"sequences_per_batch": 3},
             reader={"how": "folder"}, also=both_parts),
    Reading("a folder", "datasets", "input_ids segment_ids", "jsonl", reader={"how": "folder"},
             also=both_parts),
    Reading("a builder that finds the parts", "datasets", ROW, "parquet",
             export={"sequences_per_group": 3}, reader={"how": "parquet"}, also=both_parts),
    *(Reading("folders of parts", "datasets", ROW, "easydel", reader={"how": how}, also=both_parts)
      for how in ("parquet", "folder")),
    Reading("rows of their own length", "datasets", "input_ids labels seq_lengths", "jsonl",
             export=UNPADDED, reader={"how": "json", **FILES}),
    *(Reading("rows of their own length", "datasets", "input_ids segment_ids position_ids", format_,
               export={"padding": "none", "columns": USUAL}, reader={"how": "folder"},
               also=both_parts)
      for format_ in ("parquet", "arrow")),
    *(Reading(f"a builder, {codec}", "datasets", ROW, "arrow", kinds=(kind,),
               export={"compression": codec, "shards": 4},
               reader={"how": "arrow", **FILES})
      for codec, kind in (("none", "many"), ("lz4", "bytes"), ("zstd", "bytes"))),
    *(Reading(f"a builder, {codec}", "datasets", EVERY, "jsonl", kinds=(kind,),
               export={"compression": codec, "columns": EVERY.split()[1:], "shards": 4},
               reader={"how": "json", **FILES})
      for codec, kind in (("none", "many"), ("gz", "bytes"), ("zst", "bytes"))),
    *(Reading(f"a folder, {codec}", "datasets", ROW, "parquet", kinds=(kind,),
               export={"compression": codec, "shards": 4}, reader={"how": "folder"},
               also=both_parts)
      for codec, kind in (("zstd", "many"), ("snappy", "bytes"), ("none", "bytes"))),
    Reading("documents in padding-free batches", "trl", "", "hf_dataset", export=LENGTHS,
             also=trl_batches, parts=TRAIN),
    Reading("labels of its own", "trl", "", "hf_dataset",
             export={**LENGTHS, "columns": ["seq_lengths", "labels"]}, also=trl_batches,
             parts=("validation",)),
]
# fmt: on


CASES = [
    pytest.param(case, kind, id=f"{case.format or case.peer}: {case.claim}-{kind}")
    for case in READINGS
    for kind in case.kinds
]


@pytest.mark.parametrize(("case", "kind"), CASES)
def test_a_peer_reads_what_is_known(case: Reading, kind: str, tmp_path: Path):
    python_of(case.peer)  # skips or fails before anything is built
    known = known_dataset(tmp_path, case.format or case.peer, **KINDS[kind], **case.export)
    reader = {n: value(known) if callable(value) else value for n, value in case.reader.items()}

    for part, found in read_parts(case.peer, known.folder, case.parts, **reader).items():
        assert_same(found, case.also(known, part))
        if case.peer == "datasets":
            columns = known.columns(part, padding=case.export.get("padding", True) is True)
            lists = [each for name in case.fields.split() for each in (name, f"{name}.lengths")]
            assert_same(found, {name: columns[name] for name in lists})
        else:
            assert_same(found, {name: FIELDS[name](known, part) for name in case.fields.split()})
