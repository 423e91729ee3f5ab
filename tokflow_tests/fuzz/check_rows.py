"""Compare rows with the packing that the model finds, or with what must hold of any packing."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokflow_tests.fuzz.difference import DifferenceError, same
from tokflow_tests.fuzz.exports import is_unpadded
from tokflow_tests.fuzz.model import Piece
from tokflow_tests.fuzz.packing import (
    EXACT,
    Config,
    Packed,
    Row,
    Run,
    best_fit_fills,
    kept_of,
    pack,
    row_length,
    start_of,
)
from tokflow_tests.fuzz.readers import Rows

NO_LABEL = -100

OF_COLUMNS = ("arrow", "easydel", "hf_dataset", "jsonl", "parquet")
"""Formats whose rows have the columns that are kept of their document."""

MASKS = {**dict.fromkeys((*OF_COLUMNS, "lance"), "loss_mask"), "easydel": "labels"}
"""The field that the rows of chats have in addition, by format."""


def check_rows(
    where: str,
    made: Any,
    part: str,
    pieces: Sequence[Piece],
    indexed: Sequence[Sequence[tuple[int, int, int]]],
    found: Rows,
) -> None:
    """Compare the rows of a part; `indexed` is what the index says of each."""
    rows = [[Run(*run) for run in row] for row in indexed]
    packing = made.packings[part]
    _check_fields(where, made, part, pieces, rows, found)
    strategy = packing.get("strategy", "concat")
    packed = None
    if strategy in EXACT:
        files = [[len(piece.tokens) for piece in some] for some in made.parts[part].values()]
        packed = pack(files, packing)
        same(f"{where}: rows", expected=packed.rows, found=rows)
    else:
        _check_any_packing(where, made, part, pieces, rows)
    expected = _counts(packing, pieces, rows, packed)
    in_files = sum(len(row) for row in found.fields.get("token_ids", ()))
    expected["num_padding"] = in_files - expected["num_tokens"]
    counts = {name: made.counts[f"{part}.{name}"] for name in expected}
    same(f"{where}: counts", expected=expected, found=counts)


def _check_fields(
    where: str, made: Any, part: str, pieces: Sequence[Piece], rows: Sequence[Row], found: Rows
) -> None:
    """Every column has, token by token, what the index says that stands there."""
    length, pad_id = row_length(made.packings[part]), made.pad_id(part)
    if made.options.get("padding") == "longest":
        length = max((sum(run.size for run in row) for row in rows), default=0)
    of_one = [name for name, of in made.packings.items() if of.get("strategy") == "one_document"]
    kept = made.keep_columns if of_one and made.options["format"] in OF_COLUMNS else ()
    for number, row in enumerate(rows):
        sizes = [run.size for run in row]
        rest = 0 if is_unpadded(made.options) else length - sum(sizes)
        before = rest if made.packings[part].get("padding_side") == "left" else 0
        after = rest - before
        tokens = [t for run in row for t in pieces[run.piece].tokens[run.start :][: run.size]]
        segments = [n for n, size in enumerate(sizes, start=1) for _ in range(size)]
        positions = [n for size in sizes for n in range(size)]
        mask = [of for run in row for of in pieces[run.piece].mask[run.start :][: run.size]]
        counts = [int(n > 0 and of) for n, of in zip(positions, mask, strict=True)]
        labels = [t if of else NO_LABEL for t, of in zip(tokens, counts, strict=True)]
        expected = {
            "token_ids": [*[pad_id] * before, *tokens, *[pad_id] * after],
            "labels": [*[NO_LABEL] * before, *labels, *[NO_LABEL] * after],
            "seq_lengths": sizes,
            "seq_start_id": [sum(sizes[:n]) for n in range(len(sizes))],
        }
        ones, nexts = [1] * len(tokens), [*counts[1:], 0]
        of_tokens = {"segment_ids": segments, "position_ids": positions, "next_loss_mask": nexts}
        for name, values in {**of_tokens, "attention_mask": ones, "loss_mask": mask}.items():
            expected[name] = [*[0] * before, *values, *[0] * after]
        if part not in of_one:
            expected |= dict.fromkeys(kept)
        for name, values in found.fields.items():
            if name in expected:
                of_row = f"{where}: row {number}: {name}"
                same(of_row, expected=expected[name], found=values[number])
    columns = _columns(made.options)
    tells_padding = {"attention_mask", "segment_ids", "seq_lengths"} & columns
    tells_mask = {"labels", "loss_mask", "next_loss_mask"} & columns
    if made.is_chat and tells_padding and not tells_mask:
        columns |= {MASKS[of] for of in MASKS if of == made.options["format"]}
    names = {"token_ids", *columns, *kept} if rows else {*found.fields}
    same(f"{where}: columns", expected=names, found={*found.fields})


def _columns(options: dict[str, Any]) -> set[str]:
    """Return the fields beside the token ids that the files of a format have."""
    left_out = {of for of in ("attention_mask", "position_ids") if not options.get(of, True)}
    usual = {"attention_mask", "segment_ids", "position_ids"} - left_out
    format_ = options["format"]
    if format_ == "mds":
        return {*options.get("columns", {}).values()} - {"token_ids"}
    if format_ in ("lance", "npy"):
        return {"segment_ids", "position_ids"}
    if format_ in ("pickle", "webdataset"):
        return set()
    if format_ == "jsonl":
        return {*options.get("columns", ["segment_ids"])}
    return {*options.get("columns", usual)}


def _check_any_packing(
    where: str, made: Any, part: str, pieces: Sequence[Piece], rows: Sequence[Row]
) -> None:
    """What holds of best_fit and pool: nothing is cut that fits, and rows are full."""
    config = made.packings[part]
    length = row_length(config)
    for number, row in enumerate(rows):
        order = [run.piece for run in row]
        same(f"{where}: row {number}: order", expected=sorted(order), found=order)
        for run in row:
            size = len(pieces[run.piece].tokens)
            kept, start = kept_of(size, config), start_of(size, config)
            if run.size < min(length, start + kept - run.start):
                raise DifferenceError(f"{where}: row {number}: {run} is cut, and need not be")
    step = length - config.get("overlap", 0) - bool(config.get("label_token"))
    starts = [
        run
        for row in rows
        for run in row
        if (run.start - start_of(len(pieces[run.piece].tokens), config)) % step
    ]
    if starts:
        raise DifferenceError(f"{where}: {starts[0]} begins at no multiple of {step}")
    if config["strategy"] == "best_fit" or config.get("pool_size", 10_000) >= 10_000:
        first = 0
        for some in made.parts[part].values():
            fills = best_fit_fills([len(piece.tokens) for piece in some], config)
            of_file = rows[first : first + len(fills)]
            found = sorted(sum(run.size for run in row) for row in of_file)
            same(f"{where}: how full the rows of a file are", expected=fills, found=found)
            first += len(fills)


def _counts(
    config: Config, pieces: Sequence[Piece], rows: Sequence[Row], packed: Packed | None
) -> dict[str, int]:
    """Return what the manifest must count, found from the rows alone."""
    length = row_length(config)
    held = Counter(
        (run.piece, run.start + k) for row in rows for run in row for k in range(run.size)
    )
    sizes = [len(piece.tokens) for piece in pieces]
    counts = {
        "num_sequences": len(rows),
        "num_tokens": held.total(),
        "num_repeated_tokens": held.total() - len(held),
        "num_dropped_tokens": sum(sizes) - len(held),
        "num_truncated_documents": 0,
    }
    if config.get("overlong") == "truncate":
        counts["num_truncated_documents"] = sum(size > length for size in sizes)
    there = {piece for piece, _ in held}
    counts["num_dropped_documents"] = sum(
        size > 0 and number not in there for number, size in enumerate(sizes)
    )
    _check_dropped(config, counts)
    left_out = packed.left_out if packed is not None else []
    if packed is not None or not counts["num_dropped_tokens"]:
        kept = [kept_of(size, config) for size in sizes]
        whole = {
            run.piece for row in (*rows, *left_out) for run in row if run.size == kept[run.piece]
        }
        counts["num_cut_documents"] = sum(
            size > 0 and number not in whole for number, size in enumerate(kept)
        )
    return counts


def _check_dropped(config: Any, counts: dict[str, int]) -> None:
    may_drop = (
        config.get("overlong", "split") != "split"
        or config.get("tail") == "drop"
        or config.get("min_sample_length", 1) > 1
    )
    if not may_drop:
        same("tokens dropped without being told", expected=0, found=counts["num_dropped_tokens"])
    may_repeat = config.get("overlap") or config.get("label_token")
    if not may_repeat:
        same("tokens repeated without overlap", expected=0, found=counts["num_repeated_tokens"])
