"""Rejects of a token shard: bad documents that were set aside, and their reasons."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokflow.documents import Reject
from tokflow.raw import RawPartition

REASONS = "rejects"
"""The name of the reasons in the details of a manifest: numbers by reason."""

MAX_REASONS = 20

OTHERS = "other reasons"
"""Name for all reasons past the `MAX_REASONS` most frequent ones."""

_VALUES = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
"""Quoted values and numbers, which differ between two rejects of one reason."""


class Rejects:
    """The bad documents of a partition, added as they are found."""

    def __init__(self, raw: RawPartition) -> None:
        self._raw = raw
        self.found: list[Reject] = []

    def __call__(self, path: Path, reject: Reject) -> None:
        """Add one of a raw file; in a group it has the key of that file."""
        raw = self._raw
        self.found.append(replace(reject, raw_file=raw.at(path).key) if raw.is_group else reject)

    @property
    def details(self) -> dict[str, Any]:
        """The reasons as the details of a manifest; none where nothing was rejected."""
        reasons = Counter(reason_of(reject.reason) for reject in self.found)
        return {REASONS: most_frequent(reasons)} if reasons else {}


def most_frequent(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return numbers by reason, the most frequent first, and one number for all rare ones."""
    counted = dict(reasons)
    num_others = counted.pop(OTHERS, 0)
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    num_others += sum(num for _, num in ordered[MAX_REASONS:])
    return dict(ordered[:MAX_REASONS]) | ({OTHERS: num_others} if num_others else {})


def joined_reasons(details: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the reasons of several segments as the details of their shard."""
    reasons = Counter[str]()
    for each in details:
        reasons.update(each.get(REASONS, {}))
    return {REASONS: most_frequent(reasons)} if reasons else {}


def reason_of(text: str) -> str:
    """Return what rejects of one reason have in common: of `expected a string in 'text', found the
    number 5` the words `a string in 'text', found the number …`."""
    expected, comma, found = text.removeprefix("expected ").partition(", found ")
    return f"{expected}{comma}{_VALUES.sub('…', found).partition(' (')[0]}"
