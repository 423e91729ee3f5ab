"""Compare rows, of files and as `tokflow.loaders` opens them, with the packing that the model
finds, or with what must hold of any packing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tokflow.loaders import open_rows
from tokflow_tests.fuzz.difference import same
from tokflow_tests.fuzz.exports import Options, is_eos_first, is_unpadded
from tokflow_tests.fuzz.model import Piece, Pieces
from tokflow_tests.fuzz.packing import Row, packed_counts, row_length
from tokflow_tests.fuzz.readers import Rows, Stream
from tokflow_tests.fuzz.references import Reference

NO_LABEL = -100

PADDING = -1
"""In place of the id of padding, where that is not compared."""

Filled = list[tuple[int, int, int]]
"""Of each position the token, or PADDING; the number of its document, or 0; and 1 where it is
supervised."""

OF_COLUMNS = ("arrow", "easydel", "hf_dataset", "jsonl", "parquet")
"""Formats whose rows have the columns that are kept of their document."""

MASKS = {**dict.fromkeys((*OF_COLUMNS, "lance"), "loss_mask"), "easydel": "labels"}
"""The field that the rows of chats have in addition, by format."""


@dataclass(frozen=True, kw_only=True)
class ExportToCheck:
    """An export that tokflow made, and what it was made of."""

    folder: Path
    manifest: Any
    options: Options
    packings: Mapping[str, Mapping[str, Any]]
    """By part."""
    shuffle_seed: int | None
    """Of the order of rows."""
    parts: Pieces
    reference: Reference
    config: Mapping[str, Any]
    """Of the tokenizer."""
    keep_columns: Sequence[str] = ()
    """Of the documents."""
    is_chat: bool = False
    """Whether only some tokens are supervised."""


@dataclass(frozen=True)
class PartToCheck:
    """A part of such an export."""

    made: ExportToCheck
    name: str

    @property
    def where(self) -> str:
        return f"{self.made.folder.parent.name} {self.made.options}: {self.name}"

    @property
    def packing(self) -> Mapping[str, Any]:
        return self.made.packings[self.name]

    @cached_property
    def pieces(self) -> list[Piece]:
        """The pieces of the part in order, over all files."""
        return [piece for of_file in self.made.parts[self.name].values() for piece in of_file]

    @property
    def moves_eos(self) -> bool:
        """Whether EOS stands before each document and not behind it."""
        return is_eos_first(self.made.options) and self.made.config.get("bos") != "first"

    @property
    def pad_id(self) -> int:
        """The id that fills a row."""
        of_packing = self.packing.get("pad_id")
        if of_packing is None:
            of_packing = self.made.reference.eos_id if self.made.config.get("eos") != "none" else 0
        of_pickle = self.made.options["format"] == "pickle"
        return self.made.options.get("pad_id", of_packing) if of_pickle else of_packing

    def same_counts(self, expected: Mapping[str, int]) -> None:
        """Compare counts of the manifest."""
        found = {name: self.made.manifest.counts[f"{self.name}.{name}"] for name in expected}
        same(f"{self.where}: counts", expected=expected, found=found)


def check_rows(part: PartToCheck, rows: Sequence[Row], found: Rows) -> None:
    """Compare the rows of a part; `rows` is what the index says of each."""
    packing = part.packing
    _check_fields(part, rows, found)
    files = part.made.parts[part.name].values()
    expected = packed_counts(
        [[len(piece.tokens) for piece in some] for some in files], packing, rows, where=part.where
    )
    in_files = sum(len(row) for row in found.fields.get("token_ids", ()))
    part.same_counts({**expected, "num_padding": in_files - expected["num_tokens"]})


def _check_fields(part: PartToCheck, rows: Sequence[Row], found: Rows) -> None:
    """Every column has, token by token, what the index says that stands there."""
    options, packings = part.made.options, part.made.packings
    length = row_length(part.packing)
    if options.get("padding") == "longest":
        length = max((sum(run.size for run in row) for row in rows), default=0)
    of_one = [name for name, of in packings.items() if of.get("strategy") == "one_document"]
    kept = part.made.keep_columns if of_one and options["format"] in OF_COLUMNS else ()
    for number, row in enumerate(rows):
        filled = _filled(part, row, 0 if is_unpadded(options) else length)
        sizes, segments = [run.size for run in row], [segment for _, segment, _ in filled]
        positions = _positions(segments)
        counts = [int(at > 0 and of) for at, (*_, of) in zip(positions, filled, strict=True)]
        labelled = zip(filled, counts, strict=True)
        expected = {
            "token_ids": [token if segment else part.pad_id for token, segment, _ in filled],
            "labels": [token if of else NO_LABEL for (token, *_), of in labelled],
            "seq_lengths": sizes,
            "seq_start_id": [sum(sizes[:n]) for n in range(len(sizes))],
            "segment_ids": segments,
            "position_ids": positions,
            "attention_mask": [int(segment > 0) for segment in segments],
            "loss_mask": [of for *_, of in filled],
            "next_loss_mask": [*counts[1:], 0],
            **(dict.fromkeys(kept) if part.name not in of_one else {}),
        }
        for name in (of for of in found.fields if of in expected):
            of_row = f"{part.where}: row {number}: {name}"
            same(of_row, expected=expected[name], found=found.fields[name][number])
    columns = _columns(options)
    tells_padding = {"attention_mask", "segment_ids", "seq_lengths", "seq_start_id"} & columns
    tells_mask = {"labels", "loss_mask", "next_loss_mask"} & columns
    if part.made.is_chat and tells_padding and not tells_mask:
        columns |= {MASKS[of] for of in MASKS if of == options["format"]}
    names = {"token_ids", *columns, *kept} if rows else {*found.fields}
    same(f"{part.where}: columns", expected=names, found={*found.fields})


def _filled(part: PartToCheck, row: Row, length: int) -> Filled:
    """Return the tokens of a row, each with its segment, filled up to a length."""
    filled = [
        (token, number, is_label)
        for number, run in enumerate(row, start=1)
        for token, is_label in zip(
            part.pieces[run.piece].tokens[run.start :][: run.size],
            part.pieces[run.piece].mask[run.start :][: run.size],
            strict=True,
        )
    ]
    rest = [(PADDING, 0, 0)] * (length - len(filled))
    return [*rest, *filled] if part.packing.get("padding_side") == "left" else [*filled, *rest]


def _positions(documents: Sequence[int]) -> list[int]:
    """Return how many positions before each are of its document; 0 for padding."""
    return [documents[:at].count(of) if of else 0 for at, of in enumerate(documents)]


def _columns(options: Options) -> set[str]:
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
    return {*options.get("columns", ["segment_ids"] if format_ == "jsonl" else usual)}


def check_loaded_stream(part: PartToCheck, found: Stream, mask: Sequence[int]) -> None:
    """Rows of some length, in a shuffled order, have every token of the stream; `mask` says which
    are supervised."""
    tokens = found.tokens
    length = 1 + len(tokens) % 7
    rows = open_rows(part.made.folder, part=part.name, sequence_length=length)
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
    _check_loaded(part, rows, expected)


def check_loaded_rows(part: PartToCheck, packed: Sequence[Row]) -> None:
    """Rows as they lie in the files, filled, have labels within their segments alone; some columns
    tell that no label begins a segment."""
    rows = open_rows(part.made.folder, part=part.name)
    columns = {*part.made.options.get("columns", ())}
    is_told = "loss_mask" not in columns and columns & {"labels", "next_loss_mask"}
    has_segments = "segment_ids" in rows.source.fields or is_told
    is_masked = "loss_mask" in rows[:0]
    expected = []
    for row in (_filled(part, of, row_length(part.packing)) for of in packed):
        labels = [
            after
            if 0 not in (one, other)
            and (one == other or not has_segments)
            and (is_label or not is_masked)
            else NO_LABEL
            for (_, one, _), (after, other, is_label) in pairwise(row)
        ]
        has_label_token = part.packing.get("label_token")
        expected.append((row[:-1], labels) if has_label_token else (row, [*labels, NO_LABEL]))
    _check_loaded(part, rows, expected)


def _check_loaded(part: PartToCheck, rows: Any, expected: list[tuple[Filled, list[int]]]) -> None:
    same(f"{part.where}: rows of loaders", expected=len(expected), found=len(rows))
    batch = rows.shuffled(seed=1)[:]
    for place, number in enumerate(batch["index"].tolist()):
        row, labels = expected[number]
        found = {name: values[place].tolist() for name, values in batch.items()}
        documents = [document for _, document, _ in row]
        order = [*dict.fromkeys([0, *documents])]
        ids = zip(row, found["input_ids"], strict=True)
        found["input_ids"] = [PADDING if token == PADDING else own for (token, *_), own in ids]
        columns = {
            "input_ids": [token for token, *_ in row],
            "labels": labels,
            "loss_mask": [label != NO_LABEL for label in labels],
            "segment_ids": [order.index(of) for of in documents],
            "position_ids": _positions(documents),
        }
        for name in (of for of in columns if of in found):
            at = f"{part.where}: row {number} of loaders: {name}"
            same(at, expected=columns[name], found=found[name])
