"""Pictures of a report: lengths of documents and sequences, bytes per token, rejects by reason,
shares of parts, fill of sequences, and the use of the vocabulary."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import UntrustedCodeError
from tokflow.formatting import counted
from tokflow.pipeline.describe import formatted, full
from tokflow.pipeline.plan import Plan
from tokflow.sequences.segments import SEGMENTS_NAME
from tokflow.sequences.stage import SEQUENCES
from tokflow.store import integrity, store, tables
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import DOCUMENTS_NAME, OTHERS
from tokflow.views.picture import (
    MAX_BARS,
    SERIES,
    Picture,
    bars_picture,
    make_picture,
    short_number,
)
from tokflow.views.report_facts import StoreFacts, files_of, near_duplicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCRIPT_TOKENS = 200_000
"""Tokens of the sample in which scripts are looked for."""

COMMON = "digits, signs, spaces"
"""Name of what has the script Common: what all languages share."""

NUM_BINS = 40

MAX_DOCUMENTS = 5_000_000
"""Documents whose lengths are looked at: an equal share of each file."""

MAX_SEQUENCES = 1_000_000
"""Sequences of a part whose segments are looked at: an equal share of each file."""

TOKEN_BYTES = 2
"""Size of a token in the files that a report samples; in some vocabularies it is 4."""

FREQUENT, UNUSED = 24, 28
"""Ids that are shown: the most frequent, and some that never occur."""

UNUSED_LOOKED_AT = 2_000
"""Ids among which those to show are chosen."""

POINTS = 160
"""Points of the curve, at most."""


def by_file(facts: StoreFacts) -> Picture | None:
    """Return bytes per token of each file; of many files, of the densest and the least dense."""
    rates = [(of.key, of.bytes_per_token) for of in facts.statuses if of.bytes_per_token]
    known = sorted(rates, key=lambda of: (-of[1], of[0]))
    if not known:
        return None
    shown, note = known, "bytes of UTF-8 of the text; more is denser"
    if len(known) > MAX_BARS:
        median = np.median([rate for _, rate in known])
        shown = [*known[: MAX_BARS // 2], *known[-MAX_BARS // 2 :]]
        note = f"the {MAX_BARS // 2} most and least of {len(known):,} files, median {median:.2f}"
    bars = [(key, rate, formatted("bytes_per_token", rate)) for key, rate in shown]
    return bars_picture("bytes_per_token_by_file", "Bytes per token, by file", bars, note=note)


def by_script(facts: StoreFacts, texts: TokenTexts) -> Picture | None:
    """Return bytes per token of each script that the tokens of a sample are in.

    A token is of the script of its first letter; one without letters, such as a number, of none.
    """
    num_bytes: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    for beginning in facts.shards.beginnings(SCRIPT_TOKENS):
        for ids, text in texts.pieces(beginning.tolist()):
            if texts.special_ids.isdisjoint(ids):
                script = _script_of(text)
                num_bytes[script] += len(text.encode(errors="replace"))
                num_tokens[script] += len(ids)
    whole = sum(num_bytes.values())
    if not whole:
        return None
    largest = sorted(num_bytes, key=lambda of: (-num_bytes[of], of))
    rates = {of: num_bytes[of] / num_tokens[of] for of in largest}
    bars = [(of, rates[of], f"{rates[of]:.2f}, {num_bytes[of] / whole:.1%}") for of in largest]
    note = f"with the share of the text; read: {facts.shards.read_of(SCRIPT_TOKENS)}"
    title = "Bytes per token, by script"
    return bars_picture("bytes_per_token_scripts", title, bars, note=note, color=SERIES[2])


@cache
def _script_of(text: str) -> str:
    """Return the name of the script of the first character that has one."""
    from fontTools import unicodedata as unicode_data  # comes with matplotlib

    for character in text:
        script = unicode_data.script(character)
        if script not in ("Zyyy", "Zinh", "Zzzz"):
            return str(unicode_data.script_name(script)).replace("_", " ")
    return COMMON


def reject_picture(facts: StoreFacts) -> Picture | None:
    """Return the bars of rejects by reason, the most frequent first; None where there is none."""
    reasons = facts.plan.totals.reject_reasons
    if not reasons:
        return None
    ordered = sorted(reasons.items(), key=lambda item: (item[0] == OTHERS, -item[1], item[0]))
    bars = [(reason, num, f"{num:,}") for reason, num in ordered]
    note = f"{counted(reasons.total(), 'reject')} in all"
    name, title = "rejects_by_reason", "Rejects, by reason"
    return bars_picture(name, title, bars, note=note, color=SERIES[4], is_named_above=True)


def similarity_picture(facts: StoreFacts) -> Picture | None:
    """Return the bars of pairs of alike texts by similarity; None where none is looked for."""
    nums = near_duplicates(facts).get("similarities", [])
    first = next((at for at, num in enumerate(nums) if num), None)
    if first is None:
        return None
    bars = [(f"{at / 20:.2f}", num, f"{num:,}") for at, num in [*enumerate(nums)][first:]]
    note = "pairs of texts by the least similarity of each bar, all of them proven"
    return bars_picture("similarities", "Near-duplicates", bars, note=note, color=SERIES[3])


def share_pictures(facts: StoreFacts) -> Iterator[Picture]:
    """Yield the pictures of shares that there is something to see in."""
    if facts.split:
        parts = [(part, of["tokens_fraction"]) for part, of in facts.split.parts.items()]
        bars = [(part, share, formatted("tokens_fraction", share)) for part, share in parts]
        note = "share of the tokens"
        yield bars_picture("split_shares", "Parts", bars, note=note, limit=1, color=SERIES[0])
    if packed := [of for of in facts.export_rows if of.get("num_sequences")]:
        bars = [(f"{of['export']}: {of['part']}", *_fill_of(of)) for of in packed]
        note = "tokens by the places for them; the rest is padding"
        yield bars_picture("packing_fill", "Packing", bars, note=note, limit=1, color=SERIES[2])


def _fill_of(row: Mapping[str, Any]) -> tuple[float, str]:
    fill, dropped = row["fill_fraction"], row["num_dropped_tokens"]
    words = [formatted("fill_fraction", fill)]
    words += [f"{short_number(dropped)} dropped"] if dropped else []
    words += ["stale"] if row["state"] == "stale" else []
    return fill, ", ".join(words)


def length_pictures(facts: StoreFacts) -> Iterator[Picture]:
    """Yield the pictures of lengths that there is something to see in."""
    shards = facts.shards
    columns = [_lengths_in(of, num) for of, num in shards.shares("num_documents", MAX_DOCUMENTS)]
    lengths = np.concatenate([np.zeros(0, np.int64), *columns])
    is_empty = lengths == 0
    if not is_empty.all():
        num_empty = int(is_empty.sum())
        num_all = sum(of.manifest.counts["num_documents"] for of in shards.shards)
        first = ", the first of each" if len(lengths) < num_all else ""
        empty = f", {counted(num_empty, 'document')} without tokens" if num_empty else ""
        yield _histogram(
            "document_lengths",
            "Document lengths",
            lengths[~is_empty],
            label="tokens per document",
            note=f"{counted(len(lengths), 'document')}{first} of {shards.files}{empty}",
        )
    yield from _of_sequences(facts)


def _lengths_in(shard: TokenShard, num: int) -> npt.NDArray[np.int64]:
    """Return the tokens of each of the first `num` documents; no further row group is read."""
    found = [np.zeros(0, np.int64)]
    with integrity.report_damage_on_error(shard):
        for name in shard.names(DOCUMENTS_NAME):
            if (left := num - sum(map(len, found))) > 0:
                first = tables.read_first(shard.stored.file(name), ["num_tokens"], left)
                found.append(tables.to_numpy(first["num_tokens"]))
    return np.concatenate(found)


def _of_sequences(facts: StoreFacts) -> Iterator[Picture]:
    folders = facts.folders(SEQUENCES)
    read = facts.sampled(folders)
    found = [_sequences_in(made, MAX_SEQUENCES // len(read)) for made in read]
    fill, num, length = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
    if len(fill) == 0:
        return
    files = files_of(len(found), len(folders))
    note = f"{counted(len(fill), 'sequence')} of {files}, without those of tails"
    most, is_full = int(length.max()), fill == length
    if not is_full.all():
        percent = formatted("fill_fraction", full(int(is_full.sum()), len(fill)))
        yield _histogram(
            "sequence_lengths",
            "Tokens in sequences",
            fill,
            label=f"tokens of {most:,}",
            note=f"{note}; {percent} are full",
            most=most,
        )
    yield _histogram(
        "segments_per_sequence",
        "Documents in a sequence",
        num,
        label="documents, or what of them is in it",
        note=note,
    )


def _sequences_in(made: store.StoredOutput, most: int) -> npt.NDArray[np.int64]:
    """Return the tokens, the segments and the sequence_length of each finished sequence of a file,
    (3, num_sequences); of each part those of the first `most`."""
    parts: Sequence[str] = made.manifest.details["parts"]
    of_all = made.manifest.details["sequence_length"]  # parts can have different ones
    found = [np.zeros((3, 0), np.int64)]
    with integrity.report_damage_on_error(made):
        names = ["sequence", "num_tokens"]
        rows = tables.read_parts(made.file(SEGMENTS_NAME), parts, names, sequences=(0, most))
        for part, columns in rows.items():
            num = min(made.manifest.counts[f"{part}.num_sequences"], most)
            is_done = columns["sequence"] < num
            sequence = columns["sequence"][is_done]
            of_tokens = np.bincount(sequence, weights=columns["num_tokens"][is_done], minlength=num)
            length = np.full(num, of_all[part] if isinstance(of_all, dict) else of_all)
            of_segments = np.bincount(sequence, minlength=num)
            found.append(np.stack([of_tokens.astype(np.int64), of_segments, length]))
    return np.concatenate(found, axis=1)


def _histogram(
    name: str,
    title: str,
    values: npt.NDArray[np.int64],
    *,
    label: str,
    note: str,
    most: int | None = None,
) -> Picture:
    """Return a histogram, its note with the median and the 99th percentile; `most`: the end of a
    linear axis, else it is logarithmic."""
    edges = _edges(int(values.max()), most)
    counts, _ = np.histogram(values, edges)
    median, nearly_all = (int(of) for of in np.percentile(values, (50, 99)))
    is_log = most is None and values.max() > NUM_BINS

    def draw(axes: "Axes") -> None:
        axes.stairs(counts, edges, fill=True, color=SERIES[0], alpha=0.9)
        axes.set_xscale("log" if is_log else "linear")
        axes.set_xlim(edges[0], edges[-1])
        axes.locator_params(axis="y", integer=True)
        if most is None and not is_log:
            axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.xaxis.minorticks_off()
        axes.set_xlabel(label)
        axes.grid(axis="y")

    note = f"{note}; median {median:,}, 99% up to {nearly_all:,}"
    return make_picture(name, title, draw, note=note)


def _edges(largest: int, most: int | None) -> npt.NDArray[Any]:
    """Return the edges of bins: of equal width up to `most`, or else of equal ratio, each wide
    enough for a whole number."""
    if most is not None:
        return np.linspace(0, most, NUM_BINS + 1)
    if largest <= NUM_BINS:
        return np.arange(0.5, largest + 1.5)
    return np.unique(np.floor(np.geomspace(1, largest + 1, NUM_BINS + 1))) - 0.5


def open_texts(plan: Plan) -> TokenTexts | None:
    """Return the texts of the tokens of a dataset; None where it has no tokenizer yet, or one that
    is Python code which may not run."""
    if not plan.graph.output("tokenizer").is_made:
        return None
    texts = TokenTexts(plan.graph.tokenizer)
    with suppress(UntrustedCodeError):
        return texts if texts.bytes_by_id or texts.engine else None
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyUse:
    """Frequencies of token ids."""

    counts: npt.NDArray[np.int64] = field(repr=False)
    """(vocab_size,)"""
    read: str
    """The tokens that were counted, in words."""
    frequent: list[tuple[int, int]]
    """The most frequent ids and their counts."""
    unused: list[int]
    """The ids of plain tokens that were not met once; special tokens are not missed."""


def count_ids(facts: StoreFacts, texts: TokenTexts) -> VocabularyUse | None:
    """Count the ids of the tokens of the files that are read; None where there is none."""
    shards = facts.shards
    if not shards.num_tokens:
        return None
    most = facts.plan.graph.dataset.store.sample_bytes // TOKEN_BYTES
    counts = np.zeros(texts.tokenizer.vocab_size, np.int64)
    for beginning in shards.beginnings(most):
        for start in range(0, len(beginning), 2**24):
            counts += np.bincount(beginning[start : start + 2**24], minlength=len(counts))
    order = np.argsort(-counts, kind="stable")[:FREQUENT]
    of_none = {id_ for id_, content in enumerate(texts.bytes_by_id or ()) if content is None}
    never = set(np.flatnonzero(counts == 0).tolist())
    return VocabularyUse(
        counts=counts,
        read=shards.read_of(most),
        frequent=[(int(of), int(counts[of])) for of in order if counts[of]],
        unused=sorted(never - texts.special_ids - of_none),
    )


def vocabulary_picture(use: VocabularyUse) -> Picture:
    """Return the counts of ids from the most frequent to the least, on two logarithmic axes."""
    ordered = np.sort(use.counts[use.counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), POINTS).astype(np.int64))
    num_used = len(ordered)
    num_all = num_used + len(use.unused)

    def draw(axes: "Axes") -> None:
        axes.plot(ranks, ordered[ranks - 1], color=SERIES[3], linewidth=1.8)
        axes.fill_between(ranks, ordered[ranks - 1], color=SERIES[3], alpha=0.15)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1, max(num_all, 2))
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.minorticks_off()
        axes.set_xlabel("ids, the most frequent first")
        axes.set_ylabel("times")
        axes.grid(axis="y")

    note = f"{num_used:,} of {num_all:,} ids; counted: {use.read}"
    return make_picture("vocabulary_use", "Use of the vocabulary", draw, note=note)
