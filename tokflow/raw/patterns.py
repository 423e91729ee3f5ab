"""Patterns of raw files: paths, globs and URLs, read as a user writes them."""

import os
import posixpath
import re
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from tokflow.errors import ConfigError
from tokflow.raw.globs import has_wildcard, unescaped
from tokflow.shown import redact
from tokflow.store.urls import OF_OBJECT_STORES, Url, check_slashes, hub_url, is_url, split_url

HUB = "hf://datasets"
"""The scheme and host of datasets of the Hugging Face hub."""

_SIGNED = re.compile(r"\?(.*&)?(X-Amz-|X-Goog-|AWSAccessKeyId=|Signature=|sig=)", re.IGNORECASE)
"""How a query begins that grants reading to its holder; any other `?` may be a wildcard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A pattern as it is looked for: what is fixed of it, and what is not."""

    text: str = field(repr=False)
    """As the user wrote it."""
    origin: str
    """Scheme and host; empty for this machine."""
    folder: str
    """The fixed part, nothing of it escaped, absolute on this machine or below the origin."""
    below: tuple[str, ...]
    """Names and wildcards for the levels below `folder`; the last one is for files."""
    is_dataset: bool = False
    """It names a folder, or a dataset of the hub, which says itself what its files are."""

    @property
    def is_glob(self) -> bool:
        """True if it has a wildcard."""
        return not is_web(self.origin) and has_wildcard("/".join(self.below))

    @property
    def path(self) -> str:
        """The path that it names, if it has no wildcard."""
        return posixpath.join(self.folder, *map(unescaped, self.below))

    def url_of(self, path: str) -> str:
        """Return the absolute path, or the URL, of something at `path` that matches."""
        if not self.origin:
            return path
        if self.origin == HUB:
            return self.origin + path
        written = self.text.split("://", 1)[1]
        start = self.text.removesuffix(written) + written.partition("/")[0]
        if self.is_glob:
            return start + path
        return self.text if is_web(self.origin) else unescaped(self.text)


def read_pattern(text: str, base: Path) -> Pattern:
    """Return the pattern that `text` is, of which a relative path starts at `base`.

    Raises: ConfigError for a URL that cannot be, and one with a wildcard where none can be.
    """
    if not is_url(text):
        check_slashes(text)
        return _local_pattern(text, os.path.expanduser(text), base)  # noqa: PTH111
    if (of_hub := hub_url(text)) is not None:
        return _hub_pattern(text, of_hub[0], of_hub[2])
    try:
        url = split_url(text)
    except ValueError as error:
        raise ConfigError(
            where=f"raw.files {redact(text)!r}",
            expected="a URL as scheme://host/path",
            found=str(error),
            remedy="correct the URL; in a user name or password write %2F for '/'",
        ) from None
    if url.origin == HUB or (url.scheme == "hf" and url.path.count("/") < 2):
        raise _no_dataset(text)
    if url.scheme in {"file", "local"}:
        return _local_pattern(text, urllib.parse.unquote(url.path), base)
    _check_object(text, url)
    _check_host(text, url)
    names = url.path.split("/")[1:] or [""]
    fixed = len(names) - 1 if is_web(url.origin) else _num_fixed(names)
    return Pattern(
        text=text,
        origin=url.origin,
        folder="/" + "/".join(map(unescaped, names[:fixed])),
        below=tuple(names[fixed:]),
    )


def _check_host(text: str, url: Url) -> None:
    """Raise ConfigError for a wildcard where nothing can be listed."""
    if "*" in (url.host + url.path if is_web(url.origin) else url.host):
        raise ConfigError(
            where=f"raw.files {redact(text)!r}",
            expected="the URL of one file, as http has no folders to list"
            if is_web(url.origin)
            else "a host or bucket without a wildcard",
            found="'*'",
            remedy="name each URL in a list",
        )


def _check_object(text: str, url: Url) -> None:
    """Raise ConfigError for credentials in a URL of an object store, whose library takes none, and
    for a pattern of keys with an empty name, which no listing by names finds."""
    if "//" in url.path and has_wildcard(url.path) and not is_web(url.origin):
        raise ConfigError(
            where=f"raw.files {redact(text)!r}",
            expected="one slash between names in a pattern",
            found="'//'",
            remedy="remove one, or name each file with an empty name in its key in full",
        )
    # Azure's URLs may have a container before `@`.
    is_secret = ":" in url.userinfo or (url.userinfo and not url.scheme.startswith("a"))
    if url.scheme in OF_OBJECT_STORES and (is_secret or _SIGNED.search(url.path)):
        raise ConfigError(
            where=f"raw.files {redact(text)!r}",
            expected="a URL without a user name, password or signature",
            found="one in it",
            remedy="put credentials into the environment, where the library for its protocol "
            "looks for them",
        )


def _no_dataset(text: str) -> ConfigError:
    return ConfigError(
        where=f"raw.files {text!r}",
        expected="a dataset of the hub as hf://datasets/org/name, or files in it",
        found="another form of name",
        remedy="write `datasets/`, and who owns it, as in hf://datasets/stanfordnlp/imdb",
    )


def _hub_pattern(text: str, name: str, path: str) -> Pattern:
    """Return the pattern of a dataset of the hub, or of files in it; it names no revision."""
    names = path.split("/") if path else []
    fixed = _num_fixed(names) if names else 0
    return Pattern(
        text=text,
        origin=HUB,
        folder="/".join(["", name, *map(unescaped, names[:fixed])]),
        below=tuple(names[fixed:]),
        is_dataset=not names,
    )


def _local_pattern(text: str, path: str, base: Path) -> Pattern:
    """Return the pattern without `.`, `..` and empty components.

    What comes before `..` is resolved first, because the folder above a link is not the one
    above what the link leads to.
    """
    names = [name for name in path.split("/") if name not in {"", "."}] or [""]
    fixed = _num_fixed(names)
    if ".." in names[fixed:]:
        raise ConfigError(
            where=f"raw.files {text!r}",
            expected="a file's name at the end and '..' only before the first wildcard",
            found="'..'",
            remedy="write the pattern without '..'",
        )
    start = "/" if path.startswith("/") else os.fspath(base.absolute())
    above = [unescaped(name) for name in names[:fixed]]
    folder = os.path.normpath(os.path.join(start, *above))  # noqa: PTH118
    if ".." in above:
        last = fixed - above[::-1].index("..")
        head = os.path.realpath(os.path.join(start, *above[:last]))  # noqa: PTH118
        folder = os.path.join(head, *above[last:])  # noqa: PTH118
    return Pattern(text=text, origin="", folder=folder, below=tuple(names[fixed:]))


def _num_fixed(names: list[str]) -> int:
    """Return how many leading components have no wildcard; the last one is never counted."""
    wild = (number for number, name in enumerate(names[:-1]) if has_wildcard(name))
    return next(wild, len(names) - 1)


def is_web(origin: str) -> bool:
    """Return whether files of this scheme and host are reached by http or https."""
    return origin.startswith(("http://", "https://"))


def host_of(origin: str) -> str:
    """Return the host of a scheme and host."""
    return str(urllib.parse.urlsplit(origin).hostname)
