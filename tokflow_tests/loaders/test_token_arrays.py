import pickle
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports import FORMATS
from tokflow.exports.reading import open_export
from tokflow.loaders import open_tokens
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.loaders.test_stream_rows import FILES, OPTIONS, STREAMS, TOKENS
from tokflow_tests.tiny import EOS, build, declare, tokenize

OFFSETS = [0, 4, 7, 9, 10, 15]

KEEPING_OFFSETS = [
    name for name in STREAMS if "offsets" in FORMATS[name].layout(FORMATS[name].options()).keeps
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    exports = [{"format": name, **OPTIONS.get(name, {})} for name in STREAMS]
    parts = {"train": {"documents": 5}, "test": {"start": 5}}
    dataset = declare(
        tmp_path_factory.mktemp("streams"),
        FILES,
        exports=[*exports, "parquet"],
        split={"parts": parts},
    )
    build(dataset)
    return dataset


def export_of(dataset: Dataset, name: str) -> Path:
    return dataset.folder / "exports" / name


@pytest.mark.parametrize("name", STREAMS)
def test_every_stretch_of_a_stream_is_that_of_all_its_tokens(name: str, tiny: Dataset):
    tokens = open_tokens(export_of(tiny, name), "train")
    read = open_export(export_of(tiny, name)).read("train")
    expected = np.concatenate([of["token_ids"] for of in read])

    assert (len(tokens), tokens.shape, tokens.dtype) == (15, (15,), np.uint16)
    np.testing.assert_array_equal(tokens, expected)
    for start in range(16):
        for stop in range(16):
            found = tokens[start:stop]
            assert (found.tolist(), found.dtype) == (expected[start:stop].tolist(), np.uint16)
    assert (tokens[3], tokens[-1]) == (expected[3], expected[-1])
    assert tokens[[14, 0, -2]].tolist() == expected[[14, 0, -2]].tolist()
    assert tokens[::4].tolist() == expected[::4].tolist()


@pytest.mark.parametrize("short_run", [0, 256])
def test_spans_are_taken_end_to_end(short_run: int, tiny: Dataset, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.loaders.token_arrays.SHORT_RUN", short_run)
    tokens = open_tokens(export_of(tiny, "npy"), "train")

    taken = tokens.take(np.array([9, 0, 3]), np.array([6, 0, 4]))

    assert taken.tolist() == [*TOKENS[9:], *TOKENS[3:7]]
    assert tokens.take([], []).dtype == np.uint16


@pytest.mark.parametrize("name", KEEPING_OFFSETS)
def test_documents_are_found_across_files(name: str, tiny: Dataset):
    tokens = open_tokens(export_of(tiny, name), "train")

    assert tokens.offsets.tolist() == OFFSETS
    assert tokens.num_documents == 5
    assert [tokens.document(number).tolist() for number in (0, 3, -1)] == [
        [*b"abc", EOS],
        [EOS],
        [*b"ghkl", EOS],
    ]
    assert [tokens.documents(*span) for span in ((0, 4), (3, 8), (9, None), (5, 5))] == [
        range(1),
        range(3),
        range(3, 5),
        range(0),
    ]


def test_a_token_store_is_an_array_of_its_documents(tmp_path: Path):
    shard = tokenize(declare(tmp_path, FILES), "b.jsonl")

    tokens = open_tokens(shard.folder)

    assert tokens[:].tolist() == TOKENS[7:]
    assert tokens.document(2).tolist() == [*b"ghkl", EOS]


def test_a_slice_of_a_mapped_file_is_a_view_and_a_pickle_has_none_of_them(tiny: Dataset):
    tokens = open_tokens(export_of(tiny, "bin"), "train")
    pickled = pickle.dumps(tokens)

    stretch = tokens[2:9]

    assert stretch.base is not None
    assert not stretch.flags.writeable
    assert np.shares_memory(stretch, tokens[5:6])
    assert pickle.dumps(tokens) == pickled
    assert pickle.loads(pickled)[:].tolist() == TOKENS


def test_a_part_without_tokens_is_an_empty_array(tiny: Dataset):
    tokens = open_tokens(export_of(tiny, "npy"), "test")

    assert (len(tokens), tokens[:].tolist(), tokens.num_documents) == (0, [], 0)


def test_arrays_of_the_same_tokens_are_equal(tiny: Dataset):
    tokens, again = (open_tokens(export_of(tiny, "npy"), "train") for _ in range(2))

    assert {tokens} == {again} != {open_tokens(export_of(tiny, "npy"), "test")}
    assert len(repr(tokens)) < 300


def test_what_cannot_be_opened_or_taken_is_refused(tiny: Dataset, tmp_path: Path):
    tokens = open_tokens(export_of(tiny, "bin"), "train")
    for found, ask in (
        ("packed rows", lambda: open_tokens(export_of(tiny, "parquet"), "train")),
        ("none named", lambda: open_tokens(export_of(tiny, "bin"))),
        ("bin, which loses that", lambda: tokens.document(0)),
    ):
        with pytest.raises(ConfigError) as raised:
            ask()
        assert raised.value.found == found
    for wrong, said in (
        (15, "expected numbers from 0 to 14, found 15"),
        (-16, "expected numbers from 0 to 14, found -1"),
        ([True] * 15, "expected a number, a slice or a list of numbers, found one of bool"),
    ):
        with pytest.raises(IndexError, match=said):
            tokens[wrong]
    for starts, lengths, said in (
        ([9], [7], "expected spans within 0 to 15, found one to 16"),
        ([-1], [1], "expected spans within 0 to 15, found one to -1"),
        ([1, 2], [3], "expected 2 lengths, from 0 on, found "),
        ([1, 2], [3, -2], "expected 2 lengths, from 0 on, found "),
    ):
        with pytest.raises(IndexError, match=said):
            tokens.take(starts, lengths)
    with pytest.raises(MissingOutputError):
        open_tokens(tmp_path)
