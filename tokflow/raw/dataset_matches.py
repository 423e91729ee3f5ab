"""The files that a `raw` section asks for of a dataset: of the Hugging Face hub, or a folder.

A folder that `save_to_disk` of the `datasets` library wrote says itself what its files are:

    state.json, data-00000-of-00001.arrow     a Dataset; `_data_files` names its files in order
    dataset_dict.json, train/, test/          a DatasetDict: a folder like that for each split

Source: huggingface/datasets at b7cb10b, arrow_dataset.py lines 1870-1940, dataset_dict.py.
"""

import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tokflow.errors import ConfigError, RawFileError, first_five, nearest
from tokflow.raw.config import RawConfig
from tokflow.raw.globs import FILE, FOLDER, FormatOf, Matches, is_passed_over, list_folder, select
from tokflow.raw.hub_repository import HubFile, HubRepository, list_repository
from tokflow.raw.remote import Validator
from tokflow.raw.source_splits import CARD, OF_NO_SPLIT, SourceSplits, card_of, find_splits
from tokflow.store.urls import hub_url

DEFAULT_REVISION = "main"

_DICT, _STATE = "dataset_dict.json", "state.json"


class Origin(NamedTuple):
    """What is known of a file by the dataset that it is of."""

    source_split: str | None = None
    hub: HubFile | None = None
    version: Validator | None = None
    """As a listing of an object store told it."""


def list_repositories(
    urls: Sequence[str], config: RawConfig, store: Path | None
) -> dict[str, HubRepository]:
    """Return the repository that each URL of the hub names, at the revision of the URL or the
    config; each is asked for once, so that all files of one are of one commit.

    Raises: ConfigError for two revisions, or one that is not there; FetchError if the hub does not
    answer.
    """
    revisions: dict[str, str] = {}
    names: dict[str, str] = {}
    for url in urls:
        name, written, _ = hub_url(url) or (url, None, "")
        revision = written or config.revision or DEFAULT_REVISION
        for other in (config.revision or revision, revisions.setdefault(name, revision)):
            if revision != other:
                raise ConfigError(
                    where="raw.files",
                    expected=f"one revision of {name}",
                    found=f"{revision!r} and {other!r}",
                    remedy="keep one of them; two are two datasets",
                )
        names[url] = name
    listed = {
        name: list_repository(name, revision, store=store) for name, revision in revisions.items()
    }
    return {url: listed[name] for url, name in names.items()}


def repository_matches(
    repository: HubRepository, config: RawConfig, *, format_of: FormatOf
) -> tuple[Matches, dict[str, Origin]]:
    """Return the files of the config and the splits asked for, by `/org/name/path`, what else
    looks like data, and which split and commit each file is of.

    Raises: ConfigError for a config or split that is not there, with those that are.
    """
    where, files = f"raw.files 'hf://datasets/{repository.name}'", repository.files
    splits = find_splits(files, repository.card, config.config, where=where, format_of=format_of)
    return _asked(splits, config, f"/{repository.name}", where, files)


def find_in_repository(repository: HubRepository, folder: str, below: Sequence[str]) -> Matches:
    """Return the files and folders of a repository that match below `/org/name/folder`."""
    files = dict.fromkeys((f"/{repository.name}/{path}" for path in repository.files), FILE)
    above = {os.fspath(each) for path in files for each in PurePosixPath(path).parents}
    found = dict.fromkeys(above, FOLDER) | files
    start = f"{folder.rstrip('/')}/"
    relative = {path[len(start) :]: of for path, of in found.items() if path.startswith(start)}
    return {start + path: kind for path, kind in select(relative, below).items()}


def folder_matches(
    folder: str, config: RawConfig, *, format_of: FormatOf
) -> tuple[Matches, dict[str, Origin]]:
    """Return the files of a folder of this machine, as `repository_matches` those of a repository.

    What `save_to_disk` wrote is read as it says itself; any other folder as `load_dataset` reads
    it, except that files which look like data and are of no split are an error. Nothing hidden
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
        splits = find_splits(files, card, config.config, where=where, format_of=format_of)
        of_none = [path for path, reason in splits.left_out.items() if reason == OF_NO_SPLIT]
        if of_none:
            raise ConfigError(
                where=where,
                expected=f"files that are all of a split by their names, as some are of "
                f"{' and '.join(splits.files)}",
                found=f"files that match no split: {first_five(of_none)}",
                remedy=f"write {folder}/* for all of its files, or a pattern for some",
            )
    matches, origins = _asked(splits, config, folder, where, {})
    others = {f"{folder}/{path}": kind for path, kind in below.items() if kind != FILE}
    return others | matches, origins


def _asked(
    splits: SourceSplits,
    config: RawConfig,
    folder: str,
    where: str,
    of_hub: Mapping[str, HubFile],
) -> tuple[Matches, dict[str, Origin]]:
    """Return the files of the splits asked for, by their paths, which begin with `folder`."""
    origins: dict[str, Origin] = {}
    known = list(splits.files)
    for split in config.split or known:
        if split not in known:
            raise ConfigError(
                where=f"{where}: raw.split",
                expected=f"one of {', '.join(known)}",
                found=repr(split),
                remedy=nearest(split, known) or "name one of them",
            )
        for path in splits.files[split]:
            first = origins.setdefault(f"{folder}/{path}", Origin(split, of_hub.get(path)))
            if first.source_split != split:
                raise ConfigError(
                    where=f"{where}: {path}",
                    expected="a file of one split",
                    found=f"one of {first.source_split} and of {split}",
                    remedy="name one of them as raw.split",
                )
    left_out = {f"{folder}/{path}": kind for path, kind in splits.left_out.items()}
    return left_out | dict.fromkeys(origins, FILE), origins


def is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder. Raises: as `read_saved_splits`."""
    named = [name for name in (_DICT, _STATE) if (folder / name).is_file()]
    return read_saved_splits(folder, named, None) is not None


def read_saved_splits(
    folder: Path, files: Sequence[str], config: str | None
) -> SourceSplits | None:
    """Return the Arrow files of each split; None for a folder that `save_to_disk` did not write.

    `files`: paths of what is in it. Other Arrow files there, such as those that `map` leaves, are
    left out. A Dataset that does not know its split is `train`.

    Raises: RawFileError for a folder that is not whole, or of which rows were only selected;
    ConfigError for a config, which such a folder does not have.
    """
    if _DICT in files:
        names = _read(folder / _DICT).get("splits", [])
        of_splits = {str(name): _saved(folder, f"{name}/") for name in names}
    elif _STATE in files and "_data_files" in (state := _read(folder / _STATE)):
        of_splits = {str(state.get("_split") or "train"): _saved(folder, "")}
    else:
        return None
    if config is not None:
        raise ConfigError(
            where="raw.config",
            expected=f"none, for {folder} was written by save_to_disk",
            found=repr(config),
            remedy="remove it",
        )
    taken = {path for of_split in of_splits.values() for path in of_split}
    others = [path for path in files if path.endswith(".arrow") and path not in taken]
    return SourceSplits(of_splits, dict.fromkeys(others, f"a file that {_STATE} does not name"))


def _saved(folder: Path, prefix: str) -> tuple[str, ...]:
    path = folder / prefix / _STATE
    state = _read(path)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise _not_whole(path, "rows that are selected by another file", "save it anew")
    try:
        names = [str(file["filename"]) for file in state.get("_data_files", [])]
    except (TypeError, LookupError):
        raise _not_whole(path, "files without a filename", "copy the whole folder again") from None
    for name in names:
        if "/" in name or not (path.parent / name).is_file():
            raise _not_whole(path, f"no file {name!r}", "copy the whole folder again")
    return tuple(prefix + name for name in names)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(fields, dict):
            return fields
        found = type(fields).__name__
    except (OSError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
    raise _not_whole(path, found, "copy the whole folder again")


def _not_whole(path: Path, found: str, remedy: str) -> RawFileError:
    return RawFileError(
        where=path,
        expected="what save_to_disk writes, with all its files",
        found=found,
        remedy=f"{remedy}, or name its files by a pattern",
    )
