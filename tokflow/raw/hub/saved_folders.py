"""Folders that `save_to_disk` of the `datasets` library wrote.

    state.json, data-00000-of-00001.arrow     a Dataset; `_data_files` names its files in order
    dataset_dict.json, train/, test/          a DatasetDict: a folder like that for each split

Source: huggingface/datasets at b7cb10b, arrow_dataset.py lines 1870-1940, dataset_dict.py.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, RawFileError
from tokflow.raw.hub.source_splits import SourceSplits

_DICT, _STATE = "dataset_dict.json", "state.json"


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
    names = [str(file["filename"]) for file in state.get("_data_files", [])]
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
