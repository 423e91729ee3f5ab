"""Excerpts of what a model sees: a sequence of a file in each part, decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.token_texts import TokenTexts, drawn_token
from tokflow.pipeline.output import Stage
from tokflow.sequences.segments import SEGMENTS_NAME
from tokflow.split.spans import Split
from tokflow.store.arrow import to_numpy
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_part
from tokflow.views.sample import StoreFacts, length_of, spread

Numbers: TypeAlias = npt.NDArray[np.int64]

MAX_EXCERPTS = 4

FILES_LOOKED_AT = 16
"""Files in which a sequence of each part is looked for."""

SEQUENCES_LOOKED_AT = 64
"""The first sequences of a file, among which one of several documents is chosen."""

SEGMENTS_SHOWN, TOKENS_SHOWN = 6, 120
"""Segments of a sequence; tokens of one of them, at most, and of several fewer, down to a third."""

CHARS_SHOWN = 480
"""Characters of a segment, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownToken:
    """A token, or several that have a character together, as a page shows them."""

    text: str
    is_special: bool
    is_loss: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSegment:
    """Neighbouring tokens of one document, the first of them."""

    document: str
    """`<raw file>:<row>`."""
    first: tuple[ShownToken, ...]
    num_left_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSequence:
    """One sequence or, where no file fills one by itself, the beginning of a part of a file."""

    part: str
    raw_file: str
    sequence: int | None
    """Its ordinal in the file; None where there are no sequences."""
    segments: tuple[ShownSegment, ...]
    num_segments: int
    """Of the whole sequence, as the two that follow."""
    num_tokens: int
    num_padding: int
    is_padded_left: bool
    """The padding comes before the segments."""
    has_mask: bool
    """False where every token is a loss token."""


def make_excerpts(facts: StoreFacts, texts: TokenTexts) -> list[ShownSequence]:
    """Return the excerpts: of each part one and, of the largest, another.

    Raises: CorruptOutputError.
    """
    stages: tuple[Stage, ...] = ("sequences", "split")
    packed, splits = (
        [facts.plan.dataset.store.read(of) for of in spread(facts.folders(stage), FILES_LOOKED_AT)]
        for stage in stages
    )
    packing = facts.plan.dataset.packing
    of_parts = facts.split.parts if facts.split else {}
    parts = sorted(of_parts, key=lambda part: -of_parts[part]["num_tokens"])
    return [
        _excerpt(made, part, texts, packing.of_part(part).padding_side)
        for number, part in enumerate(parts[: MAX_EXCERPTS - 1])
        for made in (_with_part(packed, part) or _with_part(splits, part))[: 1 + (number == 0)]
    ]


def _with_part(outputs: Sequence[StoredOutput], part: str) -> list[StoredOutput]:
    """Return two of the outputs that have a sequence of a part, or tokens of it."""
    names = {"sequences": "num_sequences", "split": "num_tokens"}
    found = [of for of in outputs if of.manifest.counts[f"{part}.{names[of.manifest.stage]}"]]
    return [found[0], found[-1]] if len(found) > 1 else found


def _excerpt(made: StoredOutput, part: str, texts: TokenTexts, padding_side: str) -> ShownSequence:
    split = Ancestry().split(made)
    shard, num_padding = split.shard, 0
    with report_damage_on_error(made, split, shard):
        sequence, starts, lengths, documents = _segments(made, split, part)
        if sequence is not None:
            num_padding = length_of(made, part) - int(lengths.sum())
        rows = to_numpy(shard.documents(["row"])["row"])[documents[:SEGMENTS_SHOWN]]
        raw_files, ordinals = shard.origins.of_rows(rows)
        of_rows = zip(raw_files.to_pylist(), ordinals.tolist(), strict=True)
        names = [f"{raw_file}:{row}" for raw_file, row in of_rows]
        reader = _Reader(split, texts, most=TOKENS_SHOWN // min(len(names), 3))
        edges = zip(names, starts.tolist(), lengths.tolist(), strict=False)
        return ShownSequence(
            part=part,
            raw_file=str(made.manifest.partition),
            sequence=sequence,
            segments=tuple(reader.segment(*of) for of in edges),
            num_segments=len(starts),
            num_tokens=int(lengths.sum()),
            num_padding=num_padding,
            is_padded_left=padding_side == "left",
            has_mask=shard.has_loss_mask,
        )


def _segments(
    made: StoredOutput, split: Split, part: str
) -> tuple[int | None, Numbers, Numbers, Numbers]:
    """Return the first sequence of several documents, else the first, and where its segments begin
    in the tokens of the split, their lengths and documents; of a split as many spans as are shown.

    Of the sequences looked at one with as many segments as are shown is as good as one with more.
    """
    if made.manifest.stage == "split":
        spans, shown = split.spans(part), slice(SEGMENTS_SHOWN)
        return None, spans.token_start[shown], spans.num_tokens[shown], spans.document[shown]
    names = ["sequence", "token_start", "num_tokens", "document"]
    num = min(SEQUENCES_LOOKED_AT, made.manifest.counts[f"{part}.num_sequences"])
    rows = read_part(made.file(SEGMENTS_NAME), part, names, sequences=(0, num))
    counts = np.bincount(rows["sequence"], minlength=num)
    chosen = int(np.argmax(np.minimum(counts, SEGMENTS_SHOWN)))
    is_in = rows["sequence"] == chosen
    return chosen, *(rows[name][is_in] for name in names[1:])


class _Reader:
    """Reads the tokens of segments of one split, and decodes them."""

    def __init__(self, split: Split, texts: TokenTexts, *, most: int) -> None:
        self._source, self._mask = split.token_source(is_lazy=True), split.loss_mask_source()
        self._texts, self._most = texts, most

    def segment(self, document: str, start: int, length: int) -> ShownSegment:
        """Return a segment that begins at a position, and is so long."""
        first, num_shown = self._tokens(start, start + min(length, self._most))
        return ShownSegment(document=document, first=first, num_left_out=length - num_shown)

    def _tokens(self, start: int, stop: int) -> tuple[tuple[ShownToken, ...], int]:
        """Return tokens up to `CHARS_SHOWN` characters of them, and how many they are."""
        token_ids = self._source.read(start, stop).tolist()
        is_loss = None if self._mask is None else self._mask.read(start, stop).tolist()
        shown: list[ShownToken] = []
        at = 0
        for ids, text in self._texts.pieces(token_ids):
            if sum(len(of.text) for of in shown) > CHARS_SHOWN:
                break
            is_special = ids[0] in self._texts.special_ids
            counts = is_loss is None or bool(is_loss[at])
            shown.append(ShownToken(text=drawn_token(text), is_special=is_special, is_loss=counts))
            at += len(ids)
        return tuple(shown), at
