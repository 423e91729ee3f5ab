"""The split of a mixture over one file of a source: spans of the source's split, some repeated."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.split import (
    CUT_LOSS_MASK_NAME,
    CUT_TOKENS_NAME,
    SPAN_COLUMNS,
    SPLIT_VERSION,
    Split,
    write_spans,
)
from tokflow.split.mixture import dataset_of, part_in
from tokflow.split.permutation import (
    PERMUTATION_VERSION,
    document_keys,
    shuffle_fields,
)
from tokflow.split.rule import NOT_TAKEN, FileSpans
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.tables import to_numpy
from tokflow.strata.stage import parts_within
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


TAKEN = np.dtype(
    [(of, "i8") for of in ("document", "char_start", "num_chars", "token_start", "num_tokens")]
    + [("is_cut", "?"), ("is_cut_here", "?")]
)
"""Spans that a mixture takes. document: index among those of all passes; token_start: position in
the token source of the source's split; is_cut_here: the budget cut it, so that the EOS of its
source, if there is one, is its last token."""

Taken = npt.NDArray[np.void]
"""Arrays of TAKEN, (num_spans,)."""


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


def share_of(recipe: Recipe) -> MixtureShare:
    """Return the share that a mixture's split is made from."""
    fields = recipe.config["mixture"]
    return MixtureShare(key=fields["key"], tokens=dict(fields["tokens"]), seed=fields["seed"])


def write_mixed_split(
    source: Split, folder: Path, *, dataset: str, recipe: Recipe, tokenizer: Tokenizer
) -> None:
    """Write a mixture's split over one file of a source, its share as the recipe has it, into the
    empty `folder`, manifest last.

    A part has whole passes over the spans that the source's split has there, and of one more those
    that come first by a key of the share's seed; the last is cut where the tokens end, and has its
    EOS there, which may be all that it has: a part has the tokens of the share exactly, and may
    end inside a character. Its characters are those that end before, as `tokenizer` decodes them.
    Passes follow one another in file order, unless a seed orders all of them.

    Raises: CorruptOutputError; UntrustedCodeError of the tokenizer, where a document is cut.
    """
    started, share = time.perf_counter(), share_of(recipe)
    shard, names = shard_in_mixture(source, share), tuple(share.tokens)
    of_parts = [_taken(source, share, name, tokenizer) for name in names]
    taken = np.concatenate(of_parts)
    if taken["is_cut"].any():
        _write_cut_tokens(source, taken[taken["is_cut"]], folder)
    of_spans = [name for name in FileSpans.__slots__ if name != "part"]
    fields = {name: np.ascontiguousarray(taken[name]) for name in of_spans}
    part = np.repeat(np.arange(len(of_parts)), [len(of) for of in of_parts])
    cuts = {name: int(of["is_cut_here"].sum()) for name, of in zip(names, of_parts, strict=True)}
    write_spans(
        FileSpans(part=part, **fields),
        np.ascontiguousarray(taken["num_tokens"]),
        shard.documents([*SPAN_COLUMNS]),
        shard,
        folder,
        recipe=recipe,
        dataset=dataset,
        parts=names,
        started=started,
        counts={f"{of}.{BUDGET_CUTS}": cuts.get(of, 0) for of in (*names, NOT_TAKEN)},
    )


def shard_in_mixture(source: Split, share: MixtureShare) -> TokenShard:
    """Return the token shard of a source's file as a mixture has it: each pass over its documents
    is as one more raw file of a group, `code/a.jsonl`, `code@2/a.jsonl` and so on."""
    shard, counts, num_passes = source.shard, source.manifest.counts, 1
    for part, num in share.tokens.items():  # as many as the part that has most
        own = _parts_of(source, share, part)
        available = sum(counts.get(f"{of}.num_tokens", 0) for of in own)
        num_passes = max(num_passes, -(-num // available) if available else 1)
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


def own_dataset(manifest: Manifest) -> str | None:
    """Return the dataset whose raw files an export or its index names by their own keys; None of a
    mixture, which names them by source."""
    return None if "mixture" in manifest.details else manifest.dataset


def origin_of(raw_file: str, dataset: str | None) -> tuple[str, str]:
    """Return the dataset of a raw file, as the index of an export names it, and its key there.
    `dataset`: as `own_dataset`."""
    if dataset is not None:
        return dataset, raw_file
    source, key = source_and_key(raw_file)
    return dataset_of(source), key


def _parts_of(source: Split, share: MixtureShare, part: str) -> list[str]:
    """Return the parts of the source's split that are in a part of the mixture: all strata of a
    source that names none; a part without text where the source has no such part."""
    own = part_in(source_and_key(share.key)[0], part)
    return parts_within(source.parts, own) or [own]


def _taken(source: Split, share: MixtureShare, part: str, tokenizer: Tokenizer) -> Taken:
    """Return the spans that one part of the mixture takes, pass by pass."""
    several = [_spans_of(source, of) for of in _parts_of(source, share, part)]
    spans = np.concatenate(several)
    if len(several) > 1:
        spans = spans[np.lexsort((spans["char_start"], spans["document"]))]
    available = int(spans["num_tokens"].sum())
    passes, rest = divmod(share.tokens[part], available) if available else (0, 0)
    num_documents = source.shard.manifest.counts["num_documents"]
    taken = [spans] * passes + [_drawn(source, share, spans, rest, tokenizer)] * bool(rest)
    found = np.concatenate([spans[:0], *taken])
    found["document"] += np.repeat(np.arange(len(taken)), [*map(len, taken)]) * num_documents
    return found


def _spans_of(source: Split, part: str) -> Taken:
    """Return the spans that the source's split has in a part, each of one document; none where it
    has no such part."""
    table = source.shard.documents(["num_chars"])
    spans, rows = source.spans(part), source.rows(part)
    is_cut = np.repeat(rows["is_cut"], rows["num_documents"])
    num_chars = to_numpy(table["num_chars"])[spans.document]
    num_chars[is_cut] = rows["num_chars"][rows["is_cut"]]
    found = np.zeros(len(is_cut), TAKEN)
    for name in ("document", "char_start", "token_start", "num_tokens"):
        found[name] = getattr(spans, name)
    found["num_chars"], found["is_cut"] = num_chars, is_cut
    return found


def _drawn(
    source: Split, share: MixtureShare, spans: Taken, num_tokens: int, tokenizer: Tokenizer
) -> Taken:
    """Return the spans that come first by the key of the seed, in file order; the last is cut where
    `num_tokens` end."""
    rows = to_numpy(source.shard.documents(["row"])["row"])[spans["document"]]
    origins = shard_in_mixture(source, share).origins
    keys = document_keys(origins, rows, share.seed, purpose="mixture")
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(spans["num_tokens"][order])
    num_whole = int(np.searchsorted(ends, num_tokens, side="right"))
    left = num_tokens - (int(ends[num_whole - 1]) if num_whole else 0)
    chosen = np.sort(order[: num_whole + bool(left)])
    drawn = spans[chosen]
    if left:
        cut = drawn[chosen == order[num_whole]]
        cut["num_chars"], cut["num_tokens"] = _num_chars(source, cut, left, tokenizer), left
        cut["is_cut"] = cut["is_cut_here"] = True
        drawn[chosen == order[num_whole]] = cut
    return drawn


def _num_chars(source: Split, span: Taken, num_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the characters of one span that end in its first `num_tokens`, EOS included."""
    details, is_chat = source.shard.manifest.details, source.shard.has_loss_mask
    num_eos = int(details["eos_id"] is not None)
    num_read = span["num_tokens"] if is_chat else np.array([num_tokens])
    tokenizer.ask_for_files()
    token_ids = source.token_source().take(span["token_start"], num_read)
    decode = open_reference(tokenizer).decode
    num_bos = int(token_ids[0] == details["bos_id"])
    if num_bos and is_chat:  # a template may write BOS: with it the tokens are the whole text
        ends = len(token_ids), len(token_ids) - num_eos
        is_whole = (count_characters(token_ids[:end], decode) == span["num_chars"] for end in ends)
        num_bos = 0 if any(is_whole) else 1
    return count_characters(token_ids[num_bos : num_tokens - num_eos], decode)


def _write_cut_tokens(source: Split, cut: Taken, folder: Path) -> None:
    """Write the tokens of cut spans, and of chats their loss mask, in the order of the spans."""
    eos_id = source.shard.manifest.details["eos_id"]
    spans = cut["token_start"].copy(), cut["num_tokens"].copy()
    ended = (np.cumsum(spans[1]) - 1)[cut["is_cut_here"] & (eos_id is not None)]
    tokens = np.array(source.token_source().take(*spans))
    tokens[ended] = eos_id or 0
    tokens.tofile(folder / CUT_TOKENS_NAME)
    if (masks := source.loss_mask_source()) is not None:
        mask = np.array(masks.take(*spans))
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
