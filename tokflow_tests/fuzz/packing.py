"""Which tokens stand in which row, found token by token."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokflow_tests.fuzz.difference import DifferenceError, same

Config = Mapping[str, Any]

EXACT = ("concat", "greedy", "first_fit", "one_document")
"""Strategies of which the rows can be told; of the others, what holds of them."""


@dataclass(frozen=True)
class Run:
    """Tokens of one piece in one row."""

    piece: int
    """Ordinal of the piece in the part."""
    start: int
    """Tokens of the piece before it."""
    size: int


Row = list[Run]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The rows of a part."""

    rows: list[Row]
    left_out: list[Row]
    """Rows with too few tokens, and the tail that is dropped."""


def packing_of_parts(parts: Iterable[str], *layers: Config) -> dict[str, Config]:
    """Return the packing of each part, as the layers have it: later ones count more, and in each
    what it says of the part alone."""
    packings: dict[str, Config] = {}
    for part in parts:
        packing: dict[str, Any] = {}
        for layer in layers:
            packing |= {name: value for name, value in layer.items() if name != "parts"}
            packing |= layer.get("parts", {}).get(part.partition(".")[0], {})
            packing |= layer.get("parts", {}).get(part, {})
        packings[part] = packing
    return packings


def row_length(config: Config) -> int:
    """Return the tokens of a row."""
    return int(config.get("sequence_length", 1024)) + bool(config.get("label_token"))


def kept_of(num_tokens: int, config: Config) -> int:
    """Return how many tokens of a document `overlong` keeps."""
    length, overlong = row_length(config), config.get("overlong", "split")
    if num_tokens <= length or overlong == "split":
        return num_tokens
    return length if overlong == "truncate" else 0


def start_of(num_tokens: int, config: Config) -> int:
    """Return how many tokens of a document `overlong` takes away from before those it keeps."""
    kept = kept_of(num_tokens, config)
    return num_tokens - kept if kept and config.get("truncation_side") == "left" else 0


def pack(files: Sequence[Sequence[int]], config: Config) -> Packed:
    """Return the rows of a part, of pieces of so many tokens in each file: those of each file,
    then those of all tails, as if these were one more file."""
    rows: list[Row] = []
    left_out: list[Row] = []
    tails: Row = []
    first = 0
    least = config.get("min_sample_length", 1)
    for lengths in files:
        runs = [
            Run(first + n, start_of(size, config), kept_of(size, config))
            for n, size in enumerate(lengths)
        ]
        finished, tail = _packed(runs, config)
        rows += [row for row in finished if _fill(row) >= least]
        left_out += [row for row in finished if _fill(row) < least]
        tails += tail
        first += len(lengths)
    finished, tail = _packed(tails, config)
    left_out += [row for row in finished if _fill(row) < least]
    rows += [row for row in finished if _fill(row) >= least]
    if tail:
        is_kept = _fill(tail) >= least and config.get("tail", "pad") == "pad"
        (rows if is_kept else left_out).append(tail)
    return Packed(rows=rows, left_out=left_out)


def _fill(row: Row) -> int:
    return sum(run.size for run in row)


def _packed(runs: Row, config: Config) -> tuple[list[Row], Row]:
    """Return the finished rows of runs, and the one that is left open."""
    if config.get("strategy", "concat") == "concat":
        rows = _cut([(run.piece, run.start + k) for run in runs for k in range(run.size)], config)
        is_open = bool(rows) and _fill(rows[-1]) < row_length(config)
        return (rows[:-1], rows[-1]) if is_open else (rows, [])
    return _side_by_side(runs, config)


def _cut(tokens: list[tuple[int, int]], config: Config) -> list[Row]:
    """Cut tokens, end to end, into rows; each but the first begins with the end of the last."""
    length = row_length(config)
    step = length - int(config.get("overlap", 0)) - bool(config.get("label_token"))
    rows = []
    start = 0
    while start == 0 or start + length - step < len(tokens):
        rows.append(_as_runs(tokens[start : start + length]))
        start += step
    return [row for row in rows if row]


def _as_runs(tokens: list[tuple[int, int]]) -> Row:
    row: Row = []
    for piece, token in tokens:
        if row and row[-1].piece == piece and row[-1].start + row[-1].size == token:
            row[-1] = Run(piece, row[-1].start, row[-1].size + 1)
        else:
            row.append(Run(piece, token, 1))
    return row


def _side_by_side(runs: Row, config: Config) -> tuple[list[Row], Row]:
    """Cut what is longer than a row, and put the rest of each piece into a bin."""
    length, strategy = row_length(config), config["strategy"]
    rows: list[Row] = []  # in the order of their first run
    for run in runs:
        for row in _cut([(run.piece, run.start + k) for k in range(run.size)], config):
            size = _fill(row)
            if size == length or strategy == "one_document":
                rows.append(row)
                continue
            places = [bin_ for bin_ in rows if _fill(bin_) + size <= length]
            if strategy == "greedy":  # the last row that is no full run
                bins = [bin_ for bin_ in rows if not _is_full_run(bin_, length)]
                places = [bin_ for bin_ in bins[-1:] if _fill(bin_) + size <= length]
            if places:
                places[0] += row
            else:
                rows.append(row)
    bins = [row for row in rows if _fill(row) < length]
    if strategy == "one_document" or not bins:
        return rows, []
    if strategy == "greedy":
        last = [row for row in rows if not _is_full_run(row, length)][-1]
        open_row = last if _fill(last) < length else None
    else:
        least = min(map(_fill, bins))
        open_row = [row for row in bins if _fill(row) == least][-1]
    return [row for row in rows if row is not open_row], open_row or []


def _is_full_run(row: Row, length: int) -> bool:
    return len(row) == 1 and row[0].size == length


def best_fit_fills(lengths: Sequence[int], config: Config) -> list[int]:
    """Return how full the finished rows of one file are by plain best-fit decreasing, sorted."""
    length = row_length(config)
    full, rests = [], []
    for size in lengths:
        rows = _cut([(0, k) for k in range(kept_of(size, config))], config)
        full += [_fill(row) for row in rows if _fill(row) == length]
        rests += [_fill(row) for row in rows if _fill(row) < length]
    bins: list[int] = []
    for size in sorted(rests, reverse=True):
        fitting = [n for n, fill in enumerate(bins) if fill + size <= length]
        if fitting:
            bins[max(fitting, key=bins.__getitem__)] += size
        else:
            bins.append(size)
    if bins and min(bins) < length:
        bins.remove(min(bins))
    least = config.get("min_sample_length", 1)
    return sorted(fill for fill in (*full, *bins) if fill >= least)


def packed_counts(
    files: Sequence[Sequence[int]], config: Config, rows: Sequence[Row], *, where: str = "rows"
) -> dict[str, int]:
    """Return what must be counted of the rows of a part, of pieces of so many tokens in each file,
    found from the rows alone, which are compared with those of `pack` or, of other strategies, with
    what must hold of any packing."""
    packed = None
    if config.get("strategy", "concat") in EXACT:
        packed = pack(files, config)
        same(f"{where}: rows", expected=packed.rows, found=rows)
    else:
        _check_any_packing(files, config, rows, where)
    held = Counter(
        (run.piece, run.start + k) for row in rows for run in row for k in range(run.size)
    )
    sizes = [size for of_file in files for size in of_file]
    is_truncated = config.get("overlong") == "truncate"
    there = {piece for piece, _ in held}
    counts = {
        "num_sequences": len(rows),
        "num_tokens": held.total(),
        "num_repeated_tokens": held.total() - len(held),
        "num_dropped_tokens": sum(sizes) - len(held),
        "num_truncated_documents": is_truncated and sum(n > row_length(config) for n in sizes),
        "num_dropped_documents": sum(n > 0 and of not in there for of, n in enumerate(sizes)),
    }
    may_repeat = config.get("overlap") or config.get("label_token")
    may_drop = is_truncated or "drop" in (config.get("overlong"), config.get("tail"))
    if not may_drop and config.get("min_sample_length", 1) == 1:
        same("tokens dropped without being told", expected=0, found=counts["num_dropped_tokens"])
    if not may_repeat:
        same("tokens repeated without overlap", expected=0, found=counts["num_repeated_tokens"])
    kept = [kept_of(size, config) for size in sizes]
    cut = {piece for piece, size in enumerate(kept) if size > row_length(config)}
    if packed is not None:
        every = (*rows, *packed.left_out)
        whole = {run.piece for row in every for run in row if run.size == kept[run.piece]}
        cut = {piece for piece, size in enumerate(kept) if size > 0} - whole
    return counts | {"num_cut_documents": len(cut)}


def _check_any_packing(
    files: Sequence[Sequence[int]], config: Config, rows: Sequence[Row], where: str
) -> None:
    """What holds of best_fit and pool: nothing is cut that fits, only what `overlong`, `tail` and
    `min_sample_length` name is left out, and rows are full."""
    length, sizes = row_length(config), [size for of_file in files for size in of_file]
    step = length - config.get("overlap", 0) - bool(config.get("label_token"))
    least = config.get("min_sample_length", 1)
    for number, row in enumerate(rows):
        of_row, order = f"{where}: row {number}", [run.piece for run in row]
        same(f"{of_row}: order", expected=sorted(order), found=order)
        if not least <= _fill(row) <= length:
            raise DifferenceError(f"{of_row}: {_fill(row)} tokens, not {least} to {length}")
        for run in row:
            kept, start = kept_of(sizes[run.piece], config), start_of(sizes[run.piece], config)
            if run.size != min(length, start + kept - run.start) or run.start < start:
                raise DifferenceError(f"{of_row}: {run} is cut, and need not be, or holds too much")
            if (run.start - start) % step:
                raise DifferenceError(f"{of_row}: {run} begins at no multiple of {step}")
    held = {(run.piece, run.start + k) for row in rows for run in row for k in range(run.size)}
    num_lost = sum(kept_of(size, config) for size in sizes) - len(held)
    most = length - 1 if config.get("tail") == "drop" else 0  # the row that is open
    if least == 1 and num_lost > most:
        raise DifferenceError(f"{where}: {num_lost} tokens are left out, not {most} at most")
    if config["strategy"] == "best_fit" or config.get("pool_size", 10_000) >= 10_000:
        first = 0
        for of_file in files:
            fills = best_fit_fills(of_file, config)
            found = sorted(_fill(row) for row in rows[first : first + len(fills)])
            same(f"{where}: how full the rows of a file are", expected=fills, found=found)
            first += len(fills)
