"""Lists of what pushes of several commits have sent, so that the next push removes what is left.

A list has its own digest, and names files of its folder alone, each with its sha256.
"""

from collections.abc import Iterable

import msgspec

from tokflow.store.manifest import OWN_FOLDER, is_inside
from tokflow.store.sealed import has_its_digest, plain_json, sealed

UNFINISHED_NAME = f"{OWN_FOLDER}/unfinished_push.json"
"""Beside the manifest from the first of several commits to the last."""

Sent = set[tuple[str, str]]
"""Names relative to the folder of the export, and the sha256 of their content."""


def list_of(export: str, sent: Iterable[tuple[str, str]]) -> bytes:
    """Return the content of the list of an export."""
    return sealed({"export": export, "sent": sorted(map(list, sent))})


def read_list(data: bytes, export: str) -> Sent | None:
    """Return what the list of an export names; None where no push of it wrote the list."""
    try:
        fields = plain_json(data) if has_its_digest(data) else {}
        sent = msgspec.convert(fields["sent"], Sent)
        is_own = fields["export"] == export and all(is_inside(name) for name, _ in sent)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return sent if is_own else None
