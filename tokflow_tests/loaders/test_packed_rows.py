from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.loaders.rows import Rows, open_rows
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.tiny import EOS, build, declare

A, B, C, D, F, G, H, K, L = b"abcdfghkl"
X = -100

FILES = {"a.jsonl": ["abc", "d"], "b.jsonl": ["f", "", "ghkl"]}
"""Rows of 8, strategy greedy: [f . . g h k l .] and, of a tail, [a b c . d . and padding]."""

OPTIONS = {
    "npy": {"layout": "sequences"},
    "lance": {"layout": "sequences"},
    "mds": {"columns": {"tokens": "token_ids", "segment_ids": "segment_ids"}},
}

PACKED = [
    name
    for name, of in FORMATS.items()
    if of.portions and of.layout(of.options(**OPTIONS.get(name, {}))).is_packed
]

TOKENS_ALONE = [
    {"format": "webdataset"},
    {"format": "mds"},
    {"format": "jsonl", "columns": [], "padding": "none"},
    {"format": "jsonl", "columns": ["attention_mask"]},
]
"""Exports that keep no segments; but for the last, nothing in them tells padding from tokens."""


def export_all(folder: Path, **packing: object) -> Dataset:
    exports = [{"format": name, **OPTIONS.get(name, {})} for name in PACKED]
    exports += [{**of, "name": f"alone-{number}"} for number, of in enumerate(TOKENS_ALONE)]
    dataset = declare(
        folder,
        FILES,
        packing={"strategy": "greedy", "sequence_length": 8, **packing},
        exports=[*exports, "pickle"],
    )
    build(dataset)
    return dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return export_all(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The same, with padding on the left and a token more per row, for the label of the last."""
    return export_all(
        tmp_path_factory.mktemp("left"), sequence_length=7, padding_side="left", label_token=True
    )


def rows_of(dataset: Dataset, name: str, **options: object) -> Rows:
    return open_rows(dataset.folder / "exports" / name, **options)


@pytest.mark.parametrize("name", [name for name in PACKED if name != "webdataset"])
def test_a_label_is_of_the_document_of_its_input(name: str, tiny: Dataset):
    rows = rows_of(tiny, name)

    found = rows[[1, 0]]

    assert found["input_ids"].tolist() == [
        [A, B, C, EOS, D, EOS, EOS, EOS],
        [F, EOS, EOS, G, H, K, L, EOS],
    ]
    assert found["labels"].tolist() == [[B, C, EOS, X, EOS, X, X, X], [EOS, X, X, H, K, L, EOS, X]]
    assert found["segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 0, 0], [1, 1, 2, 3, 3, 3, 3, 3]]
    assert found["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 0], [0, 1, 0, 0, 1, 2, 3, 4]]
    assert (found["loss_mask"] == (found["labels"] != X)).all()
    assert found["index"].tolist() == [1, 0]
    types = "int64 int64 int32 int32 bool int64"
    assert [of.dtype.name for of in found.values()] == types.split()
    assert all(values.flags.c_contiguous for values in found.values())
    assert (len(rows), rows.source.num_tokens, rows.source.sequence_length) == (2, 14, 8)


def test_labels_go_on_across_documents_where_that_is_asked_for(tiny: Dataset):
    rows = rows_of(tiny, "parquet", across_documents=True)

    assert rows[:]["labels"].tolist() == [
        [EOS, EOS, G, H, K, L, EOS, X],
        [B, C, EOS, D, EOS, X, X, X],
    ]
    assert rows.source.fingerprint != rows_of(tiny, "parquet").source.fingerprint


def test_with_a_label_token_every_input_of_a_document_has_its_label(left: Dataset):
    found = rows_of(left, "parquet")[:]

    assert found["input_ids"].tolist() == [[F, EOS, EOS, G, H, K, L], [EOS, EOS, A, B, C, EOS, D]]
    assert found["labels"].tolist() == [[EOS, X, X, H, K, L, EOS], [X, X, B, C, EOS, X, EOS]]
    assert found["segment_ids"].tolist() == [[1, 1, 2, 3, 3, 3, 3], [0, 0, 1, 1, 1, 1, 2]]
    assert found["position_ids"].tolist() == [[0, 1, 0, 0, 1, 2, 3], [0, 0, 0, 1, 2, 3, 0]]


@pytest.mark.parametrize("name", PACKED)
def test_a_field_alone_is_as_among_all(name: str, tiny: Dataset):
    whole = rows_of(tiny, name)[:]

    for field, values in whole.items():
        alone = rows_of(tiny, name, fields=[field])[:]
        assert [*alone] == [of for of in whole if of in (field, "index")]
        assert alone[field].dtype == values.dtype
        assert alone[field].tolist() == values.tolist()


@pytest.mark.parametrize("name", ["parquet", "easydel", "jsonl"])
def test_of_what_is_decoded_no_more_is_kept_than_fields_are_made_from(name: str, tiny: Dataset):
    def kept(*fields: str) -> dict[str, str]:
        portion = rows_of(tiny, name, fields=fields).source.portions[0]
        return {field: values.dtype.name for field, values in portion.items()}

    assert kept("input_ids") == {"token_ids": "uint16"}
    assert kept("input_ids", "labels") == {"token_ids": "uint16", "segment_ids": "uint16"}
    assert kept("position_ids") == {"token_ids": "uint16", "position_ids": "uint16"}


def test_a_last_token_that_is_a_label_alone_is_no_token_of_the_rows(
    tiny: Dataset, left: Dataset, tmp_path: Path
):
    packing = {"strategy": "greedy", "sequence_length": 7, "label_token": True}
    right = declare(tmp_path, FILES, packing=packing, exports=["parquet"])
    build(right)

    for dataset in (tiny, left, right):
        rows = rows_of(dataset, "parquet")
        assert rows.source.num_tokens == np.count_nonzero(rows[:]["segment_ids"])


@pytest.mark.parametrize("number", range(len(TOKENS_ALONE)))
def test_where_segments_are_lost_labels_go_on_but_never_into_padding(
    number: int, tiny: Dataset, left: Dataset
):
    rows, of_left = (rows_of(dataset, f"alone-{number}") for dataset in (tiny, left))

    assert rows.source.fields == ("input_ids", "labels", "loss_mask", "index")
    assert rows[:]["labels"].tolist() == [
        [EOS, EOS, G, H, K, L, EOS, X],
        [B, C, EOS, D, EOS, X, X, X],
    ]
    assert of_left[:]["labels"].tolist() == [[EOS, EOS, G, H, K, L, EOS], [X, X, B, C, EOS, D, EOS]]
    for options in ({"fields": ["segment_ids"]}, {"across_documents": False}):
        with pytest.raises(ConfigError) as raised:
            rows_of(tiny, f"alone-{number}", **options)
        assert raised.value.where.startswith(next(iter(options)))


def test_of_chats_labels_count_where_the_loss_mask_says_so_of_them(tmp_path: Path):
    exports = [{"format": "npy", "layout": "sequences"}, "parquet", "webdataset"]
    dataset = chat_dataset(tmp_path, CHATS, exports=exports)
    build(dataset)
    folder = dataset.folder / "exports/npy/latest"
    tokens, masks = (np.load(folder / of / "train.npy") for of in ("", "loss_mask"))

    for name in ("npy", "parquet"):
        labels = rows_of(dataset, name)[:]["labels"][:, :-1]
        assert labels[labels != X].tolist() == tokens[:, 1:][masks[:, 1:]].tolist()
    assert "loss_mask" not in rows_of(dataset, "webdataset").source.fields


def test_arguments_that_do_not_go_with_packed_rows_are_refused(tiny: Dataset):
    rows = rows_of(tiny, "arrow", sequence_length=8)

    assert rows.source.fingerprint == rows_of(tiny, "arrow").source.fingerprint
    for found, ask in (
        ("4", lambda: rows_of(tiny, "arrow", sequence_length=4)),
        ("'drop'", lambda: rows_of(tiny, "arrow", tail="drop")),
        ("pickle, which is written and never read", lambda: rows_of(tiny, "pickle")),
        ("packed rows", lambda: rows.random_windows(seed=1)),
    ):
        with pytest.raises(ConfigError) as raised:
            ask()
        assert raised.value.found == found
