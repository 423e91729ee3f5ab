import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.exports import FORMATS
from tokflow.loaders.position import Position, position_of
from tokflow.loaders.rows import Rows, open_rows
from tokflow.pipeline.dataset import Dataset
from tokflow.store.manifest import write_manifest
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.tiny import EOS, build, declare, tokenize

A, B, C, D, E, F, G, H, K, L = b"abcdefghkl"

FILES = {"a.jsonl": ["abc", "de"], "b.jsonl": ["f", "", "ghkl"]}
TOKENS = [A, B, C, EOS, D, E, EOS, F, EOS, EOS, G, H, K, L, EOS]

OPTIONS = {
    "npy": {"shard_size": 10},
    "modalities": {"shard_size": 10},
    "datatrove": {"shard_size": 10},
    "olmo": {"shard_size": 10},
    "litdata": {"block_size": 2, "shard_size": 8},
}
"""So that a row goes on in the next file."""

STREAMS = [name for name, of in FORMATS.items() if of.layout(of.options()).made_of == "stream"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    exports = [{"format": name, **OPTIONS.get(name, {})} for name in STREAMS]
    exports += [{"format": "npy", "name": "whole"}, {"format": "parquet"}]
    dataset = declare(tmp_path_factory.mktemp("streams"), FILES, exports=exports)
    build(dataset)
    return dataset


def rows_of(
    dataset: Dataset, name: str, sequence_length: int | None = 4, **options: object
) -> Rows:
    path = dataset.folder / "exports" / name
    return open_rows(path, sequence_length=sequence_length, **options)


def test_the_label_of_an_input_is_the_token_behind_it_also_at_the_edge_of_a_row(tiny: Dataset):
    rows = rows_of(tiny, "bin")

    found = rows[:]

    assert found["input_ids"][:3].tolist() == [[A, B, C, EOS], [D, E, EOS, F], [EOS, EOS, G, H]]
    assert found["labels"][:3].tolist() == [[B, C, EOS, D], [E, EOS, F, EOS], [EOS, G, H, K]]
    assert found["index"].tolist() == [0, 1, 2, 3]
    assert {name: of.dtype.name for name, of in found.items()} == {
        "input_ids": "int64",
        "labels": "int64",
        "loss_mask": "bool",
        "index": "int64",
    }
    assert all(values.flags.c_contiguous for values in found.values())


def test_the_last_row_is_padded_so_that_every_token_but_the_first_is_a_label_once(tiny: Dataset):
    rows = rows_of(tiny, "bin")

    assert (len(rows), rows.source.num_tokens) == (4, 14)
    assert rows[3]["input_ids"].tolist() == [K, L, EOS, EOS]
    assert rows[3]["labels"].tolist() == [L, EOS, -100, -100]
    assert rows[3]["loss_mask"].tolist() == [True, True, False, False]
    for length in range(1, 20):
        labels = rows_of(tiny, "bin", length)[:]["labels"]
        assert labels[labels != -100].tolist() == TOKENS[1:]


def test_without_eos_the_padding_is_token_0(tmp_path: Path):
    tokenizer = {"kind": "bytes", "eos": "none"}
    dataset = declare(tmp_path, FILES, tokenizer=tokenizer, exports=["bin"])
    build(dataset)

    row = rows_of(dataset, "bin", 6)[-1]

    assert (row["input_ids"].tolist(), row["labels"].tolist()) == (
        [G, H, K, 0, 0, 0],
        [H, K, L, -100, -100, -100],
    )


@pytest.mark.parametrize(("name", "length"), [("bin", 4), ("parquet", None)])
def test_files_with_other_numbers_than_the_manifest_has_are_refused(
    name: str, length: int | None, tmp_path: Path
):
    dataset = declare(tmp_path, FILES, exports=["bin", "parquet"])
    made = build(dataset).export(name)
    counts = {of: num + 4 for of, num in made.manifest.counts.items()}
    write_manifest(made.output.folder, replace(made.manifest, counts=counts), run={})

    with pytest.raises(CorruptOutputError, match=r"expected .* (in a portion|of train), found"):
        rows_of(dataset, name, length)[:]


def test_a_tail_is_dropped_where_that_is_asked_for(tiny: Dataset):
    rows = rows_of(tiny, "bin", tail="drop")

    assert (len(rows), rows.source.num_tokens) == (3, 12)
    assert len(rows_of(tiny, "bin", 7, tail="drop")) == 2
    assert len(rows_of(tiny, "bin", 15, tail="drop")) == 0
    assert rows_of(tiny, "bin", 15, tail="drop")[:]["labels"].shape == (0, 15)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("length", [1, 3, 4, 30])
def test_rows_of_every_stream_are_those_of_its_tokens(name: str, length: int, tiny: Dataset):
    rows = rows_of(tiny, name, length)
    order = np.random.default_rng(1).permutation(len(rows))

    found = rows[order]

    tokens = TOKENS if name != "llmc" else [EOS, *TOKENS[:-1]]
    padded = np.array(tokens + [EOS] * length)
    windows = np.lib.stride_tricks.sliding_window_view(padded, length)
    assert found["input_ids"][:, :2].tolist() == windows[order * length][:, :2].tolist()
    assert found["labels"][found["loss_mask"]].tolist() == [
        label
        for row in order.tolist()
        for label in tokens[row * length + 1 : (row + 1) * length + 1]
    ]


@pytest.mark.parametrize("name", ["npy", "whole", "megatron", "olmo"])
def test_segments_are_the_documents_that_a_row_holds(name: str, tiny: Dataset):
    found = rows_of(tiny, name, 5)[:]

    assert found["segment_ids"].tolist() == [[1, 1, 1, 1, 2], [1, 1, 2, 2, 3], [1, 1, 1, 1, 0]]
    assert found["position_ids"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 0, 1, 0], [0, 1, 2, 3, 0]]
    assert {found[name].dtype for name in ("segment_ids", "position_ids")} == {np.dtype(np.int32)}


def test_labels_stay_within_documents_where_that_is_asked_for(tiny: Dataset):
    found = rows_of(tiny, "npy", across_documents=False)[:]

    assert found["labels"].tolist() == [
        [B, C, EOS, -100],
        [E, EOS, -100, EOS],
        [-100, -100, H, K],
        [L, EOS, -100, -100],
    ]
    assert (found["loss_mask"] == (found["labels"] != -100)).all()


def test_windows_begin_at_any_token(tiny: Dataset):
    source = rows_of(tiny, "npy", 6).source

    found = source.windows(np.array([8, 0, 3]))

    assert source.num_windows == 9
    assert found["index"].tolist() == [8, 0, 3]
    assert found["input_ids"].tolist() == [TOKENS[8:14], TOKENS[:6], TOKENS[3:9]]
    assert found["labels"].tolist() == [TOKENS[9:15], TOKENS[1:7], TOKENS[4:10]]


def test_what_is_gathered_may_be_changed(tiny: Dataset):
    stream, packed = rows_of(tiny, "npy").source, rows_of(tiny, "parquet").source
    numbers = np.arange(3)

    for gather in (stream.gather, stream.windows, packed.gather):
        for values in gather(numbers).values():
            values.fill(7)

    assert numbers.tolist() == [0, 1, 2]
    assert packed.gather(numbers)["input_ids"][0].tolist() != [7, 7, 7, 7]


def test_a_token_store_is_a_stream_of_the_documents_of_its_raw_file(tiny: Dataset):
    rows = open_rows(tokenize(tiny, "b.jsonl").folder, sequence_length=4)

    assert rows.source.name == "tiny/tokens/b.jsonl"
    assert rows[:]["input_ids"].tolist() == [[F, EOS, EOS, G], [H, K, L, EOS]]
    assert rows[:]["segment_ids"].tolist() == [[1, 1, 2, 3], [1, 1, 1, 0]]
    assert rows.source.tokenizer == rows_of(tiny, "bin").source.tokenizer != ""
    with pytest.raises(ConfigError, match="expected no part"):
        open_rows(rows.source.opening.output.folder, "train", 4)


def test_of_chats_labels_count_where_the_loss_mask_says_so_of_them(tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=["npy", "bin"])
    build(dataset)
    mask = np.load(next((dataset.folder / "exports/npy/latest").glob("loss_mask/*.npy")))

    found = rows_of(dataset, "npy", 16)[:]
    lossless = rows_of(dataset, "bin", 16)

    assert found["loss_mask"].ravel()[: len(mask) - 1].tolist() == mask[1:].tolist()
    assert ((found["labels"] != -100) == found["loss_mask"]).all()
    assert lossless.source.fields == ("input_ids", "labels", "index")
    with pytest.raises(ConfigError) as raised:
        rows_of(dataset, "bin", 16, fields=["loss_mask"])
    assert raised.value.where == "fields: loss_mask"


def test_a_field_that_a_format_loses_is_refused_with_the_formats_that_keep_it(tiny: Dataset):
    assert tuple(rows_of(tiny, "npy", fields=["labels"])[0]) == ("labels", "index")
    assert tuple(rows_of(tiny, "npy", fields="labels")[0]) == ("labels", "index")
    for name, options, where in (
        ("bin", {"fields": ["segment_ids"]}, "fields: segment_ids"),
        ("llmc", {"across_documents": False}, "across_documents"),
    ):
        with pytest.raises(ConfigError) as raised:
            rows_of(tiny, name, **options)
        assert raised.value.where == where
        assert "levanter, megatron" in raised.value.remedy


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sequence_length": 3}, "sequence_length=4"),
        ({"tail": "drop"}, "tail='pad'"),
        ({"across_documents": False}, "across_documents=True"),
    ],
)
def test_a_state_of_rows_cut_otherwise_is_refused_with_how_they_were_cut(
    tiny: Dataset, changed: dict[str, Any], told: str
):
    path = tiny.folder / "exports/npy"
    state = Position(1).state(open_rows(path, sequence_length=4).epochs())

    other = open_rows(path, **{"sequence_length": 4, **changed})

    with pytest.raises(ConfigError, match=f"; open the rows .*npy/train.*{told}.*, or begin"):
        position_of(state, other.epochs())


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, "None"),
        ({"sequence_length": 4.0}, "4.0, of float"),
        ({"part": "test", "sequence_length": 4}, "'test'"),
        ({"sequence_length": 4, "tail": "keep"}, "'keep'"),
        ({"sequence_length": 4, "fields": ["tokens"]}, "'tokens'"),
    ],
)
def test_arguments_that_do_not_go_with_a_stream_are_refused(
    options: dict[str, Any], found: str, tiny: Dataset
):
    with pytest.raises(ConfigError) as raised:
        open_rows(tiny.folder / "exports/bin", **options)

    assert raised.value.found == found


@pytest.mark.parametrize(("path", "found"), [("exports/bn", "no 'bn'"), ("split/b.jsonl", "split")])
def test_what_gives_no_rows_is_named(path: str, found: str, tiny: Dataset):
    with pytest.raises(MissingOutputError) as raised:
        open_rows(tiny.folder / path, sequence_length=4)

    assert raised.value.found.startswith(found)


def test_the_fingerprint_tells_rows_apart_and_fields_do_not_change_it(tiny: Dataset):
    fingerprint = rows_of(tiny, "npy").source.fingerprint

    assert rows_of(tiny, "npy", fields=["labels"]).source.fingerprint == fingerprint
    others = [
        rows_of(tiny, "bin"),
        rows_of(tiny, "npy", 5),
        rows_of(tiny, "npy", tail="drop"),
        rows_of(tiny, "npy", across_documents=False),
    ]
    assert len({fingerprint, *(rows.source.fingerprint for rows in others)}) == 5


@pytest.mark.parametrize(("name", "length"), [("npy", 4), ("parquet", None)])
def test_a_source_is_pickled_without_its_tokens(name: str, length: int | None, tiny: Dataset):
    rows = rows_of(tiny, name, length).shuffled(1)
    pickled = pickle.dumps(rows)

    before, after = rows[:], pickle.loads(pickled)[:]

    assert pickle.dumps(rows) == pickled
    assert pickle.loads(pickled) == rows
    assert {name: of.tolist() for name, of in after.items()} == {
        name: of.tolist() for name, of in before.items()
    }


def test_a_part_without_tokens_has_no_rows(tmp_path: Path):
    parts = {"train": {"documents": 5}, "test": {"start": 5, "documents": 1}}
    lengths = {"bin": 4, "npy": 4, "parquet": None}
    dataset = declare(tmp_path, FILES, split={"parts": parts}, exports=[*lengths])
    build(dataset)

    for name, length in lengths.items():
        rows = open_rows(dataset.folder / "exports" / name, "test", sequence_length=length)

        assert (len(rows), rows.source.num_tokens) == (0, 0)
        shapes = {name: of.shape for name, of in rows[:].items() if name != "index"}
        assert shapes == dict.fromkeys([of for of in rows.source.fields if of != "index"], (0, 4))
