"""The `raw` section of a dataset: patterns of raw files, and which files are a partition."""

import os
import posixpath
import re
import sys
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field

from tokflow.errors import ConfigError, first_five
from tokflow.formatting import redact, size
from tokflow.raw.globs import escaped, format_of_name, has_wildcard, unescaped
from tokflow.store.config import Config, bytes_of
from tokflow.store.urls import OF_OBJECT_STORES, Url, check_slashes, hub_url, is_url, split_url


def _as_patterns(files: object) -> tuple[object, ...]:
    given = files if isinstance(files, list | tuple) else [files]
    is_text = all(isinstance(file, os.PathLike | str) and str(file).strip() for file in given)
    if not given or not is_text:
        expected = "a path, glob or URL, or a list of them"
        remedy = "name the raw files, as in `files: data/raw/*.parquet`"
        raise ConfigError(where="", expected=expected, found=repr(files), remedy=remedy)
    return tuple(
        escaped(os.fspath(file)) if isinstance(file, os.PathLike) else file for file in given
    )


def as_names(names: object) -> object:
    """Return one name, or a list of them, as a tuple; anything else as it is."""
    names = (names,) if isinstance(names, str) else names
    return tuple(names) if isinstance(names, list) else names


class GroupSize(NamedTuple):
    """Limits of a group of raw files."""

    num_bytes: int = sys.maxsize
    num_files: int = sys.maxsize


class GroupProposal(NamedTuple):
    """Value of `raw.group` for many small files, each of which is a partition without it."""

    num_files: int
    num_bytes: int
    """Size of all files together."""

    @classmethod
    def of(cls, num_files: int, num_bytes: int) -> Self | None:
        """Return a proposal; None where files are few or large."""
        is_slow = num_files >= MANY_FILES and num_bytes <= num_files * SMALL_FILE_BYTES
        return cls(num_files, num_bytes) if is_slow else None

    @property
    def group(self) -> int:
        """Number of files of a partition."""
        return max(LEAST_GROUP, -(-self.num_files // MOST_GROUPS))

    def __str__(self) -> str:
        groups = -(-self.num_files // self.group)
        grouped = self.num_files * SECONDS_OF_MEMBER + self.num_bytes * SECONDS_OF_BYTE
        times = 1 + (self.num_files - groups) * SECONDS_OF_PARTITION / grouped
        return (
            f"{self.num_files:,} files of {size(self.num_bytes / self.num_files)} each: "
            f"{self.num_files:,} partitions; `raw: {{group: {self.group:_}}}` makes {groups:,}, "
            f"which are built about {times:.0f} times as fast"
        )


MANY_FILES, SMALL_FILE_BYTES = 1_000, 100_000
"""Number of files, and their size on average, for which groups are proposed."""

LEAST_GROUP, MOST_GROUPS = 250, 200

SECONDS_OF_PARTITION, SECONDS_OF_MEMBER, SECONDS_OF_BYTE = 0.010, 0.0007, 1 / 40e6
"""Time of a first build on one core, without Dagster: for a file that is a partition, for one in a
group, and for its text."""


def _as_size(group: object) -> GroupSize | None:
    """Return what `raw.group` asks for: a number is one of files, text one of bytes."""
    if group is None or isinstance(group, GroupSize):
        return group
    if isinstance(group, int) and not isinstance(group, bool) and group > 0:
        return GroupSize(num_files=group)
    with suppress(ValueError):
        if isinstance(group, str) and not group.strip().isdigit():
            return GroupSize(bytes_of(group))
    expected = "bytes with a unit, or a number of files, 1 or more"
    found = repr(group)
    raise ConfigError(where="", expected=expected, found=found, remedy="write `1 GB`, or `500`")


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
    """The config of a dataset, which is a folder or of the hub, as `load_dataset(name, config)` has
    it; default: the only one, or the one that its card calls default."""
    split: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(as_names, json_schema_input_type=str | list[str] | None),
    ] = None
    """The split of a dataset that is read, or a list of splits; default: all. They become
    parts by `split.parts`, as {train: {source_split: train}}."""
    revision: str | None = None
    """A branch, a tag or a commit of a dataset of the hub; default: main, of which each run reads
    the newest commit. The manifest of each file names the commit that it was fetched from."""
    group: Annotated[
        GroupSize | None, BeforeValidator(_as_size, json_schema_input_type=int | str | None)
    ] = None
    """For many small files: the most bytes of a partition, such as `1 GB`, or the most files, such
    as `500`. Default: each file is a partition."""

    on_bad_file: Literal["error", "skip"] = "error"
    """A file that cannot be read, such as a truncated .gz, an unreadable parquet, or one with a bad
    document that `documents` makes an error: `error` makes no export before it is whole; `skip`
    leaves it out, named with its reason, as well as a file of 0 bytes, and makes everything with it
    as soon as it is whole."""
    max_bad_files: Annotated[int, Field(ge=0)] = 10
    """With `on_bad_file: skip`: one bad file more than this is an error."""

    def check(self) -> None:
        """Refuse a revision where no dataset of the hub is named."""
        if self.revision is not None and not any(map(hub_url, self.files)):
            expected = "a dataset of the hub in `files`, as hf://datasets/org/name"
            found = first_five([redact(file) for file in self.files])
            remedy = "remove `revision`, or name a dataset of the hub"
            raise ConfigError(where="revision", expected=expected, found=found, remedy=remedy)


HUB = "hf://datasets"
"""The scheme and host of datasets of the Hugging Face hub."""

_SIGNED = re.compile(r"\?(.*&)?(X-Amz-|X-Goog-|AWSAccessKeyId=|Signature=|sig=)", re.IGNORECASE)
"""Start of a query that grants reading to its holder; any other `?` may be a wildcard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A pattern of raw files, split into its fixed part and its wildcards."""

    text: str = field(repr=False)
    """As the user wrote it."""
    origin: str
    """Scheme and host; empty for this machine."""
    folder: str
    """The fixed part, nothing of it escaped, absolute on this machine or below the origin."""
    below: tuple[str, ...]
    """Names and wildcards for the levels below `folder`; the last one is for files."""
    is_dataset: bool = False
    """True for a folder or a dataset of the hub, whose own contents decide which files are read."""

    @property
    def is_glob(self) -> bool:
        """True if it has a wildcard."""
        return not self.is_web and has_wildcard("/".join(self.below))

    @property
    def is_web(self) -> bool:
        """True if it is reached by http or https."""
        return self.origin.startswith(("http://", "https://"))

    @property
    def path(self) -> str:
        """The path that it names, if it has no wildcard."""
        return posixpath.join(self.folder, *map(unescaped, self.below))

    def url_of(self, path: str) -> str:
        """Return the absolute path, or the URL, of something at `path` that matches."""
        if not self.origin:
            return path
        if self.origin == HUB:
            return self.origin + path
        written = self.text.split("://", 1)[1]
        start = self.text.removesuffix(written) + written.partition("/")[0]
        if self.is_glob:
            return start + path
        return self.text if self.is_web else unescaped(self.text)


def read_pattern(text: str, base: Path) -> Pattern:
    """Return the pattern that `text` is, of which a relative path starts at `base`; a folder whose
    name has no format is a dataset.

    Raises: ConfigError for a URL that cannot be, and one with a wildcard where none can be.
    """
    if not is_url(text):
        check_slashes(text)
        return _local_pattern(text, os.path.expanduser(text), base)  # noqa: PTH111
    if (of_hub := hub_url(text)) is not None:
        name, _, path = of_hub  # its revision is asked for by the URL
        names = path.split("/") if path else []
        found = Pattern(text=text, origin=HUB, folder=f"/{name}", below=(), is_dataset=not names)
        return _with_names(found, names) if names else found
    try:
        url = split_url(text)
    except ValueError as error:
        where = f"raw.files {redact(text)!r}"
        expected = "a URL as scheme://host/path"
        remedy = "correct the URL; in a user name or password write %2F for '/'"
        raise ConfigError(where=where, expected=expected, found=str(error), remedy=remedy) from None
    if url.origin == HUB or (url.scheme == "hf" and url.path.count("/") < 2):
        raise ConfigError(
            where=f"raw.files {text!r}",
            expected="a dataset of the hub as hf://datasets/org/name, or files in it",
            found="another form of name",
            remedy="write `datasets/`, and who owns it, as in hf://datasets/stanfordnlp/imdb",
        )
    if url.scheme in {"file", "local"}:
        path = re.sub("%(2a|3f|5b)", r"[%\1]", url.path, flags=re.IGNORECASE)  # no wildcards
        return _local_pattern(text, urllib.parse.unquote(path), base)
    names = url.path.split("/")[1:] or [""]
    found = Pattern(text=text, origin=url.origin, folder="/", below=tuple(names))
    _check_remote(found, url)
    return _with_names(found, names)


def _check_remote(pattern: Pattern, url: Url) -> None:
    """Raise ConfigError for what cannot be listed, and for credentials in a URL of an object store,
    whose library takes none."""
    # Azure's URLs may have a container before `@`.
    is_secret = ":" in url.userinfo or (url.userinfo and not url.scheme.startswith("a"))
    expected = found = remedy = ""
    if pattern.is_glob and "//" in url.path:
        expected, found = "one slash between names in a pattern", "'//'"
        remedy = "remove one, or name each file with an empty name in its key in full"
    elif url.scheme in OF_OBJECT_STORES and (is_secret or _SIGNED.search(url.path)):
        expected, found = "a URL without a user name, password or signature", "one in it"
        remedy = (
            "put credentials into the environment, where the library for its protocol looks for "
            "them"
        )
    elif "*" in url.host + url.path * pattern.is_web:
        expected, found = "a host or bucket without a wildcard", "'*'"
        if pattern.is_web:
            expected = "the URL of one file, as http has no folders to list"
        remedy = "name each URL in a list"
    if found:
        where = f"raw.files {redact(pattern.text)!r}"
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def _local_pattern(text: str, path: str, base: Path) -> Pattern:
    """Return the pattern without `.`, `..` and empty components.

    What comes before `..` is resolved first, because the folder above a link is not the one
    above what the link leads to.
    """
    names = [name for name in path.split("/") if name not in {"", "."}] or [""]
    fixed = _num_fixed(names)
    if ".." in names[fixed:]:
        where = f"raw.files {text!r}"
        expected = "a file's name at the end and '..' only before the first wildcard"
        remedy = "write the pattern without '..'"
        raise ConfigError(where=where, expected=expected, found="'..'", remedy=remedy)
    start = "/" if path.startswith("/") else os.fspath(base.absolute())
    above = [unescaped(name) for name in names[:fixed]]
    folder = os.path.normpath(os.path.join(start, *above))  # noqa: PTH118
    if ".." in above:
        last = fixed - above[::-1].index("..")
        head = os.path.realpath(os.path.join(start, *above[:last]))  # noqa: PTH118
        folder = os.path.join(head, *above[last:])  # noqa: PTH118
    found = Pattern(text=text, origin="", folder=folder, below=tuple(names[fixed:]))
    if found.is_glob or format_of_name(found.path) is not None or not Path(found.path).is_dir():
        return found
    return replace(found, folder=found.path.rstrip("/") or "/", below=(), is_dataset=True)


def _with_names(pattern: Pattern, names: list[str]) -> Pattern:
    """Return a pattern of names below its folder."""
    fixed = len(names) - 1 if pattern.is_web else _num_fixed(names)
    folder = "/".join([pattern.folder.rstrip("/"), *map(unescaped, names[:fixed])]) or "/"
    return replace(pattern, folder=folder, below=tuple(names[fixed:]))


def _num_fixed(names: list[str]) -> int:
    """Return how many leading components have no wildcard; the last one is never counted."""
    wild = (number for number, name in enumerate(names[:-1]) if has_wildcard(name))
    return next(wild, len(names) - 1)
