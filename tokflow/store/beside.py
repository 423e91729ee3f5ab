"""Files of an output that its manifest does not name: what people publish beside an export.

They say what a person has written, too, so that an edit makes them anew and no output. Each has a
digest of its own, as a manifest has: JSON in its second line (`sed 2d croissant.json | sha256sum`),
text in its last one (`head -n -1 README.md | sha256sum`).
"""

import hashlib
import re

from tokflow.store.manifest import OWN_FOLDER, has_its_digest

CARD_NAME = f"{OWN_FOLDER}/README.md"
CROISSANT_NAME = f"{OWN_FOLDER}/croissant.json"

BESIDE = (CARD_NAME, CROISSANT_NAME)

_LAST_LINE = re.compile(rb"<!-- sha256 of the lines above: ([0-9a-f]{64}) -->\n\Z")


def with_digest(text: str) -> bytes:
    """Return text with its digest behind it, in a line that Markdown does not show."""
    data = f"{text.rstrip()}\n".encode()
    return b"%b<!-- sha256 of the lines above: %b -->\n" % (data, _hex(data))


def is_as_written(name: str, data: bytes) -> bool:
    """Return whether a file of this name has the digest of its content."""
    if name.endswith(".json"):
        return has_its_digest(data)
    found = _LAST_LINE.search(data)
    return found is not None and found[1] == _hex(data[: found.start()])


def _hex(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
