"""Formats of streams: what stands in their files, to the byte, and what they refuse."""

import gzip
import json
import pickle
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.audit.verify.export import verify_export
from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports import FORMATS, Part
from tokflow.exports.formats import levanter
from tokflow.exports.formats.datatrove import _for_people
from tokflow.exports.formats.modalities import INDEX_START, INDEX_STOP, _index
from tokflow.exports.formats.olmo import GZIP_LEVEL
from tokflow.pipeline.run import build_dataset
from tokflow.store.listed_files import broken_files
from tokflow_tests.chats import CHATS, chat, chat_dataset
from tokflow_tests.disks import full_disk
from tokflow_tests.exports.exporting import MANY_IDS, export, export_as, files_of, read
from tokflow_tests.outputs import content, documents_of, int64, parts, stored
from tokflow_tests.pools.forked import forked
from tokflow_tests.tiny import EOS, build, declare, ids, many_ids, tokenize

SPLIT = {"split": {"parts": {"train": {"documents": 3}, "validation": {"start": 3}}}}
NO_EOS = {"tokenizer": {"kind": "bytes", "eos": "none"}}

TRAIN, REST = b"a\0b\0\0\1\0\1c\0\0\1", b"d\0e\0f\0g\0\0\1"
"""Tokens of the documents "ab", "" and "c", and of "defg"."""

ARCHAI = {
    "dataset_file_path": "raw/*.jsonl",
    "tokenizer": {"name_or_path": "bytes", "model_max_length": None},
    "mapping_column_name": ["text"],
    "validation_split": 0.0,
    "shuffle": False,
    "seed": 42,
    "use_eos_token": True,
}
LITDATA = {
    "chunk_bytes": None,
    "chunk_size": 32_000_000 // 2049 * 2049,
    "compression": None,
    "compression_batch_size": None,
    "compression_level": None,
    "data_format": ["no_header_tensor:20"],
    "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
    "encryption": None,
    "ipc_compression": None,
    "item_loader": "TokensLoader",
    "types": "tensor",
}


def npy(values: Any, dtype: str) -> bytes:
    np.save(file := BytesIO(), np.array(values, dtype))
    return file.getvalue()


def idx(lengths: list[int], firsts: list[int], *, code: int = 8, itemsize: int = 2) -> bytes:
    """Return Megatron's index of sequences, and of documents by their first sequences."""
    pointers = np.cumsum([0, *lengths[:-1]]) * itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, code, len(lengths), len(firsts))
    return head + struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(
        f"<{len(lengths) + len(firsts)}q", *pointers, *firsts
    )  # fmt: skip


def llmc(*tokens: int, magic: int = 20240520, version: int = 1) -> bytes:
    header = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    return header + struct.pack(f"<{len(tokens)}{'H' if version == 1 else 'I'}", *tokens)


def pbin(tokens: bytes, *documents: tuple[int, int]) -> bytes:
    entries = (b"\x8a\x08%b\x8a\x08%b\x86" % tuple(map(_int64, of)) for of in documents)
    index = b"".join([b"\x80\x04](", *entries, b"e."])
    assert pickle.loads(index) == [*documents]
    return struct.pack("<QI", len(tokens), 2) + tokens + index


def _int64(number: int) -> bytes:
    return struct.pack("<q", number)


def chunk(*items: bytes) -> bytes:
    edges = np.cumsum([4 * (len(items) + 2), *map(len, items)])
    return struct.pack(f"<{len(edges) + 1}I", len(items), *edges) + b"".join(items)


def chunks_index(num_bytes: int, num_items: int, num_tokens: int) -> dict[str, Any]:
    sizes = {"chunk_bytes": num_bytes, "chunk_size": num_items, "dim": num_tokens}
    return {"chunks": [{**sizes, "filename": "chunk-0-0.bin"}], "config": LITDATA}


CASES: dict[str, dict[str, Any]] = {
    "archai": {
        "train.npy": npy([*b"ab", EOS, EOS, *b"c", EOS], "<u2"),
        "validation.npy": npy([*b"defg", EOS], "<u2"),
        "config.json": ARCHAI,
    },
    "bin": {"train.bin": TRAIN, "val.bin": REST},
    "datatrove": {
        "train/00000_train.ds": TRAIN,
        "train/00000_train.ds.index": struct.pack("<3Q", 3, 4, 6),
        "train/00000_train.ds.metadata": b"bytes|2\n6\n6.00 T",
        "validation/00000_validation.ds": REST,
        "validation/00000_validation.ds.index": struct.pack("<Q", 5),
        "validation/00000_validation.ds.metadata": b"bytes|2\n5\n5.00 T",
    },
    "litdata": {
        "train/chunk-0-0.bin": chunk(TRAIN[:6], TRAIN[6:8], TRAIN[8:]),
        "train/index.json": chunks_index(32, 3, 6),
        "validation/chunk-0-0.bin": chunk(REST),
        "validation/index.json": chunks_index(22, 1, 5),
    },
    "llmc": {
        "tiny_train_000000.bin": llmc(EOS, *b"ab", EOS, EOS, *b"c"),
        "tiny_val_000000.bin": llmc(EOS, *b"defg"),
    },
    "megatron": {
        "train_text_document.bin": TRAIN,
        "train_text_document.idx": idx([3, 1, 2], [0, 1, 2, 3]),
        "validation_text_document.bin": REST,
        "validation_text_document.idx": idx([5], [0, 1]),
    },
    "modalities": {
        "train.pbin": pbin(TRAIN, (0, 6), (6, 2), (8, 4)),
        "validation.pbin": pbin(REST, (0, 10)),
    },
    "npy": {
        "train.npy": npy([*b"ab", EOS, EOS, *b"c", EOS], "<u2"),
        "offsets/train.npy": npy([0, 3, 4, 6], "<i8"),
        "validation.npy": npy([*b"defg", EOS], "<u2"),
        "offsets/validation.npy": npy([0, 5], "<i8"),
    },
    "olmo": {
        "train/part-0-00000.npy": TRAIN,
        "train/part-0-00000.csv.gz": b"0,3,a.jsonl:0,a.jsonl,1\n3,4,a.jsonl:1,a.jsonl,2\n"
        b"4,6,a.jsonl:2,a.jsonl,3\n",
        "validation/part-0-00000.npy": REST,
        "validation/part-0-00000.csv.gz": b"0,5,a.jsonl:3,a.jsonl,4\n",
    },
}
"""The files of each format, of two parts; JSON is loaded, and .gz decompressed."""


def seen(folder: Path) -> dict[str, Any]:
    """Return the files of an export, as the tables above have them."""
    found: dict[str, Any] = files_of(folder)
    for name, data in found.items():
        if name.endswith(".json"):
            found[name] = json.loads(data)
            assert len(found[name].pop("updated_at", "x" * 32)) == 32
        elif name.endswith(".gz"):
            found[name] = gzip.decompress(data)
    return found


@pytest.mark.parametrize("format_", CASES)
def test_the_files_of_two_parts_are_these_and_no_others(format_: str, tmp_path: Path):
    folder, _ = export_as(format_, tmp_path, ["ab", "", "c", "defg"], attributes=SPLIT)

    assert seen(folder) == CASES[format_]


NARROW, WIDE = (idx([3, 2], [0, 1, 2], code=code, itemsize=of) for code, of in ((8, 2), (4, 4)))


@pytest.mark.parametrize(
    ("format_", "options", "num_ids", "file", "mark"),
    [
        ("archai", {}, 65_535, "train.npy", b"<u2"),
        ("archai", {}, 65_536, "train.npy", b"<i4"),
        ("archai", {}, 2**31, "train.npy", b"<i4"),
        ("megatron", {}, 65_499, "train_text_document.idx", NARROW),
        ("megatron", {}, 65_500, "train_text_document.idx", WIDE),
        ("megatron", {}, 65_536, "train_text_document.idx", WIDE),
        ("megatron", {"dtype": "uint16"}, 65_536, "train_text_document.idx", NARROW),
        ("megatron", {"dtype": "int32"}, 258, "train_text_document.idx", WIDE),
    ],
)
def test_ids_have_the_dtype_that_the_trainers_tool_would_take(
    format_: str, options: dict[str, str], num_ids: int, file: str, mark: bytes, tmp_path: Path
):
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=[format_])
    _, manifest = export(dataset)
    part = replace(parts(dataset, format_)["train"], vocab_size=num_ids)
    (out := tmp_path / "out").mkdir()

    [*FORMATS[format_].write(part, FORMATS[format_].options(**options), out)]

    assert mark in (out / file).read_bytes()
    [own] = read(out, manifest)
    assert own["token_ids"].tolist() == ids("ab", "c")
    assert own["token_ids"].dtype == np.uint16


FRACTIONS = {"train": {"fraction": 0.75}, "validation": {"fraction": 0.25}}
DRAWN = {"validation_split": 0.25, "shuffle": True, "seed": 7}


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        (NO_EOS, {}, {"use_eos_token": False}),
        ({"split": {"parts": FRACTIONS, "seed": 7}}, {}, DRAWN),
        ({}, {"dataset_file_path": "x", **DRAWN}, {"dataset_file_path": "x", **DRAWN}),
        ({}, {"mapping_column_name": ["y"]}, {"mapping_column_name": ["y"]}),
    ],
)
def test_the_config_of_archai_says_how_its_tokens_were_made(
    fields: dict[str, Any], options: dict[str, Any], expected: dict[str, Any], tmp_path: Path
):
    folder, _ = export_as("archai", tmp_path, [*"abcd"], attributes=fields, **options)

    assert (folder / "config.json").read_text() == json.dumps({**ARCHAI, **expected})


@pytest.mark.parametrize(
    ("files", "tokenizer", "expected"),
    [
        ("raw/*.jsonl", "many.json", ("raw/*.jsonl", "many.json")),
        ("{root}/raw/*.jsonl", "{root}/tok/many.json", ("raw/*.jsonl", "tok/many.json")),
        ("file://{root}/raw/*.jsonl", "many.json", ("raw/*.jsonl", "many.json")),
        ("/elsewhere/a.jsonl", "/elsewhere/many.json", ("a.jsonl", "many.json")),
        ("local:///elsewhere/a.jsonl", "many.json", ("a.jsonl", "many.json")),
        (
            ["https://me:secret@host/a/*.jsonl?token=secret", "b.jsonl"],
            "many.json",
            ("https://host/a/*.jsonl and 1 more", "many.json"),
        ),
    ],
)
def test_paths_are_named_from_the_folder_of_the_project_and_urls_without_secrets(
    files: Any, tokenizer: str, expected: tuple[str, str], tmp_path: Path
):
    root = tmp_path / "a project"
    files = files.format(root=root) if isinstance(files, str) else files
    of_file = {"kind": "file", "name": tokenizer.format(root=root)}
    documents = {"text": ["title", "body"]}

    [archai, datatrove] = declare(
        root,
        exports=["archai", "datatrove"],
        raw={"files": files},
        tokenizer=of_file,
        documents=documents,
    ).exports

    named = archai.options
    assert (named.dataset_file_path, named.tokenizer_name) == expected
    assert named.mapping_column_name == ("title", "body")
    assert datatrove.options.tokenizer_name_or_path == expected[1]


@pytest.mark.parametrize(
    ("files", "config", "data_files"),
    [("", "sst2", None), ("", None, None), ("/sst2/*.parquet", None, "sst2/*.parquet")],
)
def test_archai_names_a_dataset_of_the_hub_as_its_from_hub_does(
    files: str, config: str | None, data_files: str | None, tmp_path: Path
):
    raw = {"files": f"hf://datasets/nyu-mll/glue@main{files}", "config": config}
    of_hub = declare(tmp_path, {}, exports=["archai"], raw=raw)
    build(built := declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["archai"]))

    FORMATS["archai"].finish(
        [*parts(built, "archai").values()], of_hub.exports[0].options, tmp_path
    )

    written = json.loads((tmp_path / "config.json").read_text())
    assert [*written.items()][:4] == [
        ("dataset_name", "nyu-mll/glue"),
        ("dataset_config_name", config),
        ("data_dir", None),
        ("data_files", data_files),
    ]
    assert "dataset_file_path" not in written


def test_bin_leaves_the_name_val_to_the_part_that_has_it(tmp_path: Path):
    split = {"parts": {"val": {"documents": 3}, "validation": {"start": 3}}}
    folder, _ = export_as("bin", tmp_path, ["ab", "", "c", "defg"], attributes={"split": split})

    assert seen(folder) == {"val.bin": TRAIN, "validation.bin": REST}


def test_bin_on_a_full_disk_is_an_error_and_not_a_shorter_file(tmp_path: Path):
    build(dataset := declare(tmp_path, {"a.jsonl": ["x" * 1_800]}, exports=["bin"]))
    [written] = parts(dataset, "bin").values()

    def is_refused() -> bool:
        with full_disk(3001), pytest.raises(OSError, match="File too large"):
            [*FORMATS["bin"].write(written, FORMATS["bin"].options(), tmp_path)]
        return True

    assert forked(is_refused)


@pytest.mark.parametrize(
    ("num_tokens", "text"),
    [
        (1, "1.00 T"),
        (999, "999 T"),
        (9_995, "9.99 kT"),
        (99_950, "100 kT"),
        (999_499, "999 kT"),
        (999_500, "1.00 MT"),
        (45_000_000_000, "45.0 GT"),
    ],
)
def test_people_read_three_digits(num_tokens: int, text: str):
    assert _for_people(num_tokens) == text


def as_items(*texts: str) -> list[bytes]:
    """Return the items of texts of which `$` stands for EOS."""
    return [b"".join(b"\0\1" if c == "$" else c.encode() + b"\0" for c in text) for text in texts]


def chunks_of(folder: Path) -> list[list[bytes]]:
    names = [of["filename"] for of in json.loads((folder / "index.json").read_text())["chunks"]]
    return [_items_of((folder / name).read_bytes()) for name in names]


def _items_of(data: bytes) -> list[bytes]:
    (num,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{num + 1}I", data, 4)
    assert (offsets[0], offsets[-1]) == (4 * (num + 2), len(data))
    return [data[start:stop] for start, stop in pairwise(offsets)]


EMPTY = {"a.jsonl": ["", "ab", "", "", "cd", ""], "b.jsonl": ["", "e"]}


@pytest.mark.parametrize(
    ("files", "fields", "options", "expected"),
    [
        (
            {"a.jsonl": ["abc", "d"], "b.jsonl": ["efghijk", "l"]},
            {},
            {"block_size": 3, "shard_size": 14},
            [["abc$", "d$"], ["efghij"], ["k$", "l$"]],
        ),
        (["abc", "def"], {}, {"block_size": 4, "shard_size": 8}, [["abc$"], ["def$"]]),
        (["abcdefgh"], {}, {"block_size": 5, "shard_size": 1}, [["abcde"], ["fgh$"]]),
        (
            ["abcdefghijklmnop"],
            {},
            {"block_size": 4, "shards": 3},
            [["abcdefgh"], ["ijklmnop"], ["$"]],
        ),
        (EMPTY, NO_EOS, {"block_size": 1, "shard_size": 4}, [["ab"], ["cd"], ["e"]]),
        (EMPTY, NO_EOS, {"block_size": 1, "shard_size": 6}, [["ab", "c"], ["d", "e"]]),
    ],
)
def test_chunks_of_litdata_hold_whole_blocks_and_the_last_one_the_rest(
    files: Any, fields: Any, options: dict[str, int], expected: list[list[str]], tmp_path: Path
):
    folder, _ = export_as("litdata", tmp_path, files, attributes=fields, **options)

    assert chunks_of(folder / "train") == [as_items(*texts) for texts in expected]


def test_the_index_of_litdata_tells_chunks_of_the_same_sizes_apart(tmp_path: Path):
    updated = []
    for name, text in {"first": "ab", "same": "ab", "other": "ac"}.items():
        folder, _ = export_as("litdata", tmp_path / name, [text])
        updated.append(json.loads((folder / "train/index.json").read_text())["updated_at"])

    assert updated[0] == updated[1] != updated[2]


def test_llmc_has_the_header_of_llama_3_for_many_ids(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    many = {"tokenizer": MANY_IDS}
    folder, _ = export_as("llmc", tmp_path, ["w65536 w7"], attributes=many, prefix="x")

    expected = llmc(70_000, 65_536, 7, magic=20240801, version=7)
    assert seen(folder) == {"x_train_000000.bin": expected}


@pytest.mark.parametrize(
    ("format_", "names"),
    [
        ("llmc", {f"fineweb_{name}.bin" for name in ("train_000000", "train_000001")}),
        ("npy", {f"fineweb_{name}.npy" for name in ("train_000000", "train_000001")}),
    ],
)
def test_files_hold_whole_documents_and_are_called_as_trainers_glob_them(
    format_: str, names: set[str], tmp_path: Path
):
    later = {"validation": {"start": 3, "documents": 9}, "x": {"start": 99}}
    split = {"split": {"parts": {"train": {"documents": 3}, **later}}}
    options = {"prefix": "fineweb", "shard_size": 10}
    options |= {"eos": "first"} if format_ == "npy" else {}
    texts = ["ab", "c", "defghij", "k"]
    folder, manifest = export_as(format_, tmp_path, texts, attributes=split, **options)

    found = {part: read(folder, manifest, part) for part in ("train", "validation", "x")}

    assert {path.name for path in folder.iterdir() if "train" in path.name} == names
    assert [*folder.glob("fineweb_val_000000.*")]
    tokens = {part: [of["token_ids"].tolist() for of in some] for part, some in found.items()}
    assert tokens == {
        "train": [[EOS, *b"ab", EOS, *b"c"], [EOS, *b"defghij"]],
        "validation": [[EOS, *b"k"]],
        "x": [],
    }


def test_no_file_is_larger_than_llmc_can_seek_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.exports.formats.llmc.MAX_FILE_BYTES", 1024 + 2 * 6 + 1)

    folder, _ = export_as("llmc", tmp_path, ["ab", "c", "d"])

    assert [*seen(folder).values()] == [llmc(EOS, *b"ab", EOS, *b"c"), llmc(EOS, *b"d")]


@pytest.mark.parametrize("damage", [(0, 7), (4, 2), (8, 5)])
def test_a_header_that_is_not_the_files_is_an_error(tmp_path: Path, damage: tuple[int, int]):
    folder, manifest = export_as("llmc", tmp_path, ["abc"])
    position, number = damage
    with (path := folder / "tiny_train_000000.bin").open("r+b") as file:
        file.seek(position)
        file.write(struct.pack("<i", number))

    with pytest.raises(CorruptOutputError) as raised:
        read(folder, manifest)

    assert raised.value.where == str(path)


def test_the_loss_mask_of_chats_stands_beside_the_tokens_of_megatron(tmp_path: Path):
    exports = [{"format": "megatron", "loss_mask": True}]
    dataset = chat_dataset(tmp_path, CHATS, exports=exports)

    files = seen(build(dataset).export("megatron").output.folder)

    loss = [mask for _, mask in documents_of(tokenize(dataset))]
    lengths, firsts = [*map(len, loss)], [*range(len(loss) + 1)]
    assert files["train_text_document.idx"] == idx(lengths, firsts)
    assert files["train_text_loss_mask.idx"] == idx(lengths, firsts, code=1, itemsize=1)
    assert files["train_text_loss_mask.bin"] == bytes(chain.from_iterable(loss))


def test_the_index_of_modalities_holds_bytes_past_4_gib():
    index = pickle.loads(b"".join(_index(int64(3, 2**32 + 2, 1, 2**40))))

    assert index == [(0, 3), (3, 2**32 + 2), (2**32 + 5, 1), (2**32 + 6, 2**40)]


class Harmful:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_an_index_that_is_not_ours_is_refused_and_not_loaded(tmp_path: Path):
    folder, manifest = export_as("modalities", tmp_path, ["ab"])
    path, touched = folder / "train.pbin", tmp_path / "touched"
    harm = pickle.dumps([(0, 6), Harmful(touched)])
    padding = b"." * (-(len(harm) - len(INDEX_START + INDEX_STOP)) % 21)
    path.write_bytes(path.read_bytes()[: 12 + 6] + harm + padding)

    with pytest.raises(CorruptOutputError):
        read(folder, manifest)

    assert not touched.exists()
    pickle.loads(harm)
    assert touched.exists()


def test_an_index_of_modalities_with_a_wrong_byte_or_of_other_data_is_refused(tmp_path: Path):
    folder, manifest = export_as("modalities", tmp_path, ["ab", "c"])
    path = folder / "train.pbin"
    whole = path.read_bytes()
    damaged = [struct.pack("<QI", 8, 2) + whole[12:20] + whole[22:]]  # a token less
    for at in (2, 10, 22, 41):
        data = bytearray(whole)
        data[12 + 10 + len(INDEX_START) + at] ^= 1
        damaged.append(bytes(data))
    for data in damaged:
        path.write_bytes(data)

        with pytest.raises(CorruptOutputError) as raised:
            read(folder, manifest)

        assert raised.value.where == str(path)


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_line_of_olmo_names_the_row_of_the_raw_file_in_quotes_where_it_must(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a,b.jsonl").write_text('{"text": "ab"}\n{"text": 1}\n{"text": "c"}\n')
    rejects = {"documents": {"on_bad_document": "reject"}}
    folder, manifest = export_as("olmo", tmp_path, {"c.jsonl": ["d"]}, attributes=rejects)

    [own] = read(folder, manifest)

    assert lines_of(folder / "train/part-0-00000.csv.gz") == [
        '0,3,"a,b.jsonl:0","a,b.jsonl",1',
        '3,5,"a,b.jsonl:2","a,b.jsonl",3',
        "5,7,c.jsonl:0,c.jsonl,1",
    ]
    assert own["offsets"].tolist() == [0, 3, 5, 7]


def test_the_lines_are_compressed_in_one_go_without_a_time_or_a_name(tmp_path: Path):
    folder, _ = export_as("olmo", tmp_path, ["ab", "", "c"])
    path = folder / "train/part-0-00000.csv.gz"
    text = "".join(f"{line}\n" for line in lines_of(path)).encode()

    # A flush in between, as a TextIOWrapper has at its end, would make other bytes of it.
    assert path.read_bytes()[10:] == gzip.compress(text, GZIP_LEVEL, mtime=0)[10:]
    assert path.read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name, no time


@pytest.mark.parametrize(
    "lines", ["0,3,x,a,1\n3,4,x,a,1\n", "0,3,x,a,1\n4,6,x,a,1\n", "0,3,x,a,1\n3,7,x,a,1\n"]
)
def test_lines_that_are_not_about_every_token_are_refused(lines: str, tmp_path: Path):
    folder, manifest = export_as("olmo", tmp_path, ["ab", "cd"])
    path = folder / "train/part-0-00000.csv.gz"
    path.write_bytes(gzip.compress(lines.encode()))

    with pytest.raises(CorruptOutputError) as raised:
        read(folder, manifest)

    assert raised.value.where == str(path)


def test_what_a_format_cannot_hold_is_refused_where_the_dataset_is_declared(tmp_path: Path):
    split = {"parts": {"train": {"documents": 1}, "dev": {"start": 1}, "val": {"documents": 0}}}
    for format_, fields, found in (
        ("archai", {"split": split}, "dev, val"),
        ("llmc", NO_EOS, "documents without EOS and BOS"),
        ("datatrove", {"tokenizer": {"kind": "file", "name": "a|b.json"}}, "'a|b.json'"),
    ):
        with pytest.raises(ConfigError) as raised:
            declare(tmp_path, {}, exports=[format_], **fields)

        assert raised.value.where.startswith(f"test: exports: {format_}")
        assert raised.value.found == found


@pytest.mark.parametrize(
    ("options", "limit", "fits", "found"),
    [
        (
            {"format": "litdata", "block_size": 1, "shard_size": 92},
            ("MAX_CHUNK_BYTES", 100),
            43,
            "one of 102 bytes",
        ),
        ({"format": "llmc", "shard_size": 6}, ("MAX_FILE_BYTES", 1024 + 2 * 6), 5, "7"),
        ({"format": "megatron"}, ("MAX_DOCUMENT_TOKENS", 3), 2, "4"),
    ],
)
def test_what_is_longer_than_a_format_can_count_is_refused(
    options: Mapping[str, Any],
    limit: tuple[str, int],
    fits: int,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    format_, (name, most) = options["format"], limit
    monkeypatch.setattr(f"tokflow.exports.formats.{format_}.{name}", most)
    build(declare(tmp_path / "fits", {"a.jsonl": ["x" * fits]}, exports=[options]))

    too_long = declare(tmp_path / "long", {"a.jsonl": ["x" * (fits + 1)]}, exports=[options])
    [failed] = build_dataset(too_long).failed

    assert (failed.error.where, failed.error.found) == (f"exports: {format_}", found)


def test_uint16_for_more_ids_is_refused(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    exports = [{"format": "megatron", "dtype": "uint16"}]
    dataset = declare(tmp_path, {"a.jsonl": ["w1"]}, exports=exports, tokenizer=MANY_IDS)

    [failed] = build_dataset(dataset).failed

    assert (failed.error.where, failed.error.found) == (
        "exports: megatron: dtype",
        "uint16 for 70,001 ids",
    )


def values_of(folder: Path, stop: int) -> list[int]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True).result()[:stop].read().result().tolist()


def test_a_cache_of_levanter_has_tokens_and_ends_and_nothing_is_left_to_be_done(tmp_path: Path):
    folder, _ = export_as("levanter", tmp_path, ["abc", "", "defghi"])
    cache = folder / "train" / "input_ids"

    assert values_of(cache / "data", 13) == [*b"abc", EOS, EOS, *b"defghi", EOS, 0]
    assert values_of(cache / "offsets", 5) == [3, 4, 5, 12, 0]
    assert json.loads((folder / "train" / "shard_ledger.json").read_text()) == {
        "total_num_rows": 3,
        "shard_rows": {"": 3},
        "is_finished": True,
        "finished_shards": [""],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": None},
    }
    codec = {"name": "blosc", "configuration": {"clevel": 5}}
    sharding = {"chunk_shape": [256 * 1024], "codecs": [codec]}
    metadata = {  # what levanter asks of an array that it opens
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512 * 256 * 1024]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    for name, dtype in (("data", "int32"), ("offsets", "int64")):
        store = {"driver": "file", "path": str(cache / name)}
        spec = {"driver": "zarr3", "kvstore": store, "metadata": metadata}
        tensorstore.open(spec, open=True, dtype=dtype, shape=[2**54]).result()


RUNS = st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=50), st.just([0] * 45)), max_size=4)


@settings(max_examples=40, deadline=None)
@given(RUNS.filter(any))
def test_the_bytes_of_levanter_are_those_that_tensorstore_writes(runs: list[list[int]]):
    arrays = [np.array(run, dtype=np.int32) for run in runs]
    whole = np.concatenate(arrays)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        for name, size in (("CHUNK", 4), ("CHUNKS_PER_SHARD", 5), ("CHUNKS_AT_ONCE", 2)):
            patch.setattr(levanter, name, size)
        ours, theirs = Path(temporary) / "ours", Path(temporary) / "theirs"

        levanter._write_array(ours, iter(arrays), len(whole), whole.dtype)
        spec = levanter._spec({"driver": "file", "path": str(theirs)}, whole.dtype)
        array = tensorstore.open(spec, create=True).result()
        array[: len(whole)].write(whole).result()

        assert content(ours) == content(theirs)


def test_a_mask_of_zeros_alone_has_no_file_and_is_read(tmp_path: Path):
    accept, unanswered = {"on_no_loss": "accept"}, [chat("never answered")]
    dataset = chat_dataset(tmp_path, unanswered, documents=accept, exports=["levanter"])
    folder, manifest = export(dataset)

    names = [name for name in content(folder / "train" / "assistant_masks") if "data" in name]

    assert names == ["data/zarr.json"]
    assert manifest.counts["train.num_loss_tokens"] == 0
    assert verify_export(stored(folder, manifest), list(parts(dataset, "levanter").values())) == []


def test_files_of_lance_are_counted_and_as_long_as_asked_for(tmp_path: Path):
    folder, _ = export_as("lance", tmp_path, ["abc", "", "defghi"], shard_size=40)

    tokens = lance.dataset(str(folder / "train.lance"))

    assert str(tokens.schema.field("input_ids").type) == "int64"
    assert {name for name in content(folder) if name.startswith("train.lance/")} == {
        *(f"train.lance/data/{number:05d}.lance" for number in range(3)),
        "train.lance/_versions/18446744073709551614.manifest",
        "train.lance/_versions/latest_version_hint.json",
        "train.lance/_transactions/0-00000000-0000-0000-0000-000000000000.txn",
    }
    assert [fragment.count_rows() for fragment in tokens.get_fragments()] == [5, 5, 2]


@pytest.mark.parametrize("layout", ["stream", "sequences"])
def test_two_runs_of_lance_differ_in_the_time_of_the_commit_alone(layout: str, tmp_path: Path):
    (_, first), (folder, second) = (
        export_as("lance", tmp_path / run, ["abc", "", "defghi"], layout=layout, shards=3)
        for run in ("first", "second")
    )

    commits = {name for name in first.files if "/_versions/" in name and name.endswith(".manifest")}
    assert commits
    assert {**first.files, **{name: second.files[name] for name in commits}} == second.files
    assert (first.recipe, first.counts, first.details) == (
        second.recipe,
        second.counts,
        second.details,
    )
    assert broken_files(folder, second) == []
    [version] = lance.dataset(str(folder / "train.lance")).versions()
    assert datetime.now() - version["timestamp"] < timedelta(minutes=10)


def test_what_fails_while_rows_of_lance_are_made_is_said_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build(dataset := declare(tmp_path, {"a.jsonl": ["abc"]}, exports=["lance"]))
    [part] = parts(dataset, "lance").values()

    def damaged(part: Part) -> Any:
        raise CorruptOutputError(where="x", expected="y", found="the shard is damaged", remedy="z")

    monkeypatch.setattr(Part, "stream", damaged)

    with pytest.raises(CorruptOutputError, match="the shard is damaged"):
        [*FORMATS["lance"].write(part, FORMATS["lance"].options(), tmp_path)]
