"""Rejects: the bad documents of a raw file, their lines on disk, and their numbers by reason."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tokflow.documents import Reject


def rejects_in(lines: bytes, raw_file: str) -> list[dict[str, Any]]:
    """Return the fields of the rejects in rejects.jsonl; `raw_file`: that of those that name none,
    for there is one."""
    return [{"raw_file": raw_file, **json.loads(line)} for line in lines.splitlines()]


REASONS = "rejects"
"""The name of the reasons in the details of a manifest: numbers by reason."""

MAX_REASONS = 20

OTHERS = "other reasons"
"""Name for all reasons past the `MAX_REASONS` most frequent ones."""

_VALUES = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
"""Quoted values and numbers, which differ between two rejects of one reason."""


def reject_line(reject: Reject) -> bytes:
    """Return the line of a reject in rejects.jsonl, with its raw file if there is a group, and its
    record if there is a transform."""
    fields = dataclasses.asdict(reject)
    for name in ("raw_file", "record"):
        if fields[name] is None:
            del fields[name]
    return json.dumps(fields).encode() + b"\n"


def rejects_by_reason(counts: Iterable[Mapping[str, int]]) -> dict[str, Any]:
    """Return numbers by reason, added up, as the details of a manifest: the most frequent first,
    and one number for all rare ones; none where nothing was rejected."""
    counted = Counter[str]()
    for each in counts:
        counted.update(each)
    num_others = counted.pop(OTHERS, 0)
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    num_others += sum(num for _, num in ordered[MAX_REASONS:])
    reasons = dict(ordered[:MAX_REASONS]) | ({OTHERS: num_others} if num_others else {})
    return {REASONS: reasons} if reasons else {}


def reason_of(text: str) -> str:
    """Return the part of a reject's text that all rejects of one reason share: of `expected a
    string in 'text', found the number 5` the words `a string in 'text', found the number …`."""
    expected, comma, found = text.removeprefix("expected ").partition(", found ")
    return f"{expected}{comma}{_VALUES.sub('…', found).partition(' (')[0]}"
