"""Rows of any documents: those of a plain model, and what holds by every strategy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.sequences.packing import (
    PackingConfig,
    PackingCounts,
    PackingResult,
    Segments,
    Strategy,
    pack_spans,
    pack_tails,
)
from tokflow.sequences.segments import SpanMask
from tokflow.tokens import TokenSource
from tokflow_tests.fuzz import packing as plain
from tokflow_tests.outputs import int64
from tokflow_tests.sequences.test_packing import Token, columns, lengths_of_rows

no_deadline = settings(deadline=None, max_examples=60)
"""A busy machine is no failure; the fuzz draws more of them."""


Row = list[tuple[Token, int, int]]
"""Of each segment the first token, its size, and how many of these are repeated."""


@dataclass(frozen=True)
class Rows:
    all: list[Row]
    """Those of the files, then those of their tails."""
    counts: PackingCounts
    turns: Counter[str]
    """Turns cut and dropped."""


def pack_files(
    files: Sequence[np.ndarray], config: PackingConfig, masks: Sequence[np.ndarray] | None = None
) -> Rows:
    """Pack files and their tails as an export does; `masks` of their tokens, end to end."""
    every = masks or [np.ones(num_tokens.sum(), np.uint8) for num_tokens in files]
    starts = [np.cumsum(num_tokens) - num_tokens for num_tokens in files]
    of_files = [
        SpanMask(TokenSource((mask,)), start) for mask, start in zip(every, starts, strict=True)
    ]
    packed = [
        pack_spans(num_tokens, config, mask.num_supervised)
        for num_tokens, mask in zip(files, of_files, strict=True)
    ]
    tails: list[Segments] = []
    owners: list[Token] = []
    is_begun, tail_starts, first = [], [], 0
    turns: Counter[str] = Counter()
    for file, one in enumerate(packed):
        tail = one.segments.chosen(one.segments.sequence == one.num_sequences)
        tails.append(tail)
        owners += [(file, piece, 0) for piece in tail.span.tolist()]
        finished = one.segments.chosen(one.segments.sequence < one.num_sequences)
        is_begun.append(np.isin(tail.span, finished.span))
        tail_starts.append(starts[file][tail.span] + first)
        first += len(every[file])
        turns.update(of_files[file].turn_counts(whole_spans(files[file]), one.segments))
    names = ("sequence", "token_in_span", "num_tokens", "num_repeated")
    joined = {name: np.concatenate([getattr(tail, name) for tail in tails]) for name in names}
    whole = Segments(span=np.arange(len(owners)), **joined)
    mask = SpanMask(TokenSource(tuple(every)), np.concatenate(tail_starts))
    begun = np.concatenate(is_begun) if config.drop_unsupervised else None
    of_tails = pack_tails(whole, config, mask.num_supervised, begun)
    turns.update(mask.turn_counts(whole, of_tails.segments))
    counts = of_tails.counts
    for one in packed:
        counts += one.counts
    rows: list[Row] = []
    for file, one in enumerate(packed):
        of_file = rows_of(one, [(file, piece, 0) for piece in range(len(files[file]))])
        rows += of_file[: one.num_sequences]
    return Rows(rows + rows_of(of_tails, owners), counts, turns)


def whole_spans(num_tokens: np.ndarray) -> Segments:
    zeros, spans = np.zeros_like(num_tokens), np.arange(len(num_tokens))
    return Segments(
        sequence=zeros, span=spans, token_in_span=zeros, num_tokens=num_tokens, num_repeated=zeros
    )


def rows_of(packed: PackingResult, owners: Sequence[Token]) -> list[Row]:
    rows: list[Row] = []
    for row, piece, first, size, repeated in zip(*columns(packed), strict=True):
        file, document, _ = owners[piece]
        rows += [[] for _ in range(row + 1 - len(rows))]
        rows[row].append(((file, document, first), size, repeated))
    return rows


def num_repeated(rows: Sequence[Row]) -> int:
    return sum(repeated for row in rows for _, _, repeated in row)


def tokens_in(rows: Sequence[Row]) -> list[Token]:
    return [(*of[:2], of[2] + at) for row in rows for of, size, _ in row for at in range(size)]


lengths = st.lists(st.integers(0, 13), max_size=12).map(lambda values: int64(*values))


files_of_lengths = st.lists(lengths, min_size=1, max_size=4)


@st.composite
def configs(draw: st.DrawFn, strategy: str) -> PackingConfig:
    sequence_length = draw(st.integers(1, 7))
    label_token = draw(st.booleans())
    overlong = draw(st.sampled_from(["split", "truncate", "drop"]))
    has_overlap = strategy == "concat" or overlong == "split"
    return PackingConfig(
        strategy=strategy,
        sequence_length=sequence_length,
        label_token=label_token,
        overlap=draw(st.integers(0, sequence_length - 1)) if has_overlap else 0,
        overlong=overlong,
        tail=draw(st.sampled_from(["pad", "drop"])),
        min_sample_length=draw(st.just(1) | st.integers(1, sequence_length)),
        pool_size=draw(st.integers(1, 8)),
    )


every_strategy = pytest.mark.parametrize("strategy", get_args(Strategy))


@every_strategy
@no_deadline
@given(data=st.data(), files=files_of_lengths)
def test_rows_are_those_of_the_plain_model_or_what_holds_of_any_and_counted(
    strategy: str, data, files
):
    side = {"truncation_side": data.draw(st.sampled_from(["left", "right"]))}
    config = data.draw(configs(strategy)).model_copy(update=side)
    firsts = np.cumsum([0, *map(len, files)])

    rows = pack_files(files, config)

    found = [
        [plain.Run(firsts[file] + piece, first, size) for (file, piece, first), size, _ in of]
        for of in rows.all
    ]
    sizes = [file.tolist() for file in files]
    expected = plain.packed_counts(sizes, config.model_dump(), found)
    del expected["num_sequences"], expected["num_tokens"]  # which are those of the rows themselves
    counts = asdict(rows.counts) | {"num_repeated_tokens": num_repeated(rows.all)}
    assert {name: counts[name] for name in expected} == expected


@pytest.mark.parametrize("strategy", ["best_fit", "pool"])
def test_neither_a_row_nor_the_tail_is_shorter_than_min_sample_length(strategy: Strategy):
    config = PackingConfig(strategy=strategy, sequence_length=5, min_sample_length=4)

    rows = pack_files([int64(3, 4, 3)], config)  # of the two short ones one is the tail

    assert rows.all == [[((0, 1, 0), 4, 0)]]
    assert rows.counts.num_dropped_tokens == 6


@every_strategy
@settings(deadline=None, max_examples=30)
@given(data=st.data(), files=files_of_lengths)
def test_no_row_is_without_a_supervised_token_and_the_account_closes(strategy: str, data, files):
    config = data.draw(configs(strategy)).model_copy(update={"drop_unsupervised": True})
    side = data.draw(st.sampled_from(["left", "right"]))
    config = config.model_copy(update={"truncation_side": side})
    masks = [
        np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), np.uint8)
        for size in (int(num_tokens.sum()) for num_tokens in files)
    ]
    documents = [
        [((file, piece, 0), size, 0) for piece, size in enumerate(num_tokens.tolist())]
        for file, num_tokens in enumerate(files)
    ]
    bits = np.concatenate(masks).tolist()
    supervised = {of for of, bit in zip(tokens_in(documents), bits, strict=True) if bit}

    rows = pack_files(files, config, masks)

    kept = {*tokens_in(rows.all)}
    missing = {*tokens_in(documents)} - kept
    assert all(supervised & {*tokens_in([row])} for row in rows.all)
    assert len(missing) == rows.counts.num_dropped_tokens
    assert len(tokens_in(rows.all)) - num_repeated(rows.all) == len(kept)
    if side == "right":  # else the beginning of a document can be cut off
        lost = {token[:2] for token in missing} - {token[:2] for token in kept}
        assert rows.counts.num_dropped_documents == len(lost)
    every = pack_files(files, config.model_copy(update={"drop_unsupervised": False}), masks)
    bare = [row for row in every.all if not supervised & {*tokens_in([row])}]
    assert rows.counts.num_dropped_sequences == len(bare)
    check_turns(rows, supervised, config)


def check_turns(rows: Rows, supervised: set[Token], config: PackingConfig) -> None:
    """Turns are cut where rows end in them, and dropped where they begin in no row."""
    begun = {token for token in supervised if (*token[:2], token[2] - 1) not in supervised}
    assert rows.turns["num_dropped_turns"] == len(begun - {*tokens_in(rows.all)})
    if config.stored_overlap or config.min_sample_length > 1 or config.tail == "drop":
        return  # a row that was left out can have cut one
    segments = [segment for row in rows.all for segment in row]
    edges = {(*of[:2], of[2] + at) for of, size, _ in segments for at in (0, size)}
    inside = {token for token in edges & supervised if (*token[:2], token[2] - 1) in supervised}
    assert rows.turns["num_cut_turns"] == len(inside)


wide = st.lists(st.integers(1, 60), max_size=80)


@no_deadline
@given(sizes=wide, room=st.integers(1, 60))
def test_best_fit_fills_rows_as_plain_best_fit_decreasing_does(sizes: list[int], room: int):
    config = PackingConfig(strategy="best_fit", sequence_length=room)

    packed = pack_spans(int64(*sizes), config)

    finished = lengths_of_rows(packed)[: packed.num_sequences]
    assert sorted(map(sum, finished)) == plain.best_fit_fills(sizes, config.model_dump())
