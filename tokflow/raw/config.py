"""The `raw` section of a dataset: which files are read, and which of them are a partition."""

import os
import sys
from contextlib import suppress
from typing import Annotated, ClassVar, NamedTuple

from pydantic import BeforeValidator

from tokflow.errors import ConfigError, first_five
from tokflow.raw.globs import escaped
from tokflow.shown import redact
from tokflow.store.config import Config, bytes_of
from tokflow.store.urls import hub_url


def _as_patterns(files: object) -> tuple[object, ...]:
    given = files if isinstance(files, list | tuple) else [files]
    is_text = all(isinstance(file, os.PathLike | str) and str(file).strip() for file in given)
    if not given or not is_text:
        raise ConfigError(
            where="",
            expected="a path, glob or URL, or a list of them",
            found=repr(files),
            remedy="name the raw files, as in `files: data/raw/*.parquet`",
        )
    return tuple(
        escaped(os.fspath(file)) if isinstance(file, os.PathLike) else file for file in given
    )


def _as_names(names: object) -> object:
    names = (names,) if isinstance(names, str) else names
    return tuple(names) if isinstance(names, list) else names


class GroupSize(NamedTuple):
    """What a group of raw files has at most."""

    num_bytes: int = sys.maxsize
    num_files: int = sys.maxsize


def _as_size(size: object) -> GroupSize | None:
    """Return what `raw.group` asks for: a number is one of files, text one of bytes."""
    if size is None or isinstance(size, GroupSize):
        return size
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return GroupSize(num_files=size)
    with suppress(ValueError):
        if isinstance(size, str) and not size.strip().isdigit():
            return GroupSize(bytes_of(size))
    raise ConfigError(
        where="",
        expected="bytes with a unit, or a number of files, 1 or more",
        found=repr(size),
        remedy="write `1 GB`, or `500`",
    )


class RawConfig(Config):
    """Source of a dataset's raw files, and their names there."""

    section: ClassVar[str] = "raw"

    files: Annotated[
        tuple[str, ...], BeforeValidator(_as_patterns, json_schema_input_type=str | list[str])
    ]
    """Paths, globs (`*`, `?`, `[...]`, `**`) and URLs (`file`, `http`, `https`, and what fsspec
    knows, as `s3`, `gs`, `hf`); one file is one partition. A folder such as `x.parquet`, which
    Spark, Dask and Hive write, stands for the data files in it; another folder is read as
    `load_dataset` reads it or, if `save_to_disk` wrote it, `load_from_disk`. Hidden files match
    only a pattern that names the dot. `[[]` stands for a bracket in a name; a `Path` in Python is
    no pattern. `hf://datasets/org/name` is a dataset of the Hugging Face hub, of which the files
    are read that its card or their names say, as `load_dataset` does; HF_TOKEN and HF_ENDPOINT
    count."""
    config: str | None = None
    """Of a dataset, a folder or one of the hub: the config, as `load_dataset(name, config)` has
    it; default: the only one, or the one that its card calls default."""
    split: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_as_names, json_schema_input_type=str | list[str] | None),
    ] = None
    """Of a dataset: the split that is read, or a list of them; default: all. They become
    parts by `split.parts`, as {train: {source_split: train}}."""
    revision: str | None = None
    """Of a dataset of the hub: a branch, a tag or a commit; default: main, of which each run reads
    the newest commit. The manifest of each file names the commit that it was fetched from."""
    group: Annotated[
        GroupSize | None, BeforeValidator(_as_size, json_schema_input_type=int | str | None)
    ] = None
    """For many small files: a partition is as many of them as have together at most so many bytes,
    such as `1 GB`, or so many files, such as `500`. Default: each file is a partition."""

    def check(self) -> None:
        """Refuse a revision where no dataset of the hub is named."""
        if self.revision is not None and not any(map(hub_url, self.files)):
            raise ConfigError(
                where="revision",
                expected="a dataset of the hub in `files`, as hf://datasets/org/name",
                found=first_five([redact(file) for file in self.files]),
                remedy="remove `revision`, or name a dataset of the hub",
            )
