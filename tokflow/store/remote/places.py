"""Folders on this disk that stand for stores, and single outputs, at URLs.

    <TOKFLOW_CACHE, or ~/.cache/tokflow>/<scheme>-<bucket>-<sha256 of the URL[:8]>/
      .place.json           the URL
      <dataset>/...         of a store
      <last part of URL>/   of a single output, whose folder has its name

Any path below one of them belongs to its URL, in every process of the machine: a prefix tells.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

from tokflow.errors import ConfigError
from tokflow.shown import redact, show_as
from tokflow.store.remote.objects import Objects
from tokflow.store.urls import Url, is_url, split_url

CACHE_VARIABLE = "TOKFLOW_CACHE"
PLACE_NAME = ".place.json"

OF_THIS_DISK = re.compile(r"/\.[0-9a-f]{16}\.segments-here(/|$)")
"""Where below a place segments are kept that never go to its URL: see store/segments.py."""

NEVER_WRITTEN = {"http", "https", "hf"}
"""Schemes of URLs at which there is no store."""

OF_THIS_MACHINE = {"file", "local", "memory"}
"""Schemes of URLs that need no host, but a path then."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, and the folder on this disk that stands for it."""

    root: Path
    """The folder of the store, or of the output."""
    objects: Objects
    is_store: bool
    """It holds datasets; else it is one output, such as an export that was written elsewhere."""

    @property
    def url(self) -> str:
        """The URL of the root."""
        return self.objects.url

    def key(self, path: Path) -> str:
        """Return the path below the root, with `/`."""
        return path.relative_to(self.root).as_posix()

    def url_of(self, path: Path) -> str:
        """Return the URL that a path on this disk stands for, to be shown."""
        key = self.key(path)
        return self.url if key == "." else f"{self.url}/{key}"


def cache_folder() -> str:
    """Return the folder of all places on this disk."""
    named = os.environ.get(CACHE_VARIABLE)
    return _resolved(named or os.path.join("~", ".cache", "tokflow"))  # noqa: PTH118


@cache
def _resolved(folder: str) -> str:
    if is_url(folder):
        raise ConfigError(
            where=CACHE_VARIABLE,
            expected="a folder on this disk",
            found=redact(folder),
            remedy="name a folder; a store at a URL is what `--store` or `store` in the YAML names",
        )
    return str(Path(folder).expanduser().resolve())


def folder_of(url: str, *, is_store: bool = True) -> Path:
    """Return the folder on this disk that stands for a URL; nothing elsewhere is asked or made.

    Raises: ConfigError as `checked_url`.
    """
    url = checked_url(url)
    parts = split_url(url)
    digest = hashlib.sha256(f"{url} {is_store}".encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{parts.scheme}-{parts.host}")
    folder = Path(cache_folder(), f"{name}-{digest}")
    if not (folder / PLACE_NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{PLACE_NAME}.{uuid4().hex[:8]}.tmp"
        temporary.write_text(json.dumps({"url": url, "is_store": is_store}))
        temporary.replace(folder / PLACE_NAME)
    return _root(folder, url, is_store=is_store)


def checked_url(url: str) -> str:
    """Return the URL of a store or an output without a `/` at its end.

    Raises: ConfigError for a URL with a user name, password or query, since credentials come from
    the environment, for one without a bucket or with `..` in its path, and for one that nothing can
    be written to.
    """
    try:
        parts = split_url(url)
    except ValueError as error:
        found = f"{redact(url)}: {error}"
    else:
        if parts.scheme in NEVER_WRITTEN:
            raise ConfigError(
                where="URL",
                expected="one of a store that can be written, such as s3://bucket/prefix",
                found=redact(url),
                remedy="name another, or a folder",
            )
        _check_path(url, parts)
        if not (parts.userinfo or parts.query or "?" in parts.path or "#" in url):
            return parts.scheme + url[len(parts.scheme) :].rstrip("/")
        found = redact(url)
    raise ConfigError(
        where="URL",
        expected="one without a user name, password or query, which `?` and `#` begin",
        found=found,
        remedy="put credentials into the environment, where the library for its protocol looks "
        "for them",
    )


def _check_path(url: str, parts: Url) -> None:
    """Raise ConfigError for a URL that names no bucket, or folders that no path can have."""
    names = parts.path.rstrip("/").split("/")[1:]
    has_host = bool(parts.host) or (parts.scheme in OF_THIS_MACHINE and names != [])
    if not has_host or not {"", ".", ".."}.isdisjoint(names):
        raise ConfigError(
            where="URL",
            expected="a bucket and a path, such as s3://bucket/prefix",
            found=redact(url),
            remedy="correct it" if has_host else "name the bucket",
        )


def _root(folder: Path, url: str, *, is_store: bool) -> Path:
    return folder if is_store else folder / url.rpartition("/")[2]


def place_of(path: Path) -> Place | None:
    """Return the place that a path on this disk belongs to; None where it is of this disk alone."""
    base, text = cache_folder(), str(path)
    if not text.startswith(base) or text[len(base) : len(base) + 1] != "/":
        return None
    place = _place(f"{base}/{text[len(base) + 1 :].split('/', 1)[0]}")
    if place is None or not f"{text}/".startswith(f"{place.root}/"):
        return None
    return None if OF_THIS_DISK.search(text) else place


def _place(folder: str) -> Place | None:
    """Return the place of a folder, which may become one; once it is, it stays one."""
    if (known := _places.get(folder)) is None:
        try:
            fields = json.loads(Path(folder, PLACE_NAME).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        url, is_store = fields["url"], fields["is_store"]
        root = _root(Path(folder), url, is_store=is_store)
        show_as(str(root), url)
        known = _places[folder] = Place(root, Objects(url), is_store)
    return known


_places: dict[str, Place] = {}


def shown(path: Path) -> str:
    """Return how messages call a path: as the URL that it stands for, if it does."""
    place = place_of(path)
    return str(path) if place is None else place.url_of(path)
