"""The files of a dataset of the Hugging Face hub that a `raw` section asks for."""

from collections.abc import Sequence
from pathlib import Path

from tokflow.errors import ConfigError, nearest
from tokflow.raw.config import RawConfig
from tokflow.raw.globs import FILE, FormatOf, Matches
from tokflow.raw.hub import HubRepository, list_repository
from tokflow.raw.listing import Origin, Origins
from tokflow.raw.source_splits import SourceSplits, find_splits
from tokflow.raw.urls import hub_dataset

DEFAULT_REVISION = "main"


def hub_matches(
    url: str, config: RawConfig, *, store: Path | None, format_of: FormatOf
) -> tuple[Matches, Origins]:
    """Return the files of the config and the splits asked for, by `/org/name/path`, what else
    looks like data, and which split and commit each file is of.

    Raises: ConfigError for a repository, revision, config or split that is not there, with those
    that are; FetchError if the hub does not answer.
    """
    repository = list_repository(*_named(url, config.revision), store=store)
    where = f"raw.files 'hf://datasets/{repository.name}'"
    splits = find_splits(
        repository.files, repository.card, config=config.config, where=where, format_of=format_of
    )
    asked = _asked_splits(splits, config.split, where=where)
    origins: dict[str, Origin] = {}
    for split in asked:
        for path in splits.files[split]:
            origin = Origin(split, repository.files[path])
            first = origins.setdefault(_place(repository, path), origin)
            _check_one_split(path, first, split, where=where)
    matches = dict.fromkeys(origins, FILE)
    return {
        _place(repository, path): kind for path, kind in splits.left_out.items()
    } | matches, origins


def _named(url: str, revision: str | None) -> tuple[str, str]:
    name, written = hub_dataset(url) or (url, None)
    if written and revision and written != revision:
        raise ConfigError(
            where="raw.revision",
            expected=f"one revision of {name}",
            found=f"{revision!r}, and {written!r} in raw.files",
            remedy="keep one of them",
        )
    return name, revision or written or DEFAULT_REVISION


def _place(repository: HubRepository, path: str) -> str:
    return f"/{repository.name}/{path}"


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
