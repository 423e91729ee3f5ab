from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.cli.closing_summary import left_out
from tokflow.errors import CorruptOutputError
from tokflow.pipeline.mixture import graph_of
from tokflow.split.spans import Split
from tokflow.store.integrity import Reading
from tokflow.tokens.token_source import TokenSource, mapped, taken_in_batches
from tokflow_tests.disks import flip
from tokflow_tests.outputs import int64
from tokflow_tests.tiny import build, declare, ids

TEXTS = ["abc", "", "defg", "😀h", "ijk"]


def make_split(folder: Path, texts: list[str] = TEXTS, **attributes: Any) -> Split:
    dataset = declare(folder, {"a.jsonl": texts}, **attributes)
    build(dataset)
    return graph_of(dataset).open_split("a.jsonl")


def tokens_by_piece(split: Split, part: str) -> list[list[int]]:
    pieces, source = split.spans(part), split.token_source()
    return [
        source.take(int64(start), int64(length)).tolist()
        for start, length in zip(
            pieces.token_start.tolist(), pieces.num_tokens.tolist(), strict=True
        )
    ]


def cut_at(*edges: int) -> dict[str, Any]:
    stops = [*edges[1:], None]
    parts = {
        f"from_{start}": {"start": start, **({} if stop is None else {"characters": stop - start})}
        for start, stop in zip(edges, stops, strict=True)
    }
    return {"boundary": "character", "parts": parts}


def test_neighbours_of_one_part_are_one_span(tmp_path: Path):
    parts = {"train": {"documents": 3}, "validation": {"start": 3, "documents": 1}}

    split = make_split(tmp_path, split={"parts": parts})

    assert {name: of.tolist() for name, of in split.rows("train").items()} == {
        "document": [0],
        "num_documents": [3],
        "char_start": [0],
        "num_chars": [7],
        "token_start": [0],
        "num_tokens": [10],
        "is_cut": [False],
    }
    assert split.parts == ("train", "validation")


def test_no_token_is_copied_where_no_document_is_cut(tmp_path: Path):
    split = make_split(tmp_path, split={"parts": {"train": {"fraction": 0.5}}})

    assert sorted(path.name for path in split.folder.iterdir()) == ["_tokflow", "spans.parquet"]


def test_a_damaged_file_is_found_though_its_few_rows_are_kept(tmp_path: Path):
    split = make_split(tmp_path)
    with Reading():
        assert split.rows("train") is split.rows("train")
    flip(split.folder / "spans.parquet")

    with pytest.raises(CorruptOutputError, match="expected sha256"), Reading():
        split.rows("train")


@pytest.mark.parametrize(
    ("texts", "bos", "edges", "expected"),
    [
        (TEXTS, "none", (0, 5, 8), [["abc", "", "de"], ["fg", "😀"], ["h", "ijk"]]),
        (["abcdefgh"], "none", (0, 2, 5), [["ab"], ["cde"], ["fgh"]]),
        (["abcd"], "first", (0, 1), [["a"], ["bcd"]]),
    ],
)
def test_each_side_of_a_cut_is_tokenized_on_its_own(
    texts: list[str], bos: str, edges: tuple[int, ...], expected: list[list[str]], tmp_path: Path
):
    split = make_split(
        tmp_path, texts, tokenizer={"kind": "bytes", "bos": bos}, split=cut_at(*edges)
    )

    begin = [257] * (bos == "first")
    assert [tokens_by_piece(split, part) for part in split.parts] == [
        [[*begin, *ids(text)] for text in part] for part in expected
    ]


def test_the_sides_of_a_cut_that_no_part_takes_are_counted_and_not_kept(tmp_path: Path):
    parts = {"train": {"start": 1, "characters": 2}}

    split = make_split(tmp_path, ["abcdé"], split={"boundary": "character", "parts": parts})

    assert tokens_by_piece(split, "train") == [ids("bc")]
    assert split.cut_tokens().tolist() == ids("bc")
    assert split.manifest.counts["no_part.num_cut_pieces"] == 2
    assert split.manifest.counts["no_part.num_tokens"] == len(ids("a", "dé"))


def test_a_run_says_what_no_part_takes_of_cut_documents(tmp_path: Path):
    split = {"boundary": "character", "parts": {"train": {"start": 1, "characters": 2}}}
    dataset = declare(tmp_path, {"a.jsonl": ["abcd", "e"]}, split=split)

    [line] = left_out(dataset, build(dataset))

    said = "3 characters of 1 document and 2 spans of cut documents (6 tokens)"
    assert line == f"in no part of the split: {said}"


def test_tokens_of_cut_pieces_follow_those_of_the_shard_and_are_taken_with_them(tmp_path: Path):
    split = make_split(tmp_path, ["ab", "cdef"], split=cut_at(0, 4))
    pieces, source = split.spans("from_0"), split.token_source()

    taken = source.take(pieces.token_start, pieces.num_tokens)

    assert len(source.files[0]) == len(ids("ab", "cdef"))
    assert pieces.token_start.tolist() == [0, 8]
    assert taken.tolist() == ids("ab", "cd")


def test_a_piece_of_no_tokens_at_the_end_of_the_shard_takes_none_of_the_cut_ones(tmp_path: Path):
    split = make_split(
        tmp_path, ["abcd", ""], tokenizer={"kind": "bytes", "eos": "none"}, split=cut_at(0, 1)
    )

    assert tokens_by_piece(split, "from_1") == [[*b"bcd"], []]
    pieces = split.spans("from_1")
    assert split.token_source().take(pieces.token_start, pieces.num_tokens).tolist() == [*b"bcd"]


def test_files_are_read_as_one():
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 99, 50)
    source = TokenSource(tuple(np.split(whole, [0, 7, 7, 30, 50])))

    for _ in range(200):
        start = rng.integers(0, 51, rng.integers(0, 5))
        lengths = np.array([rng.integers(0, 51 - first) for first in start], dtype=np.int64)
        expected = [
            whole[first : first + num].tolist() for first, num in zip(start, lengths, strict=True)
        ]
        joined = [token for tokens in expected for token in tokens]
        assert source.take(start, lengths).tolist() == joined
        batches = list(taken_in_batches(source, start, lengths, 4))
        assert [token for batch in batches for token in batch.tolist()] == joined
        assert all(0 < len(batch) <= 4 for batch in batches)
        assert [
            source.read(*span).tolist() for span in zip(start, start + lengths, strict=True)
        ] == expected
    assert (len(source), source.read().tolist()) == (50, whole.tolist())


FORMS = {
    "characters": {"parts": {"train": {"characters": 5}, "test": {"start": 6, "characters": 3}}},
    "fraction": {"parts": {"train": {"fraction": 0.5}, "test": {"fraction": 0.25}}},
    "hash_fraction": {"parts": {"train": {"hash_fraction": 0.5}, "test": {"hash_fraction": 0.25}}},
    "files": {"parts": {"train": {"files": "b*"}, "test": {"files": "c*"}}},
}


def test_a_part_of_no_characters_cuts_no_document(tmp_path: Path):
    split = {
        "parts": {"train": {"start": 0}, "held_out": {"start": 2, "characters": 0}},
        "boundary": "character",
    }
    dataset = declare(tmp_path, {"a.jsonl": ["abcd"]}, split=split, exports=["bin"])

    folder = build(dataset).export("bin").output.folder

    assert np.fromfile(folder / "train.bin", dtype="<u2").tolist() == ids("abcd")


def resident_bytes(path: Path) -> int:
    """Return how much of a mapped file this process holds in memory."""
    maps = Path("/proc/self/smaps")
    if not maps.exists():
        pytest.skip("only Linux tells what of a mapping is in memory")
    _, _, after = maps.read_text().partition(f"{path}\n")
    return 1024 * int(next(line.split()[1] for line in after.splitlines() if "Rss:" in line))


def test_what_was_read_of_a_mapped_file_is_given_back_and_read_again(tmp_path: Path):
    path = tmp_path / "tokens.bin"
    np.arange(4_000_000, dtype="<u2").tofile(path)
    source = TokenSource((mapped(path, np.dtype("<u2")),))
    run = source.take(np.array([1]), np.array([3_999_999]))
    total = int(run.sum(dtype=np.int64))
    assert not run.flags.writeable  # whoever changes tokens has a copy
    assert resident_bytes(path) > 7_000_000

    source.release()

    assert resident_bytes(path) == 0
    assert int(run.sum(dtype=np.int64)) == total
