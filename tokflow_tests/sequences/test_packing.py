from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.sequences.packing import (
    PACKERS,
    PackingConfig,
    PackingCounts,
    PackingResult,
    Segments,
    Strategy,
    pack_concat,
    pack_one_document,
    pack_spans,
    pack_tails,
)
from tokflow_tests.making import int64

no_deadline = settings(deadline=None)
"""A busy machine is no failure."""

SIDE_BY_SIDE = ("greedy", "first_fit", "best_fit", "pool")


def columns(packed: PackingResult) -> list[list[int]]:
    segments = packed.segments
    return [
        array.tolist()
        for array in (
            segments.sequence,
            segments.span,
            segments.token_in_span,
            segments.num_tokens,
            segments.num_repeated,
        )
    ]


def of_4(**fields: Any) -> PackingConfig:
    return PackingConfig(sequence_length=4, **fields)


def lengths_of_rows(packed: PackingResult) -> list[list[int]]:
    """Return the tokens of each segment, row by row, the open one last."""
    segments = packed.segments
    rows: dict[int, list[int]] = {}
    for row, size in zip(segments.sequence.tolist(), segments.num_tokens.tolist(), strict=True):
        rows.setdefault(row, []).append(size)
    assert list(rows) == list(range(len(rows)))
    return list(rows.values())


def test_concat_cuts_the_pieces_end_to_end_into_rows():
    packed = pack_concat(int64(3, 2, 4), of_4())

    assert columns(packed) == [
        [0, 0, 1, 1, 2],
        [0, 1, 1, 2, 2],
        [0, 0, 1, 0, 3],
        [3, 1, 1, 3, 1],
        [0, 0, 0, 0, 0],
    ]
    assert packed.num_sequences == 2


def test_concat_with_an_overlap_begins_a_row_with_the_end_of_the_one_before_it():
    packed = pack_concat(int64(3, 2, 4), of_4(overlap=1))

    assert columns(packed) == [
        [0, 0, 1, 1, 2],
        [0, 1, 1, 2, 2],
        [0, 0, 0, 0, 1],
        [3, 1, 2, 2, 3],
        [0, 0, 1, 0, 1],
    ]
    assert packed.num_sequences == 2


def test_a_row_of_labels_has_one_token_more_and_shares_it_with_the_next():
    packed = pack_concat(int64(9), of_4(label_token=True))

    assert columns(packed) == [[0, 1], [0, 0], [0, 4], [5, 5], [0, 1]]
    assert packed.num_sequences == 2


def test_one_document_lets_each_piece_begin_a_row():
    packed = pack_one_document(int64(5, 2), of_4())

    assert columns(packed) == [[0, 1, 2], [0, 0, 1], [0, 4, 0], [4, 1, 2], [0, 0, 0]]
    assert packed.num_sequences == 3


def test_a_cut_document_goes_on_with_the_overlap():
    packed = pack_one_document(int64(5, 2), of_4(overlap=2))

    assert columns(packed) == [[0, 1, 2], [0, 0, 1], [0, 2, 0], [4, 3, 2], [0, 2, 0]]


def test_a_piece_longer_than_several_rows_goes_on_in_them():
    packed = pack_concat(int64(1, 9), of_4())

    assert columns(packed)[:4] == [[0, 0, 1, 2], [0, 1, 1, 1], [0, 0, 3, 7], [1, 3, 4, 2]]


def test_pieces_that_fill_rows_exactly_leave_no_tail():
    packed = pack_concat(int64(4, 2, 2), of_4())

    assert columns(packed)[:4] == [[0, 1, 1], [0, 1, 2], [0, 0, 0], [4, 2, 2]]
    assert packed.num_sequences == 2


def test_greedy_begins_a_row_where_a_piece_does_not_fit_into_the_last():
    packed = pack_spans(int64(5, 2, 2, 1), of_4(strategy="greedy"))

    assert columns(packed)[:4] == [
        [0, 1, 1, 2, 2],
        [0, 0, 1, 2, 3],
        [0, 4, 0, 0, 0],
        [4, 1, 2, 2, 1],
    ]
    assert packed.num_sequences == 2


def test_first_fit_takes_the_first_row_with_room():
    packed = pack_spans(int64(3, 2, 1, 2, 1), of_4(strategy="first_fit"))

    assert lengths_of_rows(packed) == [[3, 1], [2, 2], [1]]
    assert packed.segments.span.tolist() == [0, 2, 1, 3, 4]
    assert packed.num_sequences == 2


def test_best_fit_takes_the_row_in_which_the_least_room_is_left():
    config = PackingConfig(strategy="best_fit", sequence_length=10)

    packed = pack_spans(int64(1, 7, 2, 6, 3, 1), config)

    assert lengths_of_rows(packed) == [[1, 2, 6, 1], [7, 3]]
    assert packed.segments.span.tolist() == [0, 2, 3, 5, 1, 4]
    assert packed.num_sequences == 2


def test_the_least_filled_row_is_left_open_and_comes_last():
    packed = pack_spans(int64(1, 3, 3), of_4(strategy="best_fit"))

    assert lengths_of_rows(packed) == [[1, 3], [3]]
    assert packed.num_sequences == 1
    assert packed.segments.span.tolist() == [0, 2, 1]


def test_a_pool_is_packed_with_what_the_pool_before_left_open():
    config = of_4(strategy="pool", pool_size=2)

    packed = pack_spans(int64(3, 2, 1, 2, 1), config)

    assert lengths_of_rows(packed) == [[3], [2, 2], [1, 1]]
    assert packed.segments.span.tolist() == [0, 1, 3, 2, 4]
    assert packed.num_sequences == 2


@pytest.mark.parametrize("strategy", PACKERS)
def test_a_piece_of_no_tokens_is_in_no_segment(strategy: Strategy):
    config = PackingConfig(strategy=strategy, sequence_length=2)

    packed = pack_spans(int64(0, 2, 0, 0, 2, 0), config)

    assert columns(packed)[:4] == [[0, 1], [1, 4], [0, 0], [2, 2]]
    assert packed.num_sequences == 2


@pytest.mark.parametrize("num_tokens", [(), (0,), (0, 0)], ids=str)
@pytest.mark.parametrize("strategy", PACKERS)
def test_no_tokens_make_no_row(strategy: Strategy, num_tokens: tuple[int, ...]):
    packed = pack_spans(int64(*num_tokens), of_4(strategy=strategy))

    assert columns(packed) == [[], [], [], [], []]
    assert packed.num_sequences == 0


@pytest.mark.parametrize("strategy", PACKERS)
def test_a_document_longer_than_a_row_is_cut_and_nothing_is_dropped(strategy: Strategy):
    packed = pack_spans(int64(9), of_4(strategy=strategy))

    assert lengths_of_rows(packed) == [[4], [4], [1]]
    assert packed.segments.token_in_span.tolist() == [0, 4, 8]
    assert packed.counts == PackingCounts(num_cut_documents=1)


@pytest.mark.parametrize("strategy", PACKERS)
def test_truncate_keeps_one_row_of_a_longer_document(strategy: Strategy):
    packed = pack_spans(int64(9, 2), of_4(strategy=strategy, overlong="truncate"))

    assert lengths_of_rows(packed) == [[4], [2]]
    assert packed.counts == PackingCounts(num_truncated_documents=1, num_dropped_tokens=5)


def test_what_is_kept_of_a_truncated_document_may_be_cut_by_concat_and_counts_in_both():
    packed = pack_spans(int64(3, 9), of_4(strategy="concat", overlong="truncate"))

    assert lengths_of_rows(packed) == [[3, 1], [3]]
    assert packed.counts == PackingCounts(
        num_cut_documents=1, num_truncated_documents=1, num_dropped_tokens=5
    )


@pytest.mark.parametrize("strategy", PACKERS)
def test_drop_leaves_a_longer_document_out(strategy: Strategy):
    packed = pack_spans(int64(9, 2, 4), of_4(strategy=strategy, overlong="drop"))

    assert set(packed.segments.span.tolist()) == {1, 2}
    assert packed.segments.num_tokens.sum() == 6
    assert packed.counts.num_dropped_documents == 1
    assert packed.counts.num_dropped_tokens == 9


def test_the_row_a_label_stands_in_counts_for_what_is_too_long():
    config = of_4(strategy="one_document", overlong="drop", label_token=True)

    packed = pack_spans(int64(5, 6), config)

    assert lengths_of_rows(packed) == [[5]]
    assert packed.counts == PackingCounts(num_dropped_documents=1, num_dropped_tokens=6)


def test_a_row_shorter_than_the_least_is_left_out_and_counted():
    config = of_4(strategy="one_document", min_sample_length=2)

    packed = pack_spans(int64(1, 3, 5, 6), config)

    assert lengths_of_rows(packed) == [[3], [4], [4], [2]]
    assert packed.segments.span.tolist() == [1, 2, 3, 3]
    assert packed.counts == PackingCounts(
        num_cut_documents=2, num_dropped_documents=1, num_dropped_tokens=2
    )


def test_the_row_a_file_leaves_open_is_not_too_short_yet():
    packed = pack_spans(int64(4, 1), of_4(strategy="greedy", min_sample_length=2))

    assert lengths_of_rows(packed) == [[4], [1]]
    assert packed.num_sequences == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sequence_length": 0},
            "packing.sequence_length: expected 1 to 16,777,216, a usual length is 1024 "
            "or 2048, found 0; raise it",
        ),
        (
            {"sequence_length": 4, "overlap": 4},
            "packing.overlap: expected 0 to 3, less than sequence_length, found 4; "
            "lower it, or raise sequence_length",
        ),
        (
            {"overlap": -1},
            "packing.overlap: expected 0 or more, found -1; raise it",
        ),
        (
            {"overlap": 1, "strategy": "greedy", "overlong": "drop"},
            "packing.overlap: expected 0, found 1; "
            "greedy continues no sequence with overlong: drop; leave it out",
        ),
        (
            {"min_sample_length": 1025},
            "packing.min_sample_length: expected 1 to 1,024, the tokens of a sequence, found 1025; "
            "no sequence is longer",
        ),
        (
            {"pool_size": 0},
            "packing.pool_size: expected 1 or more, a usual size is 10000, found 0; raise it",
        ),
        (
            {"pad_id": 2**31},
            "packing.pad_id: expected 0 to 2,147,483,647, an id that the model knows or ignores, "
            "stored as int32, found 2147483648; lower it, or leave it out",
        ),
        (
            {"pad_id": -1},
            "packing.pad_id: expected 0 to 2,147,483,647, an id that the model knows or ignores, "
            "stored as int32, found -1; raise it, or leave it out",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as raised:
        PackingConfig(**fields)

    assert str(raised.value) == message


def test_only_what_decides_the_rows_is_in_a_files_fields():
    assert of_4(tail="drop", pad_id=3).fields_of_file() == of_4().fields_of_file()
    assert of_4(pool_size=7).fields_of_export() == of_4().fields_of_export()
    assert of_4(min_sample_length=2).fields_of_file() == of_4().fields_of_file()
    assert of_4(strategy="pool", pool_size=7).fields_of_file()["pool_size"] == 7
    assert of_4(strategy="pool", min_sample_length=2).fields_of_file()["min_sample_length"] == 2


Token = tuple[int, int, int]
"""Of which file, of which piece, which token."""


@dataclass(frozen=True)
class Row:
    tokens: list[Token]
    num_repeated: int
    segments: list[tuple[Token, int, int]]
    """The first token of each, its size, and how many of these are repeated."""


@dataclass(frozen=True)
class Rows:
    in_files: list[list[Row]]
    of_tails: list[Row]
    counts: PackingCounts

    @property
    def all(self) -> list[Row]:
        return [row for rows in (*self.in_files, self.of_tails) for row in rows]


def pack_files(files: Sequence[np.ndarray], config: PackingConfig) -> Rows:
    """Pack files and their tails as an export does."""
    packed = [pack_spans(num_tokens, config) for num_tokens in files]
    tails: list[Segments] = []
    owners: list[Token] = []
    for file, one in enumerate(packed):
        tail = one.segments.chosen(one.segments.sequence == one.num_sequences)
        tails.append(tail)
        owners += [(file, piece, 0) for piece in tail.span.tolist()]
    names = ("sequence", "span", "token_in_span", "num_tokens", "num_repeated")
    joined = {name: np.concatenate([getattr(tail, name) for tail in tails]) for name in names}
    of_tails = pack_tails(Segments(**joined), config)
    counts = of_tails.counts
    for one in packed:
        counts += one.counts
    return Rows(
        in_files=[
            rows_of(one, [(file, piece, 0) for piece in range(len(files[file]))])[
                : one.num_sequences
            ]
            for file, one in enumerate(packed)
        ],
        of_tails=rows_of(of_tails, owners),
        counts=counts,
    )


def rows_of(packed: PackingResult, owners: Sequence[Token]) -> list[Row]:
    rows: list[Row] = []
    for row, piece, first, size, repeated in zip(*columns(packed), strict=True):
        file, document, _ = owners[piece]
        while len(rows) <= row:
            rows.append(Row([], 0, []))
        old = rows[row]
        rows[row] = Row(
            old.tokens + [(file, document, first + i) for i in range(size)],
            old.num_repeated + repeated,
            [*old.segments, ((file, document, first), size, repeated)],
        )
    return rows


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
        min_sample_length=draw(st.integers(1, sequence_length)),
        pool_size=draw(st.integers(1, 8)),
    )


every_strategy = pytest.mark.parametrize("strategy", get_args(Strategy))


@every_strategy
@no_deadline
@given(data=st.data(), files=files_of_lengths)
def test_every_token_is_in_one_row_or_declared(strategy: str, data: st.DataObject, files):
    config = data.draw(configs(strategy))

    rows = pack_files(files, config)

    times = Counter(token for row in rows.all for token in row.tokens)
    missing = {
        (file, piece, token)
        for file, lengths in enumerate(files)
        for piece, size in enumerate(lengths.tolist())
        for token in range(size)
    }
    num_tokens = len(missing)
    assert set(times) <= missing
    missing -= set(times)
    repeated = sum(row.num_repeated for row in rows.all)
    assert len(missing) == rows.counts.num_dropped_tokens
    assert sum(times.values()) - repeated + len(missing) == num_tokens
    if config.stored_overlap == 0:
        assert set(times.values()) <= {1}
    overlong = {
        (file, piece)
        for file, lengths in enumerate(files)
        for piece, size in enumerate(lengths.tolist())
        if size > config.stored_length
    }
    left_out = (
        {}
        if config.overlong == "split"
        else {
            "truncate": {token for token in missing if token[2] >= config.stored_length},
            "drop": {token for token in missing if token[:2] in overlong},
        }[config.overlong]
    )
    short = missing - set(left_out)
    if config.tail == "pad" and config.min_sample_length == 1:
        assert not short
    if strategy == "concat":
        assert len(short) < config.stored_length
    documents = {token[:2] for token in times}
    of_tokens = {token[:2] for token in missing} | documents
    assert len(of_tokens - documents) == rows.counts.num_dropped_documents
    is_truncated = config.overlong == "truncate"
    assert rows.counts.num_truncated_documents == (len(overlong) if is_truncated else 0)


@every_strategy
@no_deadline
@given(data=st.data(), files=files_of_lengths)
def test_no_row_is_too_long_or_too_short_and_all_are_in_order(strategy: str, data, files):
    config = data.draw(configs(strategy))

    rows = pack_files(files, config)

    for row in rows.all:
        assert config.min_sample_length <= len(row.tokens) <= config.stored_length
        starts = [first for first, _, _ in row.segments]
        assert starts == sorted(starts)
        assert len({first[:2] for first in starts}) == len(starts)
    for made in rows.in_files:
        firsts = [row.segments[0][0] for row in made]
        assert firsts == sorted(firsts)
        if strategy == "concat":
            assert all(len(row.tokens) == config.stored_length for row in made)
    finished = rows.of_tails[:-1]
    assert [row.segments[0][0] for row in finished] == sorted(r.segments[0][0] for r in finished)


@every_strategy
@no_deadline
@given(data=st.data(), files=files_of_lengths)
def test_documents_are_cut_only_where_they_must_be(strategy: str, data, files):
    config = data.draw(configs(strategy)).model_copy(update={"tail": "pad", "min_sample_length": 1})

    rows = pack_files(files, config)

    whole = {
        first[:2]
        for row in rows.all
        for first, size, _ in row.segments
        if size == files[first[0]][first[1]]
    }
    cut = {
        (file, piece)
        for file, lengths in enumerate(files)
        for piece, size in enumerate(lengths.tolist())
        if size and (config.overlong == "split" or size <= config.stored_length)
    } - whole
    if config.overlong == "truncate" and strategy == "concat":
        assert rows.counts.num_cut_documents >= len(cut)  # truncated ones may be cut as well
    else:
        assert rows.counts.num_cut_documents == len(cut)
    if strategy != "concat":
        assert all(files[file][piece] > config.stored_length for file, piece in cut)


@every_strategy
@no_deadline
@given(data=st.data(), lengths=lengths)
def test_what_is_repeated_is_the_end_of_the_row_that_is_continued(strategy: str, data, lengths):
    config = data.draw(configs(strategy)).model_copy(update={"min_sample_length": 1})

    rows = rows_of(pack_spans(lengths, config), [(0, piece, 0) for piece in range(len(lengths))])

    overlap = config.stored_overlap
    if strategy == "concat":
        assert all(row.num_repeated == 0 for row in rows[:1])
        for before, row in pairwise(rows):
            assert row.num_repeated == overlap
            assert row.tokens[:overlap] == before.tokens[len(before.tokens) - overlap :]
        return
    ends = {
        (first[0], first[1], first[2] + size) for row in rows for first, size, _ in row.segments
    }
    for row in rows:
        for (file, piece, first), size, repeated in row.segments:
            assert repeated == (overlap if first else 0)
            assert repeated < size
            assert not first or (file, piece, first + overlap) in ends


@every_strategy
@no_deadline
@given(data=st.data(), files=files_of_lengths)
def test_dropping_the_tail_leaves_out_the_last_row_alone(strategy: str, data, files):
    config = data.draw(configs(strategy)).model_copy(update={"min_sample_length": 1})

    padded = pack_files(files, config.model_copy(update={"tail": "pad"})).all
    dropped = pack_files(files, config.model_copy(update={"tail": "drop"})).all

    is_open = (
        strategy != "one_document" and padded and len(padded[-1].tokens) < config.stored_length
    )
    if not is_open:
        assert dropped in (padded, padded[:-1])
    else:
        assert dropped == padded[:-1]


def best_fit_decreasing(sizes: Sequence[int], room: int) -> int:
    """Return how many rows the plain algorithm makes."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [(left, row) for row, left in enumerate(rooms) if left >= size]
        if fitting:
            rooms[min(fitting)[1]] -= size
        else:
            rooms.append(room - size)
    return len(rooms)


wide = st.lists(st.integers(1, 60), max_size=80)


@no_deadline
@given(sizes=wide, room=st.integers(1, 60))
def test_best_fit_makes_as_many_rows_as_plain_best_fit_decreasing(sizes: list[int], room: int):
    sizes = [size for size in sizes if size <= room]

    packed = pack_spans(int64(*sizes), PackingConfig(strategy="best_fit", sequence_length=room))

    assert len(lengths_of_rows(packed)) == best_fit_decreasing(sizes, room)


def fitted(sizes: Sequence[int], room: int, *, only_last: bool) -> list[list[int]]:
    """Return the documents of each row by plain next-fit or first-fit."""
    rows: list[list[int]] = []
    for document, size in enumerate(sizes):
        open_rows = rows[-1:] if only_last else rows
        for row in open_rows:
            if sum(sizes[one] for one in row) + size <= room:
                row.append(document)
                break
        else:
            rows.append([document])
    return rows


@pytest.mark.parametrize("strategy", ["greedy", "first_fit"])
@no_deadline
@given(sizes=wide, room=st.integers(1, 60))
def test_greedy_and_first_fit_put_each_document_where_the_plain_algorithm_does(
    strategy: Strategy, sizes: list[int], room: int
):
    sizes = [size for size in sizes if size < room]  # a full row of its own changes no other

    packed = pack_spans(int64(*sizes), PackingConfig(strategy=strategy, sequence_length=room))

    found: dict[int, list[int]] = {}
    for row, piece in zip(
        packed.segments.sequence.tolist(), packed.segments.span.tolist(), strict=True
    ):
        found.setdefault(row, []).append(piece)
    expected = fitted(sizes, room, only_last=strategy == "greedy")
    assert sorted(found.values()) == sorted(expected)


@no_deadline
@given(sizes=wide, room=st.integers(1, 60))
def test_a_pool_of_all_documents_is_best_fit(sizes: list[int], room: int):
    config = PackingConfig(strategy="pool", sequence_length=room, pool_size=len(sizes) + 1)

    assert columns(pack_spans(int64(*sizes), config)) == columns(
        pack_spans(int64(*sizes), config.model_copy(update={"strategy": "best_fit"}))
    )


@pytest.mark.parametrize("strategy", SIDE_BY_SIDE)
def test_blocks_of_documents_are_packed_as_one(strategy: Strategy, monkeypatch: pytest.MonkeyPatch):
    sizes = np.random.default_rng(0).integers(1, 30, 500)
    config = PackingConfig(strategy=strategy, sequence_length=32)
    whole = columns(pack_spans(sizes, config))

    monkeypatch.setattr("tokflow.sequences.packing.bins.DOCUMENTS_AT_ONCE", 7)

    assert columns(pack_spans(sizes, config)) == whole


def test_more_than_65_536_rows_are_in_the_order_of_their_first_documents():
    sizes = np.random.default_rng(0).integers(1, 10, 200_000)

    packed = pack_spans(sizes, PackingConfig(strategy="best_fit", sequence_length=9))

    sequence, piece = packed.segments.sequence, packed.segments.span
    is_first = np.diff(sequence, prepend=-1) != 0
    assert packed.num_sequences > 2**16
    assert (np.diff(sequence) >= 0).all()
    assert (np.diff(piece[is_first])[:-1] > 0).all()
    assert (np.diff(piece)[~is_first[1:]] > 0).all()
    assert sorted(piece.tolist()) == list(range(200_000))
