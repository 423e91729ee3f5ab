"""The raw files of a dataset, found by its patterns, with the key of each."""

import posixpath
import sys
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tokflow.errors import ConfigError, first_five
from tokflow.formatting import redact
from tokflow.raw import globs
from tokflow.raw.config import HUB, Pattern, RawConfig, read_pattern
from tokflow.raw.hub_repository import HubFile, HubRepository, find_in_repository, list_repositories
from tokflow.raw.remote_version import Validator
from tokflow.raw.source_splits import Origin, folder_matches, repository_matches
from tokflow.store.atomic import BLOCKS_PREFIX
from tokflow.store.listed_files import LATEST
from tokflow.store.manifest import is_output_name
from tokflow.store.urls import OF_OBJECT_STORES

ASKED_AT_ONCE = 16
"""Servers that are asked at the same time which version of a file is there."""

_OBJECTS = tuple(f"{scheme}://" for scheme in OF_OBJECT_STORES)


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSource:
    """The place of one raw file."""

    key: str
    """The path below the folder that all patterns have in common: the partition key, unless files
    are grouped."""
    url: str = field(repr=False)
    """Absolute path, or URL. It may hold a password: show `redact(url)`."""
    is_local: bool
    """True for a file of this machine, which is read where it is."""
    named_hosts: frozenset[str] = field(default=frozenset(), repr=False)
    """The http hosts that the patterns of its dataset name, to which a server may lead."""
    hub: HubFile | None = field(default=None, repr=False)
    """The file at its commit, if it is of a dataset of the hub; its URL names no commit."""
    version: Validator | None = field(default=None, repr=False)
    """The current version, where the listing of an object store reports it."""
    source_split: str | None = field(default=None, repr=False)
    """The split that it is of, where its source has splits."""

    @property
    def may_differ(self) -> bool:
        """True if only its server knows which version is there now."""
        return not self.is_local and self.hub is None and self.version is None

    @property
    def num_bytes(self) -> int | None:
        """Size of a remote file, where its listing reports it."""
        listed = self.hub or self.version
        return None if listed is None else listed.num_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A path that a pattern matches and that is not read."""

    path: str
    """Absolute path, or URL without what is secret in it."""
    found: str
    """The kind of thing it is: `a fifo`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadFile:
    """A raw file that cannot be read, and is left out."""

    source: RawSource
    reason: str
    """What is wrong with it, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Everything that the patterns of a dataset match."""

    sources: dict[str, RawSource]
    """The raw files by their keys, sorted."""
    left_out: tuple[LeftOut, ...] = ()
    """The other things, sorted by path."""
    bad: Mapping[str, BadFile] = field(default_factory=dict)
    """Those of them that are raw files which cannot be read, by key."""

    @property
    def commits(self) -> dict[str, str]:
        """The commit of each dataset of the hub that is read, by its name."""
        hub_files = (source.hub for source in self.sources.values() if source.hub is not None)
        return {file.repository: file.commit for file in hub_files}


def list_raw(config: RawConfig, *, base: Path, store: Path | None = None) -> Listing:
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
    the network; so do, with `store`, which remembers listings of the hub, named files in buckets.
    A folder whose name has a format stands for its files; any other is a dataset.

    Raises: ConfigError for a path that does not exist, a pattern without a match, two files with
    one key, a file of two splits, an unsafe key and a file in `store`; RawFileError for a folder
    without rights or a hub that does not answer.
    """
    patterns = [read_pattern(text, base) for text in config.files]
    for name in ("config", "split"):
        if getattr(config, name) is not None and not any(of.is_dataset for of in patterns):
            expected = "a folder or a dataset of the hub, as hf://datasets/org/name"
            found = first_five([redact(of.text) for of in patterns])
            remedy = f"remove raw.{name}, or name a dataset"
            raise ConfigError(where=f"raw.{name}", expected=expected, found=found, remedy=remedy)
    sources, left_out = _matched(patterns, config, store)
    remote = (of for of in sources.values() if not of.is_local)
    objects = [of for of in remote if of.url.lower().startswith(_OBJECTS)]
    if store is not None and (asked := [of for of in objects if of.may_differ]):
        from tokflow.raw.buckets import version_at

        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            versions = pool.map(version_at, [of.url for of in asked])
            pairs = zip(asked, versions, strict=True)
            sources |= {of.key: replace(of, version=version) for of, version in pairs}
    others = _left_out(left_out, sources) if left_out else ()
    return Listing(sources=dict(sorted(sources.items())), left_out=others)


def _matched(
    patterns: Sequence[Pattern], config: RawConfig, store: Path | None
) -> tuple[dict[str, RawSource], dict[str, str]]:
    """Return the raw files by their keys, and the kinds of what else the patterns match by URL."""
    origins_of_web = {pattern.origin for pattern in patterns if pattern.is_web}
    hosts = frozenset(str(urllib.parse.urlsplit(of).hostname) for of in origins_of_web)
    sources, left_out = dict[str, RawSource](), dict[str, str]()
    of_hub = [pattern.text for pattern in patterns if pattern.origin == HUB]
    repositories = list_repositories(of_hub, config, store) if of_hub else {}
    folders: dict[str, list[str]] = {}
    for pattern in patterns:
        folders.setdefault(pattern.origin, []).append(pattern.folder)
    for pattern in patterns:
        repository = repositories.get(pattern.text)
        matches, origins = _matches(pattern, config, repository)
        has_host = pattern.origin and len(folders) > 1  # with which keys begin then
        root = "" if has_host else posixpath.commonpath(folders[pattern.origin])
        for path, kind in sorted(matches.items()):
            if kind != globs.FILE:
                left_out[pattern.url_of(path)] = kind
                continue
            origin = origins[path]._asdict() if path in origins else {}
            host = pattern.origin.partition("://")[2]
            key = path[len(root) :].removeprefix("/") if root else host + path
            if pattern.is_web:
                key = urllib.parse.unquote(key, errors="surrogateescape")
            source = RawSource(
                key=key,
                url=pattern.url_of(path),
                is_local=not pattern.origin,
                named_hosts=hosts,
                **origin,
            )
            check_outside(source, store)  # before the key, which an output's name would not be
            check_key(source.key)
            again = sources.setdefault(source.key, source)
            if again is not source:
                sources[source.key] = _one_source(again, source)
    return sources, left_out


def _left_out(found: dict[str, str], sources: dict[str, RawSource]) -> tuple[LeftOut, ...]:
    """Return what no other pattern lists, and no folder of which one lists a file."""
    listed = {source.url for source in sources.values()}
    for url in list(listed):
        while (url := posixpath.dirname(url)) not in listed and url:
            listed.add(url)
    return tuple(
        LeftOut(path=redact(url), found=found[url]) for url in sorted(found) if url not in listed
    )


def check_outside(source: RawSource, store: Path | None) -> None:
    """Raise ConfigError if the file lies in `store`: an output would become a raw file."""
    if store is not None and source.is_local and source.url.startswith(f"{store.absolute()}/"):
        expected = f"raw files outside of the store {store.absolute()}"
        found = "a pattern of raw.files that matches a file in it"
        remedy = "narrow the pattern, or move the store"
        raise ConfigError(where=source.url, expected=expected, found=found, remedy=remedy)


def _matches(
    pattern: Pattern, config: RawConfig, repository: HubRepository | None
) -> tuple[globs.Matches, dict[str, Origin]]:
    """Return the files that match, those of the folders that do, and what else does; and what is
    known of the origin of some."""
    if pattern.is_dataset and repository is not None:
        return repository_matches(repository, config)
    if pattern.is_dataset:
        matches, origins = folder_matches(pattern.path, config)
        if not origins:
            _check_file(pattern)
        return matches, origins
    if pattern.origin and repository is None and not pattern.is_glob:
        if pattern.below == ("",) and not pattern.is_web:
            raise _no_file(pattern, "a folder")
        return {pattern.path: globs.FILE}, {}
    versions: dict[str, Validator] = {}
    find: Callable[[str, Sequence[str]], globs.Matches] = globs.find_below
    if repository is not None:
        find = partial(find_in_repository, repository)
    elif pattern.origin:
        from tokflow.raw.buckets import find_objects

        find = partial(find_objects, pattern.url_of, versions)
    if pattern.is_glob or repository is not None:
        matches = find(pattern.folder, pattern.below)
    else:
        matches = {pattern.path: globs.FOLDER if Path(pattern.path).is_dir() else globs.FILE}
    if globs.FOLDER in matches.values():
        matches = globs.open_folders(
            matches,
            list_below=(lambda of: find(of, ("**",))) if pattern.origin else globs.list_folder,
            are_entered="**" in pattern.below[-2:],
        )
    files = [path for path, kind in matches.items() if kind == globs.FILE]
    if repository is not None and matches.get(pattern.path, globs.FILE) != globs.FILE:
        raise _no_file(pattern, matches[pattern.path])
    if not pattern.is_glob and not pattern.origin and files in ([], [pattern.path]):
        _check_file(pattern)
    elif not files:
        raise _no_match(pattern, find(pattern.folder, ("*",)) | find(pattern.folder, (".*",)))
    if repository is not None:
        start = len(f"/{repository.name}/")
        return matches, {path: Origin(hub=repository.files[path[start:]]) for path in files}
    return matches, {path: Origin(version=version) for path, version in versions.items()}


def _check_file(pattern: Pattern) -> None:
    path = Path(pattern.path)
    if path.is_dir():
        raise _no_file(pattern, "a folder")
    if not path.exists():
        remedy = "correct the path"
        if globs.unescaped(pattern.text) != pattern.text:
            remedy += "; a pattern has to be text, for a Path and `[*]` stand for themselves"
        raise _no_file(pattern, "no such file", remedy)
    if not path.is_file():
        found = "something that is no regular file"
        raise _no_file(pattern, found, "copy its content into a file")


def _no_file(pattern: Pattern, found: str, remedy: str = "") -> ConfigError:
    return ConfigError(
        where=f"raw.files {redact(pattern.text)!r}",
        expected=f"the file {pattern.origin}{pattern.path}",
        found=found,
        remedy=remedy or f"write {redact(pattern.text).rstrip('/')}/* for the files in it",
    )


def _no_match(pattern: Pattern, there: globs.Matches) -> ConfigError:
    """Return the error for a pattern that matches no file; `there`: what is in its folder."""
    names = [
        posixpath.basename(path) + "/" * (kind == globs.FOLDER) for path, kind in there.items()
    ]
    is_empty = not pattern.origin and Path(pattern.folder).is_dir()
    remedy = "correct the pattern"
    if not pattern.origin and Path(pattern.path).exists():
        remedy = "write `[[]` for a `[` that belongs to the name"
    return ConfigError(
        where=f"raw.files {redact(pattern.text)!r}",
        expected=f"at least one file that matches in {pattern.origin}{pattern.folder}",
        found=first_five(sorted(map(repr, names)))
        or ("an empty folder" if is_empty else "no such folder"),
        remedy=remedy,
    )


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
        expected = "folders that agree on the split of a file"
        found = f"{again.key!r} of {first.source_split} and of {again.source_split}"
        remedy = "name one of the folders alone, or with a pattern as folder/* beside it"
        raise ConfigError(where="raw.files", expected=expected, found=found, remedy=remedy)
    return again if first.source_split is None else first


def check_key(key: str) -> None:
    """Raise ConfigError unless `key` can name a partition, in this locale.

    A key is a path with `/` below a stage's folder, and its outputs are in
    `<stage>/<key>/<16 hexadecimal digits>/` beside a link `latest`; so no part of a key may lead
    out of the stage's folder or look like something that tokflow puts beside an output.
    """
    if not key.isascii() and (encoding := sys.getfilesystemencoding()) != "utf-8":
        where = f"partition key {key!r}"
        expected = "a locale of UTF-8, in which names of files have one form everywhere"
        remedy = "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        raise ConfigError(where=where, expected=expected, found=f"one of {encoding}", remedy=remedy)
    if (problem := next(_problems_of(key), None)) is not None:
        raise ConfigError(
            where=f"partition key {key!r}",
            expected="a path relative to the raw folder, in printable UTF-8",
            found=problem,
            remedy="rename the file or its folder",
        )


def _problems_of(key: str) -> Iterator[str]:
    try:
        key.encode()
    except UnicodeEncodeError:
        yield "a name that is not UTF-8"
    for character in "" if key.isprintable() else key:
        if unicodedata.category(character) in {"Cc", "Zl", "Zp"}:  # controls, line separators
            yield f"the control character {character!r}"
    if "\\" in key:
        yield "a backslash"
    if key.startswith("/"):
        yield "an absolute path"
    if "..." in key:
        yield "'...', which separates the ends of a range of partitions"
    for name in key.split("/"):
        if name in {"", ".", ".."}:
            yield f"the name {name!r}" if name else "an empty name"
        if len(name.encode()) > 255:
            yield f"a name of {len(name.encode())} bytes, where file systems allow 255"
        if name.lower() == LATEST:
            yield f"the name {name!r}, which tokflow gives the link to the newest output"
        if is_output_name(name.lower()):
            yield f"the name {name!r}, 16 hexadecimal digits as of an output's folder"
        is_temporary = name.startswith(".") and name.endswith(".tmp")
        if is_temporary or name.startswith((BLOCKS_PREFIX, ".source.json", ".lock")):
            yield f"the name {name!r}, which tokflow gives its own temporary files"
