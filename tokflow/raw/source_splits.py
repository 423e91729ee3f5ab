"""Files by split of a folder or a repository of the hub, as the `datasets` library finds them.

A folder that `save_to_disk` of the library wrote names its files itself:

    state.json, data-00000-of-00001.arrow     a Dataset; `_data_files` names its files in order
    dataset_dict.json, train/, test/          a DatasetDict: a folder like that for each split

Source: huggingface/datasets at b7cb10b, data_files.py (patterns and what they pass over),
load.py lines 210-256 (the format that most files have), utils/metadata.py (the card),
arrow_dataset.py lines 1870-1940, dataset_dict.py (saved datasets).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from typing import Any, NamedTuple

from tokflow.errors import ConfigError, RawFileError, first_five, nearest
from tokflow.raw import globs
from tokflow.raw.config import RawConfig
from tokflow.raw.hub_repository import CARD, HubFile, HubRepository, card_of
from tokflow.raw.remote_version import Validator

OF_NO_SPLIT = "a file of no split"
"""Reason to leave out a file whose name has no split, where other names have one."""

_SHARDED = re.compile(r"data/([^./][^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
"""Files that `push_to_hub` writes."""
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in a name by which it belongs to a split."""
_IN_FOLDER = ("**/{0}/**", "**/{0}[{1}]*/**", "**/*[{1}]{0}/**", "**/*[{1}]{0}[{1}]*/**")
_IN_NAME = ("**/{0}[{1}]*", "**/*[{1}]{0}[{1}]*")
_BETWEEN_WORDS = "-._ 0-9"
_IGNORED = {
    CARD,
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
}
_FAVOURITES: tuple[globs.FileFormat, ...] = ("parquet", "arrow", "jsonl", "csv", "txt", "tsv")
"""Formats: of two that as many files have the first is taken."""

_DICT, _STATE = "dataset_dict.json", "state.json"
_Patterns = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SourceSplits:
    """The data files of one config."""

    files: Mapping[str, tuple[str, ...]]
    """Their paths by split, in the order of the card, or train, validation, test."""
    left_out: Mapping[str, str]
    """Other files that look like data, and the reason why each is not read."""


class Origin(NamedTuple):
    """Facts about a file from the dataset that it is part of."""

    source_split: str | None = None
    hub: HubFile | None = None
    version: Validator | None = None
    """From the listing of an object store."""


def repository_matches(
    repository: HubRepository, config: RawConfig
) -> tuple[globs.Matches, dict[str, Origin]]:
    """Return the files of the config and the splits asked for, by `/org/name/path`, with the split
    and commit of each; other files that look like data have their reason as their kind.

    Raises: ConfigError for a config or split that is not there, with those that are.
    """
    where, files = f"raw.files 'hf://datasets/{repository.name}'", repository.files
    splits = find_splits(files, repository.card, config.config, where=where)
    return _asked(splits, config, f"/{repository.name}", where, files)


def folder_matches(folder: str, config: RawConfig) -> tuple[globs.Matches, dict[str, Origin]]:
    """Return the files of a folder of this machine, as `repository_matches` those of a repository.

    A folder of `save_to_disk` names its files; any other folder is read as `load_dataset` reads
    it, except that files which look like data and are of no split are an error. Nothing hidden
    is looked at, nor what begins with `_`. A folder without data files is left as it is.

    Raises: ConfigError; RawFileError for a folder that cannot be read.
    """
    where = f"raw.files {folder!r}"
    below = {path[len(folder) + 1 :]: kind for path, kind in globs.list_folder(folder).items()}
    below = {path: kind for path, kind in below.items() if not globs.is_ignored(path)}
    files = [path for path, kind in below.items() if kind == globs.FILE]
    if not any(globs.format_of_name(basename(path)) for path in files):
        return {folder: globs.FOLDER}, {}
    splits = read_saved_splits(Path(folder), files, config.config)
    if splits is None:
        text = Path(folder, CARD).read_text(errors="replace") if CARD in files else ""
        card = card_of(text, where=where)
        splits = find_splits(files, card, config.config, where=where)
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
    others = {f"{folder}/{path}": kind for path, kind in below.items() if kind != globs.FILE}
    return others | matches, origins


def _asked(
    splits: SourceSplits, config: RawConfig, folder: str, where: str, of_hub: Mapping[str, HubFile]
) -> tuple[globs.Matches, dict[str, Origin]]:
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
    return left_out | dict.fromkeys(origins, globs.FILE), origins


def find_splits(
    paths: Iterable[str], card: Mapping[str, Any], config: str | None, *, where: str
) -> SourceSplits:
    """Return the files of each split of a config, of those at `paths`.

    `card`: what `card_of` gave. Of a repository without `configs` there the splits are those that
    the names of folders or files imply, and all is `train` where none does; `config` may then name
    a folder. Files are of one format: the one that most of them have.

    Raises: ConfigError, which names the configs that there are.
    """
    paths = sorted(paths)
    fields = _config_of(card, paths, config, where=where)
    folder = str(fields.get("data_dir") or "").strip("/")
    within = f"{folder}/" if folder else ""
    below = [path.removeprefix(within) for path in paths if path.startswith(within)]
    patterns = _patterns(fields.get("data_files"), below, where=where)
    found = {split: _matching(below, each) for split, each in patterns.items()}
    formats = {
        path: globs.format_of_name(basename(path)) for files in found.values() for path in files
    }
    num_files = Counter(formats[path] for files in found.values() for path in files)
    most = max(_FAVOURITES, key=lambda format_: num_files[format_])
    kept = {split: [of for of in files if formats[of] == most] for split, files in found.items()}
    left_out = {
        path: f"{format_}, where most files are {most}"
        for path, format_ in formats.items()
        if format_ not in (None, most)
    }
    if not card.get("configs"):
        taken = {path for files in found.values() for path in files}
        others = (path for path in below if path not in taken and basename(path) not in _IGNORED)
        left_out |= {path: OF_NO_SPLIT for path in others if globs.format_of_name(basename(path))}
    if not any(kept.values()):
        expected = "data files of a format that documents are read from"
        remedy = (
            "name the files by a pattern, or set revision: refs/convert/parquet, where the "
            "hub has many datasets as parquet"
        )
        raise ConfigError(
            where=where, expected=expected, found=first_five(below) or "no file", remedy=remedy
        )
    return SourceSplits(
        {split: tuple(within + path for path in files) for split, files in kept.items() if files},
        {within + path: reason for path, reason in left_out.items()},
    )


def _config_of(
    card: Mapping[str, Any], paths: Sequence[str], config: str | None, *, where: str
) -> Mapping[str, Any]:
    """Return the fields of a config: the one asked for, or the default."""
    listed = card.get("configs") or []
    known = {
        str(fields["config_name"]): fields
        for fields in (listed if isinstance(listed, list) else [])
        if isinstance(fields, dict) and "config_name" in fields
    }
    if not known:
        folders = {path.partition("/")[0] for path in paths if "/" in path}
        if config in (None, "default"):
            return {}
        if config in folders:
            return {"data_dir": config}
    elif config is None:
        defaults = [name for name, fields in known.items() if fields.get("default")]
        name = next(iter(known)) if len(known) == 1 else next(iter(defaults), "default")
        if name in known:
            return known[name]
    elif config in known:
        return known[config]
    names = list(known) or ["default"]
    asked = "" if config is None else nearest(config, names)
    expected = f"one of {', '.join(names)}"
    found = "none, and no default" if config is None else repr(config)
    remedy = asked or "name one of them"
    raise ConfigError(where=f"{where}: raw.config", expected=expected, found=found, remedy=remedy)


def _patterns(data_files: object, paths: Sequence[str], *, where: str) -> _Patterns:
    """Return the patterns of each split: from the card, or else from the names of files."""
    if data_files is None:
        return _by_name(paths)
    given = data_files if isinstance(data_files, list) else [data_files]
    if isinstance(data_files, dict):
        given = [{"split": split, "path": path} for split, path in data_files.items()]
    if all(isinstance(each, str) for each in given):
        given = [{"split": "train", "path": given}]
    patterns: dict[str, list[str]] = {}
    found = ""
    for each in given:
        if not isinstance(each, dict) or set(each) != {"split", "path"}:
            found = found or repr(each)
            continue
        split, listed = str(each["split"]), each["path"]
        found = found or f"{split!r} twice" * (split in patterns)
        patterns[split] = [str(path) for path in (listed if isinstance(listed, list) else [listed])]
    for pattern in (one for some in patterns.values() for one in some):
        if "://" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            found = found or f"{pattern!r}, outside of the dataset"
    if found:
        raise ConfigError(
            where=f"{where}: data_files in {CARD}",
            expected="a pattern, a list of them, or a list of {split, path}, each split once",
            found=found,
            remedy="name the files by a pattern instead, as hf://datasets/org/name/data/*.parquet",
        )
    return patterns


def _by_name(paths: Sequence[str]) -> _Patterns:
    """Return the patterns of each split that names of files or folders imply."""
    sharded = sorted({match[1] for path in paths if (match := _SHARDED.fullmatch(path))})
    ends = "[0-9]" * 5
    of_shards = {
        split: [f"data/{globs.escaped(split)}-{ends}-of-{ends}*.*"]
        for split in (*_WORDS, *sharded)
        if split in sharded
    }
    of_words = [
        {
            split: [form.format(word, _BETWEEN_WORDS) for word in words for form in forms]
            for split, words in _WORDS.items()
        }
        for forms in (_IN_FOLDER, _IN_NAME)
    ]
    for patterns in (of_shards, *of_words):
        if found := {split: each for split, each in patterns.items() if _matching(paths, each)}:
            return found
    return {"train": ["**"]}


def _matching(paths: Sequence[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that one of the patterns matches, each once, in the order of patterns."""
    found: dict[str, None] = {}
    for pattern in (each.removeprefix("./") for each in patterns):
        matches, num_hidden = globs.path_regex(f"/{pattern}").match, _num_hidden(pattern)
        ignored = _IGNORED - {basename(pattern)}
        for path in paths:
            if matches(f"/{path}") and _num_hidden(path) == num_hidden:
                found |= {} if basename(path) in ignored else {path: None}
    return tuple(found)


def _num_hidden(path: str) -> tuple[int, int]:
    """Return how many names begin with a dot, and how many folders with `__`, which are passed over
    as well: a pattern takes them where it has as many."""
    *folders, name = path.split("/")
    with_dot = (of.startswith(".") and of.strip(".") != "" for of in (*folders, name))
    return sum(with_dot), sum(of.startswith("__") for of in folders)


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
        where = "raw.config"
        expected = f"none, for {folder} was written by save_to_disk"
        raise ConfigError(where=where, expected=expected, found=repr(config), remedy="remove it")
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
