"""The files that a `raw` section asks for of a dataset: of the Hugging Face hub, or a folder."""

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tokflow.errors import ConfigError, first_five, nearest
from tokflow.raw.config import RawConfig
from tokflow.raw.globs import (
    FILE,
    FOLDER,
    FormatOf,
    Matches,
    is_passed_over,
    list_folder,
    select,
)
from tokflow.raw.hub.saved_folders import read_saved_splits
from tokflow.raw.hub.source_splits import CARD, OF_NO_SPLIT, SourceSplits, card_of, find_splits
from tokflow.store.urls import hub_url

if TYPE_CHECKING:
    from tokflow.raw.hub.repository import HubFile, HubRepository
    from tokflow.raw.remote import Validator

DEFAULT_REVISION = "main"


class Origin(NamedTuple):
    """What is known of a file by the dataset that it is of."""

    source_split: str | None = None
    hub: "HubFile | None" = None
    version: "Validator | None" = None
    """As a listing of an object store told it."""


NO_ORIGIN = Origin()
Origins: TypeAlias = Mapping[str, Origin]
"""By path, of the files of which something is known."""


def repositories(config: RawConfig, store: Path | None) -> Callable[[str], "HubRepository"]:
    """Return a function from a URL of the hub to the repository that it names, at the revision of
    the URL or the config; it asks for each once, so that all files of one are of one commit.

    The function raises: ConfigError for two revisions, or one that is not there; FetchError if the
    hub does not answer.
    """

    revisions: dict[str, str] = {}

    @cache
    def listed(name: str) -> "HubRepository":
        from tokflow.raw.hub.repository import list_repository  # with urllib3 and ssl

        return list_repository(name, revisions[name], store=store)

    def repository_of(url: str) -> "HubRepository":
        name, written, _ = hub_url(url) or (url, None, "")
        revision = written or config.revision or DEFAULT_REVISION
        for other in (config.revision or revision, revisions.setdefault(name, revision)):
            _check_one_revision(name, revision, other)
        return listed(name)

    return repository_of


def _check_one_revision(name: str, revision: str, other: str) -> None:
    if revision != other:
        raise ConfigError(
            where="raw.files",
            expected=f"one revision of {name}",
            found=f"{revision!r} and {other!r}",
            remedy="keep one of them; two are two datasets",
        )


def repository_matches(
    repository: "HubRepository", config: RawConfig, *, format_of: FormatOf
) -> tuple[Matches, Origins]:
    """Return the files of the config and the splits asked for, by `/org/name/path`, what else
    looks like data, and which split and commit each file is of.

    Raises: ConfigError for a config or split that is not there, with those that are.
    """
    where = f"raw.files 'hf://datasets/{repository.name}'"
    splits = find_splits(
        repository.files, repository.card, config=config.config, where=where, format_of=format_of
    )
    return _asked(splits, config, f"/{repository.name}", where, hub_file=repository.files.get)


def find_in_repository(
    repository: "HubRepository", folder: str, below: Sequence[str]
) -> dict[str, str]:
    """Return the files and folders of a repository that match below `/org/name/folder`."""
    files = dict.fromkeys((f"/{repository.name}/{path}" for path in repository.files), FILE)
    above = {os.fspath(each) for path in files for each in PurePosixPath(path).parents}
    found = dict.fromkeys(above, FOLDER) | files
    start = f"{folder.rstrip('/')}/"
    relative = {path[len(start) :]: of for path, of in found.items() if path.startswith(start)}
    return {start + path: kind for path, kind in select(relative, below).items()}


def folder_matches(
    folder: str, config: RawConfig, *, format_of: FormatOf
) -> tuple[Matches, Origins]:
    """Return the files of a folder of this machine, as `repository_matches` those of a repository.

    What `save_to_disk` wrote is read as it says itself; any other folder as `load_dataset` reads
    it, but for files that look like data and are of no split, which are an error. Nothing hidden
    is looked at, nor what begins with `_`. A folder without data files is left as it is.

    Raises: ConfigError; RawFileError for a folder that cannot be read.
    """
    where = f"raw.files {folder!r}"
    below = {path[len(folder) + 1 :]: kind for path, kind in list_folder(folder).items()}
    below = {path: kind for path, kind in below.items() if not is_passed_over(path)}
    files = [path for path, kind in below.items() if kind == FILE]
    if not any(format_of(posixpath.basename(path)) for path in files):
        return {folder: FOLDER}, {}
    splits = read_saved_splits(Path(folder), files, config.config)
    if splits is None:
        text = Path(folder, CARD).read_text(errors="replace") if CARD in files else ""
        card = card_of(text, where=where)
        splits = find_splits(files, card, config=config.config, where=where, format_of=format_of)
        _check_complete(splits, folder, where=where)
    matches, origins = _asked(splits, config, folder, where)
    others = {f"{folder}/{path}": kind for path, kind in below.items() if kind != FILE}
    return others | matches, origins


def _asked(
    splits: SourceSplits,
    config: RawConfig,
    folder: str,
    where: str,
    hub_file: Callable[[str], "HubFile | None"] = lambda _: None,
) -> tuple[Matches, Origins]:
    """Return the files of the splits asked for, by their paths, which begin with `folder`."""
    origins: dict[str, Origin] = {}
    for split in _asked_splits(splits, config.split, where=where):
        for path in splits.files[split]:
            first = origins.setdefault(f"{folder}/{path}", Origin(split, hub_file(path)))
            _check_one_split(path, first, split, where=where)
    left_out = {f"{folder}/{path}": kind for path, kind in splits.left_out.items()}
    return left_out | dict.fromkeys(origins, FILE), origins


def _asked_splits(
    splits: SourceSplits, asked: Sequence[str] | None, *, where: str
) -> Sequence[str]:
    known = list(splits.files)
    for split in asked or ():
        if split not in known:
            raise ConfigError(
                where=f"{where}: raw.split",
                expected=f"one of {', '.join(known)}",
                found=repr(split),
                remedy=nearest(split, known) or "name one of them",
            )
    return asked or known


def _check_one_split(path: str, first: Origin, split: str, *, where: str) -> None:
    if first.source_split != split:
        raise ConfigError(
            where=f"{where}: {path}",
            expected="a file of one split",
            found=f"one of {first.source_split} and of {split}",
            remedy="name one of them as raw.split",
        )


def _check_complete(splits: SourceSplits, folder: str, *, where: str) -> None:
    of_none = [path for path, reason in splits.left_out.items() if reason == OF_NO_SPLIT]
    if of_none:
        raise ConfigError(
            where=where,
            expected=f"files that are all of a split by their names, as some are of "
            f"{' and '.join(splits.files)}",
            found=f"files that match no split: {first_five(of_none)}",
            remedy=f"write {folder}/* for all of its files, or a pattern for some",
        )
