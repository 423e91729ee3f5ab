"""Pictures of bars and the rows of their numbers: bytes per token, rejects by reason, the shares of
parts, of tokens in sequences and of the sources of a mixture."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from tokflow.audit.token_texts import TokenTexts
from tokflow.pipeline.describe import describe, mixture_rows, written
from tokflow.shown import counted
from tokflow.tokens.shard_files import OTHERS
from tokflow.views.picture import (
    MAX_BARS,
    SERIES,
    Picture,
    bars_picture,
    short_number,
)
from tokflow.views.sample import StoreFacts

Rows: TypeAlias = list[dict[str, Any]]

SCRIPT_TOKENS = 200_000
"""Tokens of the sample in which scripts are looked for."""

COMMON = "digits, signs, spaces"
"""Name of what has the script Common: what all languages share."""


def by_file(facts: StoreFacts) -> Picture | None:
    """Return bytes per token of each file; of many files, of the densest and the least dense."""
    known = [of for of in facts.statuses if of.bytes_per_token]
    known.sort(key=lambda of: (-(of.bytes_per_token or 0), of.key))
    if not known:
        return None
    shown, note = known, "bytes of UTF-8 of the text; more is denser"
    if len(known) > MAX_BARS:
        median = np.median([of.bytes_per_token for of in known])
        shown = [*known[: MAX_BARS // 2], *known[-MAX_BARS // 2 :]]
        note = f"the {MAX_BARS // 2} most and least of {len(known):,} files, median {median:.2f}"
    bars = [(of.key, of.bytes_per_token or 0, f"{of.bytes_per_token:.2f}") for of in shown]
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
    return bars_picture("bytes_per_token_by_script", title, bars, note=note, color=SERIES[2])


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


def export_rows(facts: StoreFacts) -> Rows:
    """Return a row for each export and part: its numbers and, in the first of one that a build
    would make anew, the reason."""
    planned = [of for of in facts.plan.own if of.stage == "export"]
    reasons = {of.name: of.reason for of in planned if not of.is_made}
    return [
        {
            "export": (name := of.folder.parent.name),
            "state": "stale" if name in reasons else "built",
            "reason": reasons.get(name, "") if number == 0 else "",
            "format": of.manifest.details["format"],
            **row,
        }
        for of in facts.exports
        for number, row in enumerate(describe(of.manifest).rows)
    ]


def source_rows(facts: StoreFacts) -> Rows:
    """Return a row for each source and part of a mixture, as an export has it that is not stale or,
    before there is one, as it is planned; none of other datasets."""
    current = set(facts.folders("export"))
    details = [of.manifest.details for of in facts.exports if of.folder in current]
    made = [of["mixture"] for of in details if "mixture" in of]
    return mixture_rows(made[0] if made else facts.plan.of_mixture)


def share_pictures(facts: StoreFacts) -> Iterator[Picture]:
    """Yield the pictures of shares that there is something to see in."""
    if facts.split:
        parts = [(part, of["tokens_fraction"]) for part, of in facts.split.parts.items()]
        bars = [(part, share, written("tokens_fraction", share)) for part, share in parts]
        note = "share of the tokens"
        yield bars_picture("split_shares", "Parts", bars, note=note, limit=1, color=SERIES[0])
    if packed := [of for of in export_rows(facts) if of.get("num_sequences")]:
        bars = [(f"{of['export']}: {of['part']}", *_fill_of(of)) for of in packed]
        note = "tokens by the places for them; the rest is padding"
        yield bars_picture("packing_fill", "Packing", bars, note=note, limit=1, color=SERIES[2])


def _fill_of(row: Mapping[str, Any]) -> tuple[float, str]:
    fill, dropped = row["fill_fraction"], row["num_dropped_tokens"]
    words = [written("fill_fraction", fill)]
    words += [f"{short_number(dropped)} dropped"] if dropped else []
    words += ["stale"] if row["state"] == "stale" else []
    return fill, ", ".join(words)
