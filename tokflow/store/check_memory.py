"""Findings of checks of outputs, remembered so that what passed is not computed again.

    <store>/<dataset>/checks.jsonl

A line of JSON for each: check, output (its folder below the dataset's, or a word for several),
digest of all that the check looked at, findings if there were any. The last line of a check and an
output counts. Nothing is synced: a line that is lost, or cut off, costs that a check is computed
again, and so does a file that cannot be read or written.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tokflow.store.manifest import plain_json

CHECKS_NAME = "checks.jsonl"

Line = tuple[str, list[str]]
"""Digest and findings."""


class CheckMemory:
    """The findings of one dataset's checks, by check and output.

    Several processes may use the file at once.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CHECKS_NAME
        self._known = _read(self._path)

    def find(self, check: str, output: str, digest: str) -> list[str] | None:
        """Return what a check found when it looked at what has this digest, or None."""
        known, findings = self._known.get((check, output), ("", []))
        return findings if known == digest else None

    def has_failed(self, check: str, output: str) -> bool:
        """Return whether a check found anything when it last looked at an output."""
        return bool(self._known.get((check, output), ("", []))[1])

    def keep(self, check: str, output: str, digest: str, findings: Sequence[str]) -> None:
        """Remember what a check found, unless that is known."""
        if self._known.get((check, output)) == (digest, [*findings]):
            return
        self._known[check, output] = digest, [*findings]
        line = json.dumps([check, output, digest, *findings])
        with suppress(OSError), self._path.open("ab", buffering=0) as file:
            # One call appends it whole; the first line end closes one that was cut off.
            file.write(f"\n{line}\n".encode())


def _read(path: Path) -> dict[tuple[str, str], Line]:
    known: dict[tuple[str, str], Line] = {}
    lines: list[bytes] = []
    with suppress(OSError):
        lines = path.read_bytes().splitlines()
    for line in filter(None, lines):
        with suppress(ValueError, TypeError, RecursionError):
            check, output, digest, *findings = plain_json(line)
            known[check, output] = str(digest), [*map(str, findings)]
    return known
