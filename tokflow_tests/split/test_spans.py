from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.cli.closing_summary import left_out
from tokflow.errors import CorruptOutputError
from tokflow.pipeline.mixture import graph_of
from tokflow.split import Split, stage
from tokflow.store.integrity import Reading
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokens import TokenSource, mapped, taken_in_batches
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
    assert {path.name for path in split.folder.iterdir()} == {"_tokflow", "spans.parquet"}


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


def test_the_sides_of_a_cut_that_no_part_takes_are_counted_told_and_not_kept(tmp_path: Path):
    parts = {"boundary": "character", "parts": {"train": {"start": 1, "characters": 2}}}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdé", "e"]}, split=parts)

    [line] = left_out(dataset, build(dataset))

    split = graph_of(dataset).open_split("a.jsonl")
    said = "4 characters of 1 document and 2 spans of cut documents (8 tokens)"
    assert line == f"in no part of the split: {said}"
    assert tokens_by_piece(split, "train") == [ids("bc")]
    assert split.cut_tokens().tolist() == ids("bc")
    assert split.manifest.counts["no_part.num_cut_pieces"] == 2
    assert split.manifest.counts["no_part.num_tokens"] == len(ids("a", "dé", "e"))


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


LONG = "größe 漢字 👍🏽 don't stop\n\n  12,345 <|endoftext|> and on " * 9


STARTS = {f"from_{start}": {"start": start, "characters": 7} for start in range(0, 350, 7)}
CUT_EVERY_7 = {"boundary": "character", "parts": STARTS}


@pytest.mark.parametrize("batch_bytes", [stage.BATCH_BYTES, 50])
def test_many_spans_of_one_document_have_the_reference_s_tokens_of_each(
    batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["before", LONG, "after"]},
        tokenizer={"kind": "trained", "vocab_size": 300},
        split=CUT_EVERY_7,
    )
    monkeypatch.setattr(stage, "BATCH_BYTES", batch_bytes)

    build(dataset)

    graph = graph_of(dataset)
    split, tokenizer = graph.open_split("a.jsonl"), graph.tokenizer
    whole = "before" + LONG
    sides = [whole[start : start + 7] for start in range(7, 350, 7)]
    expected = open_reference(tokenizer).encode(to_texts(["before", LONG[:1], *sides]))
    cut = [[*expected.document(side).tolist(), tokenizer.eos_id] for side in range(1, 51)]
    assert split.cut_tokens().tolist() == [token for side in cut for token in side]
