"""A store at a URL: its objects, and a folder on this disk through which they are reached.

    s3://bucket/prefix                                          the store
      <dataset>/manifests/<stage>/<partition>/<fingerprint[:16]>.json    one for each output
      <dataset>/<stage>/<partition>/<fingerprint[:16]>/<digest[:16]>/<file>   its files
      <dataset>/manifests/exports/<name>/latest                 the fingerprint[:16] of the newest
      .verdicts/..., <dataset>/manifests/.verdicts/...          verdicts on gigatoken

    <TOKFLOW_CACHE, or ~/.cache/tokflow>/<scheme>-<bucket>-<sha256 of the URL[:8]>/   on this disk
      <dataset>/<stage>/<partition>/<fingerprint[:16]>/

The folder on this disk has the layout of any store. Its manifests, verdicts and links are those of
the URL, as `cache.refresh` found them; its files come when they are opened (`cached_files`), and
go when the cache is full. An output is written there, and put at the URL before it takes its name
(`publication`): files first, under the digest of their manifest (`digest` is the sha256 of its
bytes), so that two writers whose bytes differ never write to one name; the manifest last, if no
other is there.
"""

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tokflow.errors import ConfigError
from tokflow.formatting import redact, show_as
from tokflow.store.atomic import is_segments_folder
from tokflow.store.manifest import MANIFEST_NAME, is_output_name
from tokflow.store.remote.objects import Objects
from tokflow.store.urls import is_url, split_url

CACHE_VARIABLE = "TOKFLOW_CACHE"

NEVER_WRITTEN = {"http", "https", "hf"}
"""Schemes of URLs at which there is no store."""

OF_THIS_MACHINE = {"file", "local", "memory"}
"""Schemes of URLs that need no host, but a path then."""

MANIFESTS = "manifests"
"""The second part of the keys of what is mirrored; no stage has this name."""

SUFFIX = ".json"

_FOLDER = r"(?!(?:\.\.?|latest|[0-9a-f]{16})/)[^/\\\x00-\x1f\x7f]+/"
_OUTPUT = r"(?:[0-9a-f]{16}|\.[0-9a-f]{16}\.segments/\d+)\.json"
_VERDICT = r"\.verdicts/[0-9a-f]+\.json"
_MIRRORED = re.compile(rf"(?!\.)(?:{_FOLDER})+(?:{_OUTPUT}|latest)|{_VERDICT}")
"""Keys below the manifests of a dataset that are tokflow's, whatever the stages are called."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, and the folder on this disk that stands for it."""

    root: Path
    """The folder of the store."""
    objects: Objects

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

    def mirror_key(self, path: Path) -> str:
        """Return the key of what `path` is the mirror of: a folder of a dataset or in one, an
        output's manifest by its folder's path, a link `latest`, a verdict."""
        dataset, slash, rest = self.key(path).partition("/")
        if dataset.startswith("."):
            return self.key(path)
        return f"{dataset}/{MANIFESTS}{slash}{rest}"

    def manifest_key(self, folder: Path) -> str:
        """Return the key of the manifest of the output in a folder."""
        return self.mirror_key(folder) + SUFFIX

    def mirror_path(self, key: str) -> str | None:
        """Return the path on this disk of what has this key, which `mirror_key` or `manifest_key`
        gave it; as text, for there are many. None for any other key: it may be anybody's, and lead
        anywhere."""
        dataset, manifests, rest = key.partition(f"/{MANIFESTS}/")
        if not manifests:
            return f"{self.root}/{key}" if re.fullmatch(_VERDICT, key) else None
        if not is_dataset_name(dataset) or not is_mirrored(rest):
            return None
        if rest.endswith(SUFFIX) and not rest.startswith("."):
            return f"{self.root}/{dataset}/{rest.removesuffix(SUFFIX)}/{MANIFEST_NAME}"
        return f"{self.root}/{dataset}/{rest}"

    def data_prefix(self, folder: Path, manifest: bytes | None = None) -> str:
        """Return what the keys of an output's files begin with, up to a `/`; it has the digest of
        the bytes of their manifest, by default that in the folder, so that writers whose bytes
        differ never write to one name. Raises: FileNotFoundError."""
        manifest = (folder / MANIFEST_NAME).read_bytes() if manifest is None else manifest
        return f"{self.key(folder)}/{hashlib.sha256(manifest).hexdigest()[:16]}/"

    def output_folder(self, path: Path) -> Path | None:
        """Return the folder of the output that a path of a file is in; None where it is in none."""
        for folder in path.parents:
            if is_output_name(folder.name) or is_segments_folder(folder.parent):
                return folder
            if folder == self.root:
                break
        return None


def is_mirrored(key: str) -> bool:
    """Return whether a key below the manifests of a dataset is one that tokflow put there."""
    return _MIRRORED.fullmatch(key) is not None


def is_dataset_name(name: str) -> bool:
    """Return whether a dataset may have a name that was found at a URL."""
    return re.fullmatch(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*", name) is not None


def place_at(url: str) -> Place:
    """Return the place at a URL; nothing there is asked, and nothing here is made.

    Raises: ConfigError as `checked_url`.
    """
    url = checked_url(url)
    parts = split_url(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{parts.scheme}-{parts.host}")
    root = Path(cache_folder(), f"{name}-{digest}")
    show_as(str(root), url)
    return Place(root, objects_at(url))


def objects_at(url: str) -> Objects:
    """Return the objects below a URL; nothing is asked there."""
    if split_url(url).scheme in {"s3", "s3a"}:
        from tokflow.store.remote.s3 import S3Objects  # late: a store has one kind of them

        return S3Objects(url)
    return Objects(url)


def cache_folder() -> str:
    """Return the folder of all places on this disk."""
    return _resolved(os.environ.get(CACHE_VARIABLE) or "~/.cache/tokflow")


@functools.cache
def _resolved(folder: str) -> str:
    if is_url(folder):
        raise ConfigError(
            where=CACHE_VARIABLE,
            expected="a folder on this disk",
            found=redact(folder),
            remedy="name a folder; a store at a URL is what `--store` or `store` in the YAML names",
        )
    return str(Path(folder).expanduser().resolve())


def checked_url(url: str) -> str:
    """Return the URL of a store, or of something in one, without a `/` at its end.

    Raises: ConfigError for a URL with a user name, password or query, since credentials come from
    the environment, for one without a bucket or with `..` in its path, and for one that nothing can
    be written to.
    """
    expected = "one without a user name, password or query, which `?` and `#` begin"
    found = redact(url)
    remedy = (
        "put credentials into the environment, where the library for its protocol looks for them"
    )
    try:
        parts = split_url(url)
    except ValueError as error:
        found = f"{found}: {error}"
    else:
        names = parts.path.rstrip("/").split("/")[1:]
        has_host = bool(parts.host) or (parts.scheme in OF_THIS_MACHINE and names != [])
        if parts.scheme in NEVER_WRITTEN:
            expected = "one of a store that can be written, such as s3://bucket/prefix"
            remedy = "name another, or a folder"
        elif not has_host or not {"", ".", ".."}.isdisjoint(names):
            expected = "a bucket and a path, such as s3://bucket/prefix"
            remedy = "correct it" if has_host else "name the bucket"
        elif not (parts.userinfo or parts.query or "?" in parts.path or "#" in url):
            return parts.scheme + url[len(parts.scheme) :].rstrip("/")
    raise ConfigError(where="URL", expected=expected, found=found, remedy=remedy)
