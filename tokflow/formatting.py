"""Text as people are shown it: counts, sizes and durations in words, without the secrets of URLs,
and without characters that steer a terminal."""

import re
import shlex
import unicodedata

_shown_as: dict[str, str] = {}

_WITHOUT_SLASHES = "abfss?|az|gcs|gs|hf|https?|s3a?"
"""Schemes of URLs whose password is hidden even if their slashes are missing."""

_IN_TEXT = re.compile(
    rf"(?:\b[A-Za-z][A-Za-z0-9+.-]{{0,20}}:(?=/)"
    rf"|\b(?:{_WITHOUT_SLASHES}):(?=[^\s/:@]+:[^\s/]{{0,200}}@))"
    r"/*(?:(?>\{\{[^{}]*\}\}|[^\s/])*@)?(?:[^\s'\"<>\\]*[^\s'\"<>\\,;:.)])?"
)
"""A URL in a text. Its user name and password may have quotes, or be a template."""

_OF_URLLIB3 = re.compile(r"(with url: [^\s?]*)\?\S*")
_HOST = re.compile(r"([^\s@:\[]*|\[[0-9A-Fa-f:.]+\])(:\d*)?")
_OF_HUB = {"buckets", "datasets", "models", "spaces"}
_JOINERS = "\u200c\u200d"


def counted(number: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """Return `12.3 MB`: powers of 1,000, as speeds are."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes:,.0f} B"


def speed(megabytes_per_second: float | None) -> str:
    """Return `62.1 MB/s`; nothing of what is unknown or too little to be measured."""
    is_known = megabytes_per_second is not None and megabytes_per_second >= 0.05
    return f"{megabytes_per_second:,.1f} MB/s" if is_known else ""


def duration(seconds: float) -> str:
    """Return `0.8 s`, of whole seconds `7 s`; `3 min 20 s`, `2 h 5 min`."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s" if isinstance(seconds, float) else f"{seconds} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def show_as(folder: str, url: str) -> None:
    """Let all messages show a URL in the place of the folder on this disk that stands for it."""
    _shown_as[folder] = url


def shown_text(text: str) -> str:
    """Return a text with URLs in the place of the folders that stand for them."""
    for folder, url in _shown_as.items():
        text = text.replace(folder, url)
    return text


def stands_for_url(path: str) -> str | None:
    """Return the folder that a path is in and that stands for a URL; None where there is none."""
    folders = (of for of in _shown_as if f"{path}/".startswith(f"{of}/"))
    return next(folders, None)


def redacted(text: str) -> str:
    """Return a text with each URL in it as `redact` returns it."""
    if ":" not in text:
        return text
    return _OF_URLLIB3.sub(r"\1", _IN_TEXT.sub(lambda found: redact(found[0]), text))


def redact(url: str) -> str:
    """Return a URL of any scheme without userinfo, query and fragment; a path as it is.

    Only the scheme is left where it is unclear what is secret: of URLs chained with `::`, and where
    a user name or password has a bare `/`.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)", url)
    if found is None:
        return redacted(url)
    rest = url[found.end() :]
    scheme, slashes = found[1].lower(), found[2]
    is_web = scheme in {"http", "https"}
    before, _, query = rest.partition("?")
    if is_web:
        rest = before.partition("#")[0]
    elif "=" in query:  # else `?` may be a wildcard
        rest = before
    start = f"{scheme}:{slashes}"
    authority, slash, path = rest.partition("/")
    userinfo, _, host = authority.rpartition("@")
    is_known = re.fullmatch(_WITHOUT_SLASHES, scheme) is not None
    is_url = rest != "" and (slashes == "//" or (slashes != "" and is_known))
    has_password = ":" in userinfo and (slashes or is_known)
    if not is_url and not has_password:
        return url if slashes else redacted(url)
    is_clear = not is_url or (_HOST.fullmatch(host) and (host or not is_web))
    is_clear = is_clear and not (is_web and ":" in host.rpartition("]")[2] and "@" in path)
    if scheme == "hf":
        path = re.sub(r"(^|/)[^/]*:[^/]*@", r"\1", path)
        path = re.sub(r"^[^/]*@", "", path) if (host in _OF_HUB) else path
        is_clear = is_clear and ":" not in path.partition("/")[0]
    if not is_clear or ("::" in host + path and not host.startswith("[")):
        return f"{start}..."
    return f"{start}{host}{slash}{path}"


def printable(text: str, keep: str = "") -> str:
    """Return a text with an escape such as `\\x7f` for each character that shows nothing or turns
    the direction of others, except spaces, joiners and those in `keep`.

    Without `keep` it is one line.
    """
    if text.isprintable():
        return text
    keep += _JOINERS
    is_kept = [of.isprintable() or of in keep or unicodedata.category(of) == "Zs" for of in text]
    return "".join(of if kept else repr(of)[1:-1] for of, kept in zip(text, is_kept, strict=True))


def clipped(text: str, num_chars: int) -> str:
    """Return a text or, where it is longer, its beginning and an ellipsis."""
    return text if len(text) <= num_chars else f"{text[: num_chars - 1]}…"


def viewer_command(export: str) -> str:
    """Return the command that writes the viewer of an export, given by its path or URL."""
    return f"tokflow inspect {shlex.quote(export)} --html viewer.html"


def ratio(part: int, whole: int) -> float:
    """Return a fraction to four digits; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0
