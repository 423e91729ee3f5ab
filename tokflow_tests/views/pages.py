"""What stands in a viewer's page, read without a browser."""

import json
import re
from dataclasses import dataclass
from typing import Any

DATA = re.compile(rb'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(page: bytes) -> dict[str, Any]:
    """Return the data of a page, of which there is one element."""
    (data,) = DATA.findall(page)
    return json.loads(data)


@dataclass(frozen=True)
class Segment:
    """A segment of a window as it stands in the page."""

    text: str
    """Of its tokens; of padding, and of tokens that are less than a character, U+FFFD."""
    file: str | None
    row: int | None
    token: int | None
    chars: int | None
    num_tokens: int


def segments_of(page: bytes, part: int = 0) -> list[list[Segment]]:
    """Return the segments of each window of a part; padding has no file."""
    data = data_of(page)
    return [_segments(data, window) for window in data["parts"][part]["windows"]]


def _segments(data: dict[str, Any], window: list[Any]) -> list[Segment]:
    _, token_ids, segments, _ = window
    found, at = [], 0
    for num, file, *others in segments:
        if file < 0:
            found.append(Segment("", None, None, None, None, num))
            continue
        row, token, chars, _ = others
        tokens = [data["vocabulary"].get(str(id_), "") for id_ in token_ids[at : at + num]]
        shown = b"".join(t.encode() if isinstance(t, str) else bytes(t) for t in tokens)
        text = shown.decode(errors="replace")
        found.append(Segment(text, data["files"][file], row, token, chars, num))
        at += num
    assert at == len(token_ids)
    return found
