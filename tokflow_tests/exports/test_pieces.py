"""Parts of exports as tables."""

from pathlib import Path

import numpy as np
import pytest

from tokflow.exports import Export
from tokflow.exports.reading import open_export
from tokflow.pipeline.results import BuildResult
from tokflow_tests.chats import chat_dataset
from tokflow_tests.tiny import build, declare, ids

STREAMS = ["bin", "datatrove", "llmc", "megatron", "litdata", "npy"]
ROWS = ["parquet", "jsonl", "mds", "lance"]
SEQUENCES = [{"format": "lance", "layout": "sequences"} if of == "lance" else of for of in ROWS]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    texts = {"a.jsonl": ["one", "", "three"], "b.jsonl": ["vier", "5"]}
    parts = {"train": {"documents": 2}, "validation": {"start": 2, "documents": 9}}
    folder = tmp_path_factory.mktemp("tables")
    exports = [*STREAMS, *SEQUENCES]
    return build(declare(folder, texts, exports=exports, split={"parts": parts}))


def opened(built: BuildResult, name: str) -> Export:
    return open_export(built.export(name).folder)


@pytest.mark.parametrize("name", STREAMS)
def test_of_a_stream_a_row_is_a_document_with_its_place_and_its_tokens(
    built: BuildResult, name: str
):
    table = opened(built, name).to_arrow("train")

    assert table.select(["raw_file", "row", "position", "num_tokens"]).to_pylist() == [
        {"raw_file": "a.jsonl", "row": 0, "position": 0, "num_tokens": 4},
        {"raw_file": "a.jsonl", "row": 1, "position": 4, "num_tokens": 1},
        {"raw_file": "b.jsonl", "row": 0, "position": 5, "num_tokens": 5},
        {"raw_file": "b.jsonl", "row": 1, "position": 10, "num_tokens": 2},
    ]
    documents = [ids(text) for text in ("one", "", "vier", "5")]
    if opened(built, name).layout.eos_first:
        documents = [[*of[-1:], *of[:-1]] for of in documents]
    assert table["token_ids"].to_pylist() == documents
    assert opened(built, name).to_arrow("validation")["raw_file"].to_pylist() == ["a.jsonl"]


@pytest.mark.parametrize("name", ROWS)
def test_of_sequences_a_row_is_a_sequence_with_all_fields_that_the_format_keeps(
    built: BuildResult, name: str
):
    export = opened(built, name)

    table = export.to_arrow("train")

    pieces = list(export.read("train"))
    fields = {key: np.concatenate([of[key] for of in pieces]) for key in pieces[0]}
    assert set(table.column_names) == {"token_ids", *fields}
    for key, values in fields.items():
        assert table[key].to_pylist() == values.tolist()


@pytest.mark.parametrize("name", ["bin", "parquet"])
def test_the_first_rows_and_some_columns_are_those_of_the_whole(built: BuildResult, name: str):
    export = opened(built, name)
    whole = export.to_arrow("train")

    for limit in (0, 1, 2, len(whole), len(whole) + 5):
        assert export.to_arrow("train", limit=limit).equals(whole[:limit])
    for column in whole.column_names:
        assert export.to_arrow("train", [column], 2).equals(whole.select([column])[:2])


def test_of_chats_there_is_a_loss_mask_beside_the_tokens(tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["datatrove"])
    export = open_export(build(dataset).export("datatrove").folder)

    table = export.to_arrow("train")

    masks = np.concatenate([of["loss_mask"] for of in export.read("train")])
    assert [of for row in table["loss_mask"].to_pylist() for of in row] == masks.tolist()


def test_a_dataframe_has_an_array_in_each_row(built: BuildResult):
    frame = opened(built, "bin").to_pandas("train", ["raw_file", "token_ids"], limit=2)

    assert list(frame.columns) == ["raw_file", "token_ids"]
    assert frame["token_ids"][1].dtype == np.uint16
    assert frame["token_ids"][1].tolist() == ids("")


def test_a_part_without_documents_is_a_table_without_rows(tmp_path: Path):
    parts = {"train": {"documents": 1}, "none": {"start": 5, "documents": 1}}
    dataset = declare(
        tmp_path, {"a.jsonl": ["one"]}, exports=["bin", "parquet"], split={"parts": parts}
    )
    built = build(dataset)

    for name in ("bin", "parquet"):
        export = opened(built, name)
        table = export.to_arrow("none")
        assert (len(table), table.schema) == (0, export.to_arrow("train").schema)
