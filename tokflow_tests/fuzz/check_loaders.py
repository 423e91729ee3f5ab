"""Compare the rows that `tokflow.loaders` opens with the tokens that a plain reader found."""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tokflow.loaders import open_rows
from tokflow_tests.fuzz.difference import same
from tokflow_tests.fuzz.readers import Stream

NO_LABEL = -100

PADDING = -1
"""In place of the id of padding, which is not compared."""

Row = list[tuple[int, int, int]]
"""Of each position the token, or PADDING; the number of its document, or 0; and 1 where it is
supervised."""


def check_loaded_stream(
    where: str, folder: Path, part: str, found: Stream, mask: Sequence[int]
) -> None:
    """Rows of some length, in a shuffled order, have every token of the stream; `mask` says which
    are supervised."""
    tokens = found.tokens
    length = 1 + len(tokens) % 7
    rows = open_rows(folder, part=part, sequence_length=length)
    lengths = [size for _, of_file in found.files for size in of_file or ()]
    begins = {0, *accumulate(size for size in lengths)}
    document = [*accumulate(int(at in begins) for at in range(len(tokens)))]
    is_masked = "loss_mask" in rows[:0]
    pairs = [*zip(tokens, document, mask if is_masked else [1] * len(tokens), strict=True)]
    expected = []
    for first in range(0, len(tokens) - 1, length):
        behind = [of if is_label else NO_LABEL for of, _, is_label in pairs[first + 1 :][:length]]
        row = pairs[first : first + len(behind)]
        rest = length - len(behind)
        expected.append(([*row, *[(PADDING, 0, 0)] * rest], [*behind, *[NO_LABEL] * rest]))
    _check_rows(where, rows, expected)


def check_loaded_rows(
    where: str,
    folder: Path,
    part: str,
    packed: Sequence[Row],
    columns: Collection[str],
    *,
    has_label_token: bool,
) -> None:
    """Rows as they lie in the files, filled, have labels within their segments alone.

    `columns`: those of the export, of which some tell that no label begins a segment.
    """
    rows = open_rows(folder, part=part)
    is_told = "loss_mask" not in columns and not {"labels", "next_loss_mask"}.isdisjoint(columns)
    has_segments = "segment_ids" in rows.source.fields or is_told
    is_masked = "loss_mask" in rows[:0]
    expected = []
    for row in packed:
        labels = [
            after
            if 0 not in (one, other)
            and (one == other or not has_segments)
            and (is_label or not is_masked)
            else NO_LABEL
            for (_, one, _), (after, other, is_label) in pairwise(row)
        ]
        own = (row[:-1], labels) if has_label_token else (row, [*labels, NO_LABEL])
        expected.append(own)
    _check_rows(where, rows, expected)


def _check_rows(where: str, rows: Any, expected: Sequence[tuple[Row, list[int]]]) -> None:
    same(f"{where}: rows of loaders", expected=len(expected), found=len(rows))
    batch = rows.shuffled(seed=1)[:]
    for place, number in enumerate(batch["index"].tolist()):
        at = f"{where}: row {number} of loaders"
        row, labels = expected[number]
        found = {name: values[place].tolist() for name, values in batch.items()}
        ids = [
            PADDING if token == PADDING else own
            for (token, *_), own in zip(row, found["input_ids"], strict=True)
        ]
        same(f"{at}: input_ids", expected=[token for token, *_ in row], found=ids)
        same(f"{at}: labels", expected=labels, found=found["labels"])
        counts = [label != NO_LABEL for label in labels]
        if "loss_mask" in found:
            same(f"{at}: loss_mask", expected=counts, found=found["loss_mask"])
        if "segment_ids" in found:
            same(f"{at}: segment_ids", expected=_segments(row), found=found["segment_ids"])
        if "position_ids" in found:
            same(f"{at}: position_ids", expected=_positions(row), found=found["position_ids"])


def _segments(row: Row) -> list[int]:
    numbers = {
        document: n for n, document in enumerate(dict.fromkeys(d for _, d, _ in row if d), 1)
    }
    return [numbers.get(document, 0) for _, document, _ in row]


def _positions(row: Row) -> list[int]:
    seen: dict[int, int] = {}
    positions = []
    for _, document, _ in row:
        positions.append(seen.get(document, 0) if document else 0)
        seen[document] = seen.get(document, 0) + 1
    return positions
