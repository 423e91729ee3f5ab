"""Rejects by reason: bad documents that were set aside."""

import json
import re
from collections import Counter
from pathlib import Path

from tokflow.errors import counted
from tokflow.report.picture import SERIES, Picture, bars_picture
from tokflow.report.sample import StoreFacts, sampled
from tokflow.store.integrity import damage_told
from tokflow.store.remote.cached_files import fetched
from tokflow.store.stored_outputs import read_output
from tokflow.tokens.writer import REJECTS_NAME

LINES_PER_FILE = 2_000
"""Rejects of each file that are read, its first."""

MAX_REASONS = 8

_VALUES = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
"""What differs between two rejects of one reason: what was found, and numbers."""


def reject_picture(facts: StoreFacts) -> Picture | None:
    """Return the bars of rejects by reason, the most frequent first; None where there is none."""
    num_all = facts.text.get("num_rejects", 0)
    if not num_all:
        return None
    reasons: Counter[str] = Counter()
    for folder in sampled(facts.folders_with_rejects):
        reasons.update(_reasons_in(folder))
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    bars = [(reason, num, f"{num:,}") for reason, num in ordered[:MAX_REASONS]]
    note = f"{counted(num_all, 'reject')} in all"
    if reasons.total() < num_all:
        note += f", of which the reasons of {reasons.total():,} were read"
    if len(ordered) > MAX_REASONS:
        note += f"; {len(ordered) - MAX_REASONS:,} rarer reasons left out"
    name, title = "rejects_by_reason", "Rejects, by reason"
    return bars_picture(name, title, bars, note=note, color=SERIES[4], is_named_above=True)


def _reasons_in(folder: Path) -> Counter[str]:
    made = read_output(folder)
    names = {name for name in made.manifest.files if _is_rejects(name)}
    found: Counter[str] = Counter()
    for name in sorted(names):
        with damage_told(made, only=names), fetched(folder / name).open("rb") as file:
            for _, line in zip(range(LINES_PER_FILE - found.total()), file, strict=False):
                found[reason_of(json.loads(line)["reason"])] += 1
    return found


def _is_rejects(name: str) -> bool:
    stem, _, suffix = REJECTS_NAME.partition(".")
    return name.startswith(stem) and name.endswith(suffix)


def reason_of(text: str) -> str:
    """Return what rejects of one reason have in common: of `expected a string in 'text', found the
    number 5` the words `a string in …, found the number …`."""
    expected, comma, found = text.removeprefix("expected ").partition(", found ")
    return f"{expected}{comma}{_VALUES.sub('…', found).partition(' (')[0]}"
