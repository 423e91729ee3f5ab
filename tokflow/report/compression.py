"""Pictures of bytes per token: by file, and by script of the language."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tokflow.errors import counted
from tokflow.pipeline.status import FileStatus
from tokflow.report.picture import SERIES, Picture, bars_picture, make_picture, shortened_name
from tokflow.report.sample import StoreFacts
from tokflow.report.token_texts import TokenTexts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 12
"""More files than this are shown as a histogram."""

SCRIPT_TOKENS = 200_000
"""Tokens of the sample in which scripts are looked for."""

COMMON = "digits, signs, spaces"
"""Name of what has the script Common: what all languages share."""

MAX_SCRIPTS = 10


def by_file(facts: StoreFacts) -> Picture | None:
    """Return bytes per token of each file: bars, or of many files a histogram."""
    known = [of for of in facts.statuses if of.bytes_per_token]
    known.sort(key=lambda of: (-(of.bytes_per_token or 0), of.key))
    if not known:
        return None
    name, title = "bytes_per_token_by_file", "Bytes per token, by file"
    if len(known) > MAX_BARS:
        return _histogram(name, title, known)
    bars = [(of.key, of.bytes_per_token or 0, f"{of.bytes_per_token:.2f}") for of in known]
    return bars_picture(name, title, bars, note="bytes of UTF-8 of the text; more is denser")


def _histogram(name: str, title: str, known: Sequence[FileStatus]) -> Picture:
    values = np.array([of.bytes_per_token for of in known])

    def draw(axes: "Axes") -> None:
        axes.hist(values, bins=40, color=SERIES[0], alpha=0.9)
        axes.set_xlabel("bytes per token")
        axes.set_ylabel("files")
        axes.grid(axis="y")

    ends = [
        f"{word} {of.bytes_per_token:.2f} ({shortened_name(of.key, 40)})"
        for word, of in (("most", known[0]), ("least", known[-1]))
    ]
    note = f"{counted(len(known), 'file')}, median {np.median(values):.2f}; {', '.join(ends)}"
    return make_picture(name, title, draw, note=note)


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
    largest = sorted(num_bytes, key=lambda of: (-num_bytes[of], of))[:MAX_SCRIPTS]
    rates = {of: num_bytes[of] / num_tokens[of] for of in largest}
    bars = [(of, rates[of], f"{rates[of]:.2f}, {_share(num_bytes[of] / whole)}") for of in largest]
    rest = f"; {len(num_bytes) - MAX_SCRIPTS:,} rarer scripts left out"
    note = f"with the share of the text; read: {facts.shards.read_of(SCRIPT_TOKENS)}"
    note += rest if len(num_bytes) > MAX_SCRIPTS else ""
    title = "Bytes per token, by script"
    return bars_picture("bytes_per_token_by_script", title, bars, note=note, color=SERIES[2])


def _share(fraction: float) -> str:
    return f"{fraction:.1%}" if fraction >= 0.001 else "<0.1%"


@cache
def _script_of(text: str) -> str:
    """Return the name of the script of the first character that has one."""
    from fontTools import unicodedata as unicode_data  # comes with matplotlib

    for character in text:
        script = unicode_data.script(character)
        if script not in ("Zyyy", "Zinh", "Zzzz"):
            return str(unicode_data.script_name(script)).replace("_", " ")
    return COMMON
