"""The split of a mixture over one file of a source: spans of the source's split, some repeated."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.split.cut_tokens import CUT_LOSS_MASK_NAME, CUT_TOKENS_NAME
from tokflow.split.mixture import mixture_of, part_in
from tokflow.split.rule import NOT_TAKEN, FileSpans
from tokflow.split.shuffle import (
    PERMUTATION_VERSION,
    document_keys,
    shuffle_fields,
    shuffle_seed_of,
)
from tokflow.split.spans import SPAN_COLUMNS, SPLIT_VERSION, Split, write_spans
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.tables import to_numpy
from tokflow.strata.config import parts_within
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import ROWS_OF_PASS, TokenShard

Decode = Callable[[Sequence[int]], str]

TokenIds = npt.NDArray[np.unsignedinteger[Any]]

MIXTURE_VERSION = 3
"""Raised when the same input would give other bytes of a mixture's split."""

BUDGET_CUTS = "num_budget_cuts"
"""A count of each part of a mixture: documents whose end the mixture does not take, with their EOS
where it cut them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureShare:
    """The share of a mixture in one partition of a source."""

    key: str
    """The partition of the mixture: `<source>/<partition of the source>`."""
    tokens: Mapping[str, int]
    """Tokens of each part of the mixture, in order."""
    seed: int
    """Seed that chooses documents where a pass is not whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """Spans that a mixture takes; arrays (num_spans,), int64 except `is_cut`."""

    document: npt.NDArray[np.int64]
    """Index of the document among those of all passes."""
    char_start: npt.NDArray[np.int64]
    num_chars: npt.NDArray[np.int64]
    token_start: npt.NDArray[np.int64]
    """Position in the token source of the source's split."""
    num_tokens: npt.NDArray[np.int64]
    is_cut: npt.NDArray[np.bool_]
    is_cut_here: npt.NDArray[np.bool_]
    """The budget cut it: the EOS of its source, if there is one, is its last token."""

    def __getitem__(self, which: slice | npt.NDArray[np.int64]) -> "_Taken":
        return _Taken(**{name: getattr(self, name)[which] for name in self.__slots__})

    @staticmethod
    def joined(several: list["_Taken"]) -> "_Taken":
        """Return all of several, one after another."""
        names = _Taken.__slots__
        return _Taken(**{n: np.concatenate([getattr(of, n) for of in several]) for n in names})


def mixed_split_recipe(
    split: str, share: MixtureShare, *, shuffle_seed: int | None = None
) -> Recipe:
    """Return the recipe of a mixture's split over the source's split with fingerprint `split`."""
    fields = {
        "key": share.key,
        "tokens": [[name, num] for name, num in share.tokens.items()],  # their order counts
        "seed": share.seed,
        "version": [MIXTURE_VERSION, PERMUTATION_VERSION],
    }
    return Recipe(
        stage="split",
        version=SPLIT_VERSION,
        config={"mixture": fields, **shuffle_fields(shuffle_seed)},
        parents={"split": split},
    )


def share_of(manifest: Manifest) -> MixtureShare:
    """Return the share that a mixture's split was made from."""
    fields = mixture_of(manifest.recipe.config) or {}
    return MixtureShare(key=fields["key"], tokens=dict(fields["tokens"]), seed=fields["seed"])


def write_mixed_split(
    source: Split,
    share: MixtureShare,
    folder: Path,
    *,
    dataset: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    shuffle_seed: int | None = None,
) -> None:
    """Write a mixture's split over one file of a source into the empty `folder`, manifest last.

    A part has whole passes over the spans that the source's split has there, and of one more those
    that come first by a key of `share.seed`; the last is cut where the tokens end, and has its
    EOS there, which may be all that it has: a part has the tokens of the share exactly, and may
    end inside a character. Its characters are those that end before, as `tokenizer` decodes them.
    Passes follow one another in file order, unless `shuffle_seed` orders all of them.

    Raises: CorruptOutputError; UntrustedCodeError of the tokenizer, where a document is cut.
    """
    started = time.perf_counter()
    shard, names = shard_in_mixture(source, share), tuple(share.tokens)
    of_parts = [_taken(source, share, name, tokenizer) for name in names]
    taken = _Taken.joined(of_parts)
    _write_cut_tokens(source, taken, folder)
    fields = {name: getattr(taken, name) for name in FileSpans.__slots__ if name != "part"}
    part = np.repeat(np.arange(len(of_parts)), [len(of.document) for of in of_parts])
    cuts = {name: int(of.is_cut_here.sum()) for name, of in zip(names, of_parts, strict=True)}
    write_spans(
        FileSpans(part=part, **fields),
        taken.num_tokens,
        shard.documents([*SPAN_COLUMNS]),
        shard,
        folder,
        recipe=recipe,
        dataset=dataset,
        parts=names,
        shuffle_seed=shuffle_seed,
        started=started,
        counts={f"{of}.{BUDGET_CUTS}": cuts.get(of, 0) for of in (*names, NOT_TAKEN)},
    )


def remake_mixed_split(split: Split, source: Split, folder: Path, tokenizer: Tokenizer) -> None:
    """Write a split of a mixture once more, from the source's split that it was made from."""
    manifest = split.manifest
    write_mixed_split(
        source,
        share_of(manifest),
        folder,
        dataset=manifest.dataset,
        recipe=manifest.recipe,
        tokenizer=tokenizer,
        shuffle_seed=shuffle_seed_of(manifest),
    )


def shard_in_mixture(source: Split, share: MixtureShare) -> TokenShard:
    """Return the token shard of a source's file as a mixture has it: each pass over its documents
    is as one more raw file of a group, `code/a.jsonl`, `code@2/a.jsonl` and so on."""
    shard, num_passes = source.shard, _num_passes(source, share)
    origins, (name, _, _) = shard.origins, share.key.partition("/")
    edges = [*origins.first_rows, ROWS_OF_PASS]
    files = [
        {
            "raw_file": f"{name}@{number}/{key}" if number > 1 else f"{name}/{key}",
            "num_rows": stop - start,
        }
        for number in range(1, num_passes + 1)
        for key, start, stop in zip(origins.raw_files, edges[:-1], edges[1:], strict=True)
    ]
    details = {**shard.manifest.details, "files": files}
    manifest = replace(shard.manifest, partition=share.key, details=details)
    return TokenShard(replace(shard.stored, manifest=manifest), num_passes)


def source_and_key(key: str) -> tuple[str, str]:
    """Return the source and its key of a partition, or a raw file, of a mixture: `code` and
    `a.jsonl` of `code/a.jsonl` and of `code@2/a.jsonl`."""
    name, _, rest = key.partition("/")
    return name.partition("@")[0], rest


def _num_passes(source: Split, share: MixtureShare) -> int:
    """Return the passes of the part that has most; at least 1."""
    counts = source.manifest.counts
    available = {
        name: sum(counts.get(f"{of}.num_tokens", 0) for of in _parts_of(source, share, name))
        for name in share.tokens
    }
    return max([1, *(-(-num // available[n]) for n, num in share.tokens.items() if available[n])])


def _parts_of(source: Split, share: MixtureShare, part: str) -> list[str]:
    """Return the parts of the source's split that are in a part of the mixture: all strata of a
    source that names none; a part without text where the source has no such part."""
    own = part_in(source_and_key(share.key)[0], part)
    return parts_within(source.parts, own) or [own]


def _taken(source: Split, share: MixtureShare, part: str, tokenizer: Tokenizer) -> _Taken:
    """Return the spans that one part of the mixture takes, pass by pass."""
    several = [_spans_of(source, of) for of in _parts_of(source, share, part)]
    spans = _Taken.joined(several)
    if len(several) > 1:
        spans = spans[np.lexsort((spans.char_start, spans.document))]
    available = int(spans.num_tokens.sum())
    passes, rest = divmod(share.tokens[part], available) if available else (0, 0)
    num_documents = source.shard.manifest.counts["num_documents"]
    taken = [spans] * passes + [_drawn(source, share, spans, rest, tokenizer)] * bool(rest)
    moved = [
        replace(of, document=of.document + number * num_documents)
        for number, of in enumerate(taken)
    ]
    return _Taken.joined([spans[:0], *moved])


def _spans_of(source: Split, part: str) -> _Taken:
    """Return the spans that the source's split has in a part, each of one document; none where it
    has no such part."""
    table = source.shard.documents(["num_chars"])
    spans, rows = source.spans(part), source.rows(part)
    is_cut = np.repeat(rows["is_cut"], rows["num_documents"])
    num_chars = to_numpy(table["num_chars"])[spans.document]
    num_chars[is_cut] = rows["num_chars"][rows["is_cut"]]
    return _Taken(
        document=spans.document,
        char_start=spans.char_start,
        num_chars=num_chars,
        token_start=spans.token_start,
        num_tokens=spans.num_tokens,
        is_cut=is_cut,
        is_cut_here=np.zeros_like(is_cut),
    )


def _drawn(
    source: Split, share: MixtureShare, spans: _Taken, num_tokens: int, tokenizer: Tokenizer
) -> _Taken:
    """Return the spans that come first by the key of the seed, in file order; the last is cut where
    `num_tokens` end."""
    rows = to_numpy(source.shard.documents(["row"])["row"])[spans.document]
    origins = shard_in_mixture(source, share).origins
    keys = document_keys(origins, rows, share.seed, purpose="mixture")
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(spans.num_tokens[order])
    num_whole = int(np.searchsorted(ends, num_tokens, side="right"))
    chosen = np.sort(order[:num_whole])
    left = num_tokens - (int(ends[num_whole - 1]) if num_whole else 0)
    if not left:
        return spans[chosen]
    last = order[num_whole : num_whole + 1]
    cut = replace(
        spans[last],
        num_chars=np.array([_num_chars(source, spans[last], left, tokenizer)]),
        num_tokens=np.array([left]),
        is_cut=np.ones(1, dtype=bool),
        is_cut_here=np.ones(1, dtype=bool),
    )
    drawn = _Taken.joined([spans[chosen], cut])
    return drawn[np.argsort(np.concatenate([chosen, last]), kind="stable")]


def _num_chars(source: Split, span: _Taken, num_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the characters of one span that end in its first `num_tokens`, EOS included."""
    details, is_chat = source.shard.manifest.details, source.shard.has_loss_mask
    num_eos = int(details["eos_id"] is not None)
    num_read = span.num_tokens if is_chat else np.array([num_tokens])
    tokenizer.ask_for_files()
    token_ids = source.token_source().take(span.token_start, num_read)
    decode = open_reference(tokenizer).decode
    num_bos = int(token_ids[0] == details["bos_id"])
    if num_bos and is_chat and _is_in_text(token_ids, span, num_eos, decode):
        num_bos = 0
    return count_characters(token_ids[num_bos : num_tokens - num_eos], decode)


def _is_in_text(token_ids: TokenIds, span: _Taken, num_eos: int, decode: Decode) -> bool:
    """Return whether a chat's template wrote its BOS: with it the tokens are the whole text."""
    ends = len(token_ids), len(token_ids) - num_eos
    return any(count_characters(token_ids[:end], decode) == span.num_chars[0] for end in ends)


def _write_cut_tokens(source: Split, taken: _Taken, folder: Path) -> None:
    """Write the tokens of cut spans, and of chats their loss mask, in the order of the spans."""
    if not taken.is_cut.any():
        return
    cut = taken[np.flatnonzero(taken.is_cut)]
    eos_id = source.shard.manifest.details["eos_id"]
    ended = (np.cumsum(cut.num_tokens) - 1)[cut.is_cut_here & (eos_id is not None)]
    tokens = np.array(source.token_source().take(cut.token_start, cut.num_tokens))
    tokens[ended] = eos_id or 0
    tokens.tofile(folder / CUT_TOKENS_NAME)
    if (masks := source.loss_mask_source()) is not None:
        mask = np.array(masks.take(cut.token_start, cut.num_tokens))
        mask[ended] = 0  # the reply did not end there
        mask.tofile(folder / CUT_LOSS_MASK_NAME)


_NO_CHARACTER = "\ufffd"
"""The decoded form of tokens that are less than a character, and a character of its own."""


def count_characters(token_ids: TokenIds, decode: Decode) -> int:
    """Return the number of characters that end in the first tokens of a text.

    Characters are those of the decoded text: of the text itself, unless the tokenizer normalises.
    """
    # Less than a character are up to 3 tokens, for none has more than 4 bytes.
    for stop in range(len(token_ids), max(0, len(token_ids) - 4), -1):
        text = decode(token_ids[:stop].tolist())
        if not text.endswith(_NO_CHARACTER):
            rest = decode(token_ids[stop:].tolist()) if stop < len(token_ids) else ""
            return len(text) + len(rest.rstrip(_NO_CHARACTER))  # a token may be " " and a half 😀
    text = decode(token_ids.tolist()) if len(token_ids) else ""
    return len(text if len(token_ids) >= 4 else text.rstrip(_NO_CHARACTER))  # many U+FFFD are text
