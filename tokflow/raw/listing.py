"""The raw files of a dataset, found by its patterns, with the key of each."""

import os
import posixpath
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tokflow.errors import ConfigError, first_five
from tokflow.raw.config import RawConfig
from tokflow.raw.globs import (
    FILE,
    FOLDER,
    FormatOf,
    Matches,
    find_below,
    list_folder,
    open_folders,
    unescaped,
)
from tokflow.raw.hub.dataset_matches import (
    NO_ORIGIN,
    Origin,
    Origins,
    find_in_repository,
    folder_matches,
    repositories,
    repository_matches,
)
from tokflow.raw.keys import check_key
from tokflow.raw.patterns import HUB, Pattern, host_of, is_web, read_pattern
from tokflow.shown import redact
from tokflow.store.urls import OF_OBJECT_STORES

if TYPE_CHECKING:
    from tokflow.raw.hub.repository import HubFile, HubRepository
    from tokflow.raw.remote import Validator


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSource:
    """The place of one raw file."""

    key: str
    """The path below the folder that all patterns have in common: the partition key, unless files
    are grouped."""
    url: str = field(repr=False)
    """Absolute path, or URL. It may hold a password: show `redact(url)`."""
    is_local: bool
    """It is a file of this machine, read where it is."""
    named_hosts: frozenset[str] = field(default=frozenset(), repr=False)
    """The http hosts that the patterns of its dataset name, to which a server may lead."""
    hub: "HubFile | None" = field(default=None, repr=False)
    """The file at its commit, if it is of a dataset of the hub; its URL names no commit."""
    version: "Validator | None" = field(default=None, repr=False)
    """Which version of it is there, where the listing of an object store tells it."""
    source_split: str | None = field(default=None, repr=False)
    """The split that it is of, where its source has splits."""

    @property
    def may_differ(self) -> bool:
        """True if only its server knows which version is there now."""
        return not self.is_local and self.hub is None and self.version is None

    @property
    def num_bytes(self) -> int | None:
        """Size of a file elsewhere, where it is listed."""
        listed = self.hub or self.version
        return None if listed is None else listed.num_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Something that a pattern matches and that is not read."""

    path: str
    """Absolute path, or URL without what is secret in it."""
    found: str
    """The kind of thing it is: `a fifo`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Everything that the patterns of a dataset match."""

    sources: dict[str, RawSource]
    """The raw files by their keys, sorted."""
    left_out: tuple[LeftOut, ...] = ()
    """The other things, sorted by path."""

    @property
    def commits(self) -> dict[str, str]:
        """The commit of each dataset of the hub that is read, by its name."""
        hub_files = (source.hub for source in self.sources.values() if source.hub is not None)
        return {file.repository: file.commit for file in hub_files}


def list_raw(
    config: RawConfig, *, base: Path, store: Path | None = None, format_of: FormatOf
) -> Listing:
    """Return the raw files by their keys, and what else the patterns match.

    Paths are relative to `base`. A key is the path relative to the deepest folder that holds the
    fixed part of every pattern, so it depends on the patterns and not on which files exist:

        data/raw/*.txt                        data/raw/a.txt       -> a.txt
        data/en/*.txt and data/de/**/*.txt    data/en/a.txt        -> en/a.txt
        data/x.parquet, a folder               data/x.parquet/p.parquet -> x.parquet/p.parquet
        https://host/dump/a.txt?key=1                              -> a.txt
        hf://datasets/org/name                 data/a.parquet in it -> data/a.parquet

    Files of several hosts (or buckets) have the host before their path. A file that two patterns
    match is listed once, with the split that either knows. Datasets of the hub and wildcards touch
    the network, and with `store`, which remembers what the hub said, files named at object stores.
    `format_of` says whether a folder's name stands for its files; others are datasets.

    Raises: ConfigError for a path that does not exist, a pattern without a match, two files with
    one key, a file of two splits, an unsafe key and a file in `store`; RawFileError for a folder
    without rights or a hub that does not answer.
    """
    patterns = [_opened(read_pattern(text, base), format_of) for text in config.files]
    _check_datasets(config, patterns)
    hosts = frozenset(host_of(pattern.origin) for pattern in patterns if is_web(pattern.origin))
    sources, left_out = dict[str, RawSource](), dict[str, str]()
    repository_of = repositories(config, store)
    for pattern in patterns:
        root = _root(pattern, patterns)
        matches, origins = _matches(pattern, config, repository_of, format_of)
        for path, kind in sorted(matches.items()):
            if kind != FILE:
                left_out[pattern.url_of(path)] = kind
                continue
            source = _source(path, pattern, root, hosts, origins.get(path, NO_ORIGIN))
            check_outside(source, store)  # before the key, which an output's name would not be
            check_key(source.key)
            sources[source.key] = _one_source(sources.get(source.key, source), source)
    return Listing(sources=_sorted(sources, store), left_out=_left_out(left_out, sources))


def _source(
    path: str, pattern: Pattern, root: str, named_hosts: frozenset[str], origin: Origin
) -> RawSource:
    return RawSource(
        key=_key(path, pattern, root),
        url=pattern.url_of(path),
        is_local=not pattern.origin,
        named_hosts=named_hosts,
        hub=origin.hub,
        version=origin.version,
        source_split=origin.source_split,
    )


def _sorted(sources: dict[str, RawSource], store: Path | None) -> dict[str, RawSource]:
    """Return the files by their keys, with the versions that an object store tells of those that
    are named, if a store is."""
    files = dict(sorted(sources.items()))
    may_differ = [of.url for of in files.values() if of.may_differ] if store is not None else []
    asked = [url for url in may_differ if url.partition("://")[0].lower() in OF_OBJECT_STORES]
    if not asked:
        return files
    from tokflow.raw.object_store import versions_of

    found = versions_of(asked)
    return {key: replace(of, version=found.get(of.url, of.version)) for key, of in files.items()}


def _opened(pattern: Pattern, format_of: FormatOf) -> Pattern:
    """Return a pattern that names a folder as one that says itself what its files are."""
    is_path = not pattern.origin and not pattern.is_glob
    if not is_path or format_of(pattern.path) is not None or not Path(pattern.path).is_dir():
        return pattern
    folder = pattern.path.rstrip("/") or "/"
    return replace(pattern, folder=folder, below=(), is_dataset=True)


def _check_datasets(config: RawConfig, patterns: Sequence[Pattern]) -> None:
    for name in ("config", "split"):
        if getattr(config, name) is not None and not any(of.is_dataset for of in patterns):
            raise ConfigError(
                where=f"raw.{name}",
                expected="a folder or a dataset of the hub, as hf://datasets/org/name",
                found=first_five([redact(of.text) for of in patterns]),
                remedy=f"remove raw.{name}, or name a dataset",
            )


def _root(pattern: Pattern, patterns: Sequence[Pattern]) -> str:
    """Return the folder that keys are relative to; none where they begin with a host."""
    if pattern.origin and any(other.origin != pattern.origin for other in patterns):
        return ""
    return posixpath.commonpath([p.folder for p in patterns if p.origin == pattern.origin])


def _left_out(found: dict[str, str], sources: dict[str, RawSource]) -> tuple[LeftOut, ...]:
    """Return what no other pattern lists, and no folder of which one lists a file."""
    listed = {source.url for source in sources.values()} if found else set()
    for url in list(listed):
        while (url := posixpath.dirname(url)) not in listed and url:
            listed.add(url)
    return tuple(
        LeftOut(path=redact(url), found=found[url]) for url in sorted(found) if url not in listed
    )


def check_outside(source: RawSource, store: Path | None) -> None:
    """Raise ConfigError if the file lies in `store`: an output would become a raw file."""
    if store is not None and source.is_local and source.url.startswith(f"{store.absolute()}/"):
        raise ConfigError(
            where=source.url,
            expected=f"raw files outside of the store {store.absolute()}",
            found="a pattern of raw.files that matches a file in it",
            remedy="narrow the pattern, or put the store elsewhere",
        )


def _matches(
    pattern: Pattern,
    config: RawConfig,
    repository_of: "Callable[[str], HubRepository]",
    format_of: FormatOf,
) -> tuple[Matches, Origins]:
    """Return the files that match, those of the folders that do, and what else does; and what is
    known of the origin of some."""
    repository = repository_of(pattern.text) if pattern.origin == HUB else None
    if repository is not None and pattern.is_dataset:
        return repository_matches(repository, config, format_of=format_of)
    if pattern.is_dataset:
        matches, origins = folder_matches(pattern.path, config, format_of=format_of)
        if not origins:
            _check_file(pattern)
        return matches, origins
    return _matches_of_names(pattern, repository, format_of)


def _matches_of_names(
    pattern: Pattern, repository: "HubRepository | None", format_of: FormatOf
) -> tuple[Matches, Origins]:
    origins: dict[str, Origin] = {}
    find = partial(_find, pattern, repository, origins)
    if pattern.origin and pattern.below == ("",) and not is_web(pattern.origin):
        from tokflow.raw.remote import remote_error

        folder = redact(pattern.text).rstrip("/")
        raise remote_error(pattern.text, "a folder", remedy=f"write {folder}/* for its files")
    is_listed = pattern.is_glob or repository is not None
    if is_listed:
        matches = find(pattern.folder, pattern.below)
    else:
        is_folder = not pattern.origin and Path(pattern.path).is_dir()
        matches = {pattern.path: FOLDER if is_folder else FILE}
    opened = open_folders(
        matches,
        list_below=partial(find, below=("**",)) if pattern.origin else list_folder,
        format_of=format_of,
        are_entered="**" in pattern.below[-2:],
    )
    files = {path for path, kind in opened.items() if kind == FILE}
    if repository is not None and pattern.path in opened.keys() - files:
        raise _no_file(pattern, opened[pattern.path], _for_files_in(pattern))
    if is_listed and not files:
        raise _no_match(pattern, _names_in(pattern, repository))
    if not pattern.is_glob and not pattern.origin and files <= {pattern.path}:
        _check_file(pattern)
    return opened, origins


def _find(
    pattern: Pattern,
    repository: "HubRepository | None",
    origins: dict[str, Origin],
    folder: str,
    below: Sequence[str],
) -> Matches:
    """Return what matches below a folder; what is known of the files is put into `origins`."""
    if not pattern.origin:
        return find_below(folder, below)
    if repository is not None:
        matches = find_in_repository(repository, folder, below)
        start, files = len(f"/{repository.name}/"), repository.files
        of_hub = {path: files[path[start:]] for path, kind in matches.items() if kind == FILE}
        origins.update({path: Origin(hub=file) for path, file in of_hub.items()})
        return matches
    from tokflow.raw.object_store import find_objects

    matches, listed = find_objects(pattern.url_of(folder), folder, below)
    origins.update({path: Origin(version=version) for path, version in listed.items()})
    return matches


def _check_file(pattern: Pattern) -> None:
    path = Path(pattern.path)
    if path.is_file():
        return
    found, remedy = "no such file", "correct the path"
    if unescaped(pattern.text) != pattern.text:
        remedy += "; a pattern has to be text, for a Path and `[*]` stand for themselves"
    if path.is_dir():
        found, remedy = "a folder", _for_files_in(pattern)
    elif path.exists():
        found, remedy = "something that is no regular file", "copy its content into a file"
    raise _no_file(pattern, found, remedy)


def _for_files_in(pattern: Pattern) -> str:
    return f"write {pattern.text.rstrip('/')}/* for the files in it"


def _no_file(pattern: Pattern, found: str, remedy: str) -> ConfigError:
    return ConfigError(
        where=f"raw.files {pattern.text!r}",
        expected=f"the file {pattern.origin}{pattern.path}",
        found=found,
        remedy=remedy,
    )


def _no_match(pattern: Pattern, there: Sequence[str] | None) -> ConfigError:
    """Return the error for a pattern that matches no file; `there`: the names in its folder."""
    folder = pattern.origin + pattern.folder
    found = "no such folder" if there is None else first_five([repr(name) for name in there])
    remedy = "correct the pattern"
    if not pattern.origin and Path(pattern.path).exists():
        remedy = "write `[[]` for a `[` that belongs to the name"
    return ConfigError(
        where=f"raw.files {redact(pattern.text)!r}",
        expected=f"at least one file that matches in {folder}",
        found=found or "an empty folder",
        remedy=remedy,
    )


def _names_in(pattern: Pattern, repository: "HubRepository | None") -> list[str] | None:
    """Return what is in the folder below which nothing matches; None if it is not there."""
    if repository is not None:
        found = find_in_repository(repository, pattern.folder, ("*",))
    elif pattern.origin:
        from tokflow.raw.object_store import names_in

        return names_in(pattern.url_of(pattern.folder))
    else:
        try:
            found = {of.path: FOLDER * of.is_dir() for of in os.scandir(pattern.folder)}
        except OSError:
            return None
    names = (posixpath.basename(path) + "/" * (kind == FOLDER) for path, kind in found.items())
    return sorted(names) or ([] if repository is None else None)


def _key(path: str, pattern: Pattern, root: str) -> str:
    host = pattern.origin.partition("://")[2]
    key = path[len(root) :].removeprefix("/") if root else host + path
    if is_web(pattern.origin):
        return urllib.parse.unquote(key, errors="surrogateescape")
    return key


def _one_source(first: RawSource, again: RawSource) -> RawSource:
    """Return a file that is found again as what is known of it by all patterns, in any order."""
    if first.url != again.url:
        names = [redact(first.url), redact(again.url)]
        raise ConfigError(
            where="raw.files",
            expected="a different key for each file",
            found=f"{again.key!r} for both {names[0]} and {names[1]}"
            + (" (they differ only in what is not shown)" if names[0] == names[1] else ""),
            remedy="put the files in folders or datasets of their own",
        )
    if None not in (splits := {first.source_split, again.source_split}) and len(splits) > 1:
        raise ConfigError(
            where="raw.files",
            expected="folders that agree on the split of a file",
            found=f"{again.key!r} of {first.source_split} and of {again.source_split}",
            remedy="name one of the folders alone, or with a pattern as folder/* beside it",
        )
    return again if first.source_split is None else first
