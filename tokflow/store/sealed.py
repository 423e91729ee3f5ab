"""JSON that carries its own digest, as manifests are written; and JSON that is read quickly."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return the text of a manifest with these fields, its own digest in the second line.

    The digest is the sha256 of all other lines: `sed 2d _tokflow/manifest.json | sha256sum`.
    """
    first, rest = indented(fields).split(b"\n", 1)
    return b"\n".join([first, _digest_line(first, rest), rest])


def indented(fields: Mapping[str, Any]) -> bytes:
    """Return the text of fields, as `json` indents it, in a third of the time."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=False)
    return msgspec.json.format(text.encode(), indent=1) + b"\n"


def has_its_digest(data: bytes) -> bool:
    """Return whether the text is as `sealed` made it."""
    lines = data.split(b"\n", 2)
    return len(lines) == 3 and lines[1] == _digest_line(lines[0], lines[2])


def _digest_line(first: bytes, rest: bytes) -> bytes:
    return b' "digest": "%b",' % hashlib.sha256(first + b"\n" + rest).hexdigest().encode()


def plain_json(data: bytes) -> Any:
    """Return what JSON says. Raises: as `json.loads`, which takes three times as long."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return json.loads(data.decode())  # says what is wrong, and reads lone surrogates
