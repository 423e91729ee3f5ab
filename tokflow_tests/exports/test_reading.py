"""Exports as users open them: by path, at a URL, as arrays, as tables; and damaged files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokflow
from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.exports import FORMATS, Export
from tokflow.exports.reading import open_export
from tokflow_tests.chats import chat_dataset
from tokflow_tests.exports.exporting import export_as, read
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, build, declare, ids

STREAMS = ["bin", "datatrove", "llmc", "megatron", "litdata", "npy"]
ROWS = ["parquet", "jsonl", "mds", "lance"]
SEQUENCES = [{"format": "lance", "layout": "sequences"} if of == "lance" else of for of in ROWS]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {"a.jsonl": ["one", "", "three"], "b.jsonl": ["vier", "5"]}
    later = {"validation": {"start": 2, "documents": 9}, "none": {"start": 99}}
    parts = {"train": {"documents": 2}, **later}
    folder = tmp_path_factory.mktemp("tables")
    formats = [*STREAMS, *SEQUENCES, "pickle"]
    dataset = declare(folder, texts, exports=formats, split={"parts": parts})
    build(dataset)
    return dataset.folder / "exports"


def opened(exports: Path, name: str) -> Export:
    return tokflow.open_export(exports / name)


@pytest.mark.parametrize(
    "inside", ["", "latest", "latest/train.bin", "latest/_tokflow/manifest.json"]
)
def test_an_export_is_opened_by_its_folder_its_link_or_a_file_in_it(inside: str, exports: Path):
    export = opened(exports, f"bin/{inside}")

    assert (export.format_name, export.layout.made_of) == ("bin", "stream")
    assert export.folder == (exports / "bin" / "latest").resolve()


def test_what_cannot_be_read_says_so(exports: Path):
    with pytest.raises(ConfigError, match="expected one of the parts train, validation"):
        opened(exports, "bin").read("test")
    with pytest.raises(ConfigError, match="pickle, which is written and never read"):
        opened(exports, "pickle").read("train")


def test_what_is_no_export_is_named_and_what_to_open_instead(exports: Path, tmp_path: Path):
    [shard] = (exports.parent / "tokens" / "a.jsonl").glob("[0-9a-f]*")
    nearby = f"{exports / 'bin'}, {exports / 'datatrove'}"
    for path, found, remedy in (
        (shard / "tokens.bin", "tokens of a.jsonl", nearby),
        (exports / "bim", f"no 'bim' in {exports}", nearby),
        (tmp_path, "no _tokflow/manifest.json", "<store>/<dataset>/exports/<name>"),
    ):
        with pytest.raises(MissingOutputError) as raised:
            tokflow.open_export(path)

        assert raised.value.where == str(path)
        assert raised.value.found.startswith(found)
        assert remedy in raised.value.remedy


def test_an_export_of_which_a_file_is_cut_short_is_not_opened(tmp_path: Path):
    folder, _ = export_as("bin", tmp_path, ["abc"])
    (folder / "train.bin").write_bytes(b"x")

    with pytest.raises(CorruptOutputError) as raised:
        tokflow.open_export(folder)

    assert raised.value.where == str(folder / "train.bin")


@pytest.mark.parametrize("name", STREAMS)
def test_of_a_stream_a_row_is_a_document_with_its_place_and_its_tokens(exports: Path, name: str):
    table = opened(exports, name).to_arrow("train")

    assert table.select(["raw_file", "row", "position", "num_tokens"]).to_pylist() == [
        {"raw_file": "a.jsonl", "row": 0, "position": 0, "num_tokens": 4},
        {"raw_file": "a.jsonl", "row": 1, "position": 4, "num_tokens": 1},
        {"raw_file": "b.jsonl", "row": 0, "position": 5, "num_tokens": 5},
        {"raw_file": "b.jsonl", "row": 1, "position": 10, "num_tokens": 2},
    ]
    documents = [ids(text) for text in ("one", "", "vier", "5")]
    if opened(exports, name).layout.eos_first:
        documents = [[*of[-1:], *of[:-1]] for of in documents]
    assert table["token_ids"].to_pylist() == documents
    assert opened(exports, name).to_arrow("validation")["raw_file"].to_pylist() == ["a.jsonl"]


@pytest.mark.parametrize("name", ROWS)
def test_of_sequences_a_row_is_a_sequence_with_all_fields_that_the_format_keeps(
    exports: Path, name: str
):
    table = opened(exports, name).to_arrow("train")

    pieces = list(opened(exports, name).read("train"))
    fields = {key: np.concatenate([of[key] for of in pieces]) for key in pieces[0]}
    assert set(table.column_names) == {"token_ids", *fields}
    for key, values in fields.items():
        assert table[key].to_pylist() == values.tolist()


@pytest.mark.parametrize("name", ["bin", "parquet"])
def test_some_rows_and_columns_are_those_of_the_whole_and_of_no_documents_none(
    exports: Path, name: str
):
    export = opened(exports, name)
    whole, none = export.to_arrow("train"), export.to_arrow("none")

    for limit in (0, 1, 2, len(whole), len(whole) + 5):
        assert export.to_arrow("train", limit=limit).equals(whole[:limit])
    for column in whole.column_names:
        assert export.to_arrow("train", [column], 2).equals(whole.select([column])[:2])
    assert (len(none), none.schema) == (0, whole.schema)


def test_of_chats_there_is_a_loss_mask_beside_the_tokens(tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["datatrove"])
    export = open_export(build(dataset).export("datatrove").folder)

    table = export.to_arrow("train")

    masks = np.concatenate([of["loss_mask"] for of in export.read("train")])
    assert [of for row in table["loss_mask"].to_pylist() for of in row] == masks.tolist()


def test_a_dataframe_has_an_array_in_each_row(exports: Path):
    frame = opened(exports, "bin").to_pandas("train", ["raw_file", "token_ids"], limit=2)

    assert list(frame.columns) == ["raw_file", "token_ids"]
    assert frame["token_ids"][1].dtype == np.uint16
    assert frame["token_ids"][1].tolist() == ids("")


Damage = Callable[[bytes], bytes]

ROW = b'{"input_ids":[97,98,256,99],"segment_ids":[1,1,1,2]}\n'


def cut(stop: int) -> Damage:
    return lambda data: data[:stop]


def put(start: int, found: bytes) -> Damage:
    return lambda data: data[:start] + found + data[start + len(found) :]


def lines(content: bytes) -> Damage:
    return lambda _: content


DAMAGED: dict[str, tuple[str, list[Damage]]] = {
    "jsonl": (
        "train-00000-of-00001.jsonl",
        [
            lines(ROW[:-2]),
            lines(ROW.replace(b"99]", b"99,5]")),
            lines(ROW + b'{"input_ids":[256,256,256,256]}'),
            lines(ROW.replace(b"97,98,256,99", b'"a"')),
            lines(ROW),
            lines(3 * ROW),
        ],
    ),
    "litdata": ("train/chunk-0-0.bin", [cut(-2)]),
    "mds": ("train/shard.00000.mds", [cut(-1)]),
    "megatron": (
        "train_text_document.idx",
        [put(0, b"MMAP"), put(9, b"\2"), put(17, b"\6"), cut(-1)],
    ),
    "modalities": ("train.pbin", [cut(size) for size in (40, 17, 12, 11, 0)]),
    # Another checksum of a header, no gzip member, no such deflated data.
    "webdataset": ("train/shard_00000000.tar", [put(0, b"x"), put(512, b"x"), put(520, bytes(20))]),
}


@pytest.mark.parametrize(
    ("format_", "number"),
    [(name, number) for name, (_, damages) in DAMAGED.items() for number in range(len(damages))],
)
def test_a_damaged_file_is_an_error_that_names_it(format_: str, number: int, tmp_path: Path):
    folder, manifest = export_as(format_, tmp_path, ["ab", "c"])
    name, damages = DAMAGED[format_]
    path = folder / name
    path.write_bytes(damages[number](path.read_bytes()))

    with pytest.raises(CorruptOutputError) as raised:
        read(folder, manifest)

    assert raised.value.where == str(path)


SPLIT = {
    "lance": {"shard_size": 320},
    "npy": {"shard_size": 80},
    "levanter": {},
    "mds": {"shard_size": 700},
    "litdata": {"block_size": 4, "shard_size": 80},
    **{name: {"shard_size": 80} for name in ("datatrove", "llmc", "modalities", "olmo")},
    **{
        name: {"shards": 2}
        for name in ("arrow", "easydel", "hf_dataset", "jsonl", "parquet", "webdataset")
    },
}
"""Options by which a part of some 70 tokens has several files."""

READ = [name for name, of in FORMATS.items() if of.is_read]


def _exports() -> list[dict[str, Any]]:
    return [{"format": name, **SPLIT.get(name, {})} for name in READ]


def _content(export: Export) -> list[dict[str, list[Any]]]:
    fields = export.read("train")
    return [{name: values.tolist() for name, values in some.items()} for some in fields]


def _files_here(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in found} - {
        "_tokflow/manifest.json",
        "_tokflow/run.json",
    }


HEADED = {"lance", "levanter", "modalities"}
"""Formats of which some files tell where the portions are; of the others the manifest does."""


def test_every_format_is_read_from_an_empty_disk_as_on_the_disk_it_was_made_on(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    made = build(declare(tmp_path, TEXTS, exports=_exports(), store=url))
    local = {name: _content(open_export(made.export(name).output.folder)) for name in READ}
    shutil.rmtree(tmp_path / "cache")

    at_url = {name: open_export(f"{url}/tiny/exports/{name}") for name in READ}
    first = {name: export.portions("train")[0] for name, export in at_url.items()}
    opened = {name: _files_here(export.folder) for name, export in at_url.items()}
    for portion in first.values():
        portion.read()
    read = {name: _files_here(export.folder) for name, export in at_url.items()}

    assert {name for name, files in opened.items() if files} == HEADED
    for name, portion in first.items():
        assert read[name] == opened[name] | {*portion.files}
    assert {name: _content(export) for name, export in at_url.items()} == local


def test_files_of_a_part_that_is_read_in_order_come_several_at_a_time(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    build(declare(tmp_path, TEXTS, exports=[{"format": "llmc", "shard_size": 40}], store=url))
    shutil.rmtree(tmp_path / "cache")
    export = open_export(f"{url}/tiny/exports/llmc")

    next(export.read("train"))

    assert _files_here(export.folder) == {of for of in export.manifest.files if "train" in of}
