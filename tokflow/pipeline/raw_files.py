"""The current raw files of a dataset: listed, grouped and identified, up to a limit of all, and
without those that cannot be read, which `raw.on_bad_file: skip` leaves out.

    <store>/<dataset>/bad_files.json  # what plans know of them, until file or config changes
"""

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.documents import DocumentsConfig, Limit, deciding_fields, format_of
from tokflow.documents.formats import check_columns
from tokflow.errors import (
    ConfigError,
    MissingOutputError,
    RawFileError,
    TokflowError,
    first_five,
    nearest,
)
from tokflow.formatting import counted, redact
from tokflow.pipeline.dataset import Dataset
from tokflow.raw import BadFile, LeftOut, Listing, RawFile, RawSource, list_raw, partitions_of
from tokflow.split.permutation import ShuffleConfig, document_keys
from tokflow.split.rule import SplitConfig, part_of_file
from tokflow.store.atomic import new_file
from tokflow.store.config import relocating
from tokflow.store.manifest import joined_digest
from tokflow.tokens.shard import TOKENS_VERSION, Origins
from tokflow.tokens.shard_files import is_large

T = TypeVar("T")


def list_files(dataset: Dataset) -> Listing:
    """Return everything that the dataset's patterns match.

    Raises: ConfigError, also for a file of no format that documents are read from, and for a part
    of the split that takes files of which there is none.
    """
    with relocating(f"dataset {dataset.name!r}"):
        found = list_raw(dataset.raw, base=dataset.base, store=dataset.folder)
        for key, source in found.sources.items():
            format_of(Path(source.url if source.is_local else key), dataset.documents)
        by_file = dataset.split.takes_whole_files
        return taken_by_parts(found, dataset.split) if by_file else found


def grouped_files(dataset: Dataset, listing: Listing) -> dict[str, tuple[RawSource, ...]]:
    """Return the raw files of each possible partition, by its key, sorted.

    Raises: ConfigError where they cannot be grouped as `raw.group` says.
    """
    sources = listing.sources
    with relocating(f"dataset {dataset.name!r}"):
        return partitions_of(
            sources,
            dataset.raw.group,
            is_alone=partial(is_large, documents=dataset.documents),
            kind_of=lambda key: part_of_file(key, sources[key].source_split, dataset.split),
        )


FILES_LOOKED_AT = 3
"""Number of files whose columns are checked early, so that one odd file stops no build."""


def check_first_columns(
    partitions: Mapping[str, Sequence[RawSource]], documents: Callable[[str], DocumentsConfig]
) -> None:
    """Check that one of the first raw files of this disk has the columns that are read.

    Raises: ConfigError of the first, where none has them.
    """
    errors: list[ConfigError] = []
    files = ((of, key) for key, files in partitions.items() for of in files if of.is_local)
    for source, key in islice(files, FILES_LOOKED_AT):
        try:
            check_columns(Path(source.url), documents(key))
        except ConfigError as error:
            errors.append(error)
        else:
            return
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True)
class FileShare:
    """One of several shares of a dataset's partitions, such as the third of 64."""

    number: int
    """From 1."""
    of_shares: int

    @classmethod
    def read(cls, text: str) -> "FileShare":
        """Return the share that a text such as `3/64` names.

        Raises: ConfigError.
        """
        number, _, of_shares = text.partition("/")
        if number.isdecimal() and of_shares.isdecimal() and 0 < int(number) <= int(of_shares):
            return cls(int(number), int(of_shares))
        raise ConfigError(
            where="--shard",
            expected="the number of a share, from 1, and how many there are, such as 3/64",
            found=repr(text),
            remedy="correct it; where jobs are counted from 0, add 1",
        )

    def of(self, keys: Sequence[str], dataset: Dataset) -> list[str]:
        """Return the share of a dataset's keys: every 64th, from the third. Raises: ConfigError
        where these cannot be built without the others."""
        if dataset.mixture is not None:
            expected = "a dataset with raw files of its own"
            found = f"{dataset.name}, a mixture, which is made of all files of its sources"
            names = ", ".join(of.name for of in dataset.sources)
            remedy = f"run the shards of {names}, then this one whole"
        elif dataset.documents.limit.scope == "dataset":
            expected = "a dataset whose files are built each by itself"
            found = f"share {self} of one in which documents.limit.scope is dataset, so that each "
            found += "file may take what those before it have left"
            remedy = "run it without --shard"
        else:
            return list(keys[self.number - 1 :: self.of_shares])
        raise ConfigError(where="--shard", expected=expected, found=found, remedy=remedy)

    def __str__(self) -> str:
        return f"{self.number}/{self.of_shares}"


def unknown_key(key: str, known: Collection[str], listing: Listing, *, name: str) -> RawFileError:
    """Return the error for an unknown partition key, or that of a bad file which is left out."""
    expected = "the key of a partition"
    found = f"none of that name among {len(known):,} such as {next(iter(known), None)!r}"
    remedy = "put the file back, or name one that `tokflow plan` lists; the job "
    remedy += f"{name}_scan removes partitions without a file"
    if (bad := listing.bad.get(key)) is not None:
        expected, found = "a file that can be read", f"a bad one, left out: {bad.reason}"
        remedy = "it is read again as soon as it has changed"
    return RawFileError(where=f"{name}: {key}", expected=expected, found=found, remedy=remedy)


def taken_by_parts(listing: Listing, config: SplitConfig) -> Listing:
    """Return a listing without files of source splits that no part takes.

    Raises: ConfigError for a part that takes files of which there is none.
    """
    sources = listing.sources
    for name, part in config.parts.items():
        if part.files is not None and not fnmatch.filter(sources, part.files):
            raise ConfigError(
                where=f"split.parts.{name}.files",
                expected="a pattern that matches the key of a raw file",
                found=f"{part.files!r}, and the raw files are {first_five(list(sources))}",
                remedy=nearest(part.files, list(sources)) or "correct the pattern",
            )
    if config.form != "source_split":
        return listing
    wanted = {str(part.source_split): name for name, part in config.parts.items()}
    names = [*dict.fromkeys(of.source_split for of in sources.values() if of.source_split)]
    expected = "raw files of a source that has splits, as hf://datasets/org/name"
    remedy = "take them by {files: ...}, a pattern over their keys"
    if names:
        expected = f"a split that is read: {', '.join(names)}"
        remedy = "name one of them, or read it by raw.split"
    for split, name in wanted.items():
        if split not in names:
            raise ConfigError(
                where=f"split.parts.{name}.source_split",
                expected=expected,
                found=repr(split),
                remedy=nearest(split, names) or remedy,
            )
    taken = {key: of for key, of in sources.items() if of.source_split in wanted}
    left_out = [*listing.left_out]
    for of in (sources[key] for key in sources.keys() - taken.keys()):
        split = f"the split {of.source_split}" if of.source_split else "no split"
        found = f"of {split}, which no part takes"
        left_out.append(LeftOut(path=redact(of.url), found=found))
    return Listing(sources=taken, left_out=tuple(sorted(left_out, key=lambda of: of.path)))


class LimitedFiles:
    """The partitions that `documents.limit` with `scope: dataset` takes, as far as they are known.

    Each file gets the remaining budget, known once the tokens of those before it are there: so
    they end with the first whose tokens are not. They are what was found when they were first
    looked for, until `advance` is called. No file is fetched, or read, that they do not have.
    """

    def __init__(
        self,
        dataset: Dataset,
        listed: Mapping[str, tuple[RawSource, ...]],
        counts_of: Callable[[str], Mapping[str, int] | None],
        look_ahead: Callable[[list[str]], None],
    ) -> None:
        """`listed`: the partitions that there may be; `counts_of`: counts of the tokens of one, or
        None where they are not there; `look_ahead`: looks at raw files that were built before."""
        self._dataset, self._listed = dataset, listed
        self._counts_of, self._look_ahead = counts_of, look_ahead
        self._order = in_taking_order(listed, dataset.shuffle)
        self._left: dict[str, Limit] = {}
        """What each of them may take, in the order in which they are taken."""
        self._is_open = True
        self._partitions: dict[str, tuple[RawSource, ...]] = {}

    @property
    def partitions(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key, sorted; made anew where files were taken."""
        if len(self._partitions) < len(self._known):
            self._partitions = {key: self._listed[key] for key in sorted(self._known)}
        return self._partitions

    @property
    def is_open(self) -> bool:
        """True if files may follow that are not known yet."""
        return bool(self._known) and self._is_open

    @property
    def _known(self) -> dict[str, Limit]:
        if not self._left:
            self._take()
        return self._left

    def of(self, key: str) -> Limit:
        """Return what one file may take. Raises: RawFileError where it is not among them."""
        if key not in self._known:
            name, found = self._dataset.name, "none"
            if key in self._order:
                found = "one that comes after others whose tokens are not there yet, or that reach "
                found += "the limit"
            raise RawFileError(
                where=f"{name}: {key}",
                expected="a file that documents.limit, of scope dataset, takes now",
                found=found,
                remedy=f"run `tokflow run` or the job {name}_build, which take the files in order "
                "until the limit is reached",
            )
        return self._known[key]

    def check_closed(self) -> None:
        """Raise MissingOutputError where files may follow that are not known yet."""
        if self.is_open:
            raise MissingOutputError(
                where=self._dataset.name,
                expected="the tokens of all files that documents.limit takes",
                found=f"those of {counted(len(self._left) - 1, 'file')}, which do not reach it",
                remedy="run `tokflow run`",
            )

    def advance(self) -> list[str]:
        """Take the files that follow those whose tokens are there now; return their keys."""
        num_before = len(self._known)
        self._take()
        return self._order[num_before : len(self._left)]

    def parts_behind(self) -> list[str]:
        """Return the parts that take whole files, none of which these are."""
        split = self._dataset.split
        if self.is_open or not split.takes_whole_files:
            return []
        files = (files[0] for files in self.partitions.values())
        taken = {part_of_file(of.key, of.source_split, split) for of in files}
        return [name for number, name in enumerate(split.parts) if number not in taken]

    def _take(self) -> None:
        left: Limit | None = self._dataset.documents.limit
        while self._is_open and left is not None:
            if num := len(self._left):
                if num & (num - 1) == 0:  # as many as are taken: a third of the time of one by one
                    self._look_ahead(self._order[num - 1 : 2 * num])
                last = next(reversed(self._left))
                if (counts := self._counts_of(last)) is None:
                    self._is_open = num < len(self._order)
                    return
                left = self._left[last].after(counts)
            self._is_open = left is not None and num < len(self._order)
            if self._is_open and left is not None:
                self._left[self._order[num]] = left


def in_taking_order(keys: Iterable[str], shuffle: ShuffleConfig) -> list[str]:
    """Return partition keys in the order in which a limit of the dataset takes them: sorted, or
    where documents are shuffled in the order of the seed, in which a new file moves no other."""
    keys = sorted(keys)
    if shuffle.documents is None:
        return keys
    first_rows = np.arange(len(keys))
    origins = Origins(keys, first_rows.tolist())
    numbers = document_keys(origins, first_rows, shuffle.seed, purpose="files")
    return [keys[at] for at in np.argsort(numbers, kind="stable").tolist()]


BAD_FILES_NAME = "bad_files.json"

Known: TypeAlias = Mapping[str, RawFile]
"""Raw files as they are now, by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBadFile:
    """A file as it was when it could not be read."""

    digest: str
    """Digest of its content and of all that decides how it is read."""
    reason: str


def file_of(error: Exception, sources: Iterable[RawSource], known: Known) -> str | None:
    """Return the key of the raw file that an error names; None where it names none of them."""
    named = str(getattr(error, "path", "") or getattr(error, "where", ""))
    found = {redact(of.url): of.key for of in sources}
    found |= {str(known[key].path): key for key in found.values() if key in known}
    ends = [len(named), *(at for at, letter in enumerate(named) if letter in ",:")]
    return next((found[named[:end]] for end in sorted(ends)[::-1] if named[:end] in found), None)


def without(listing: Listing, bad: Mapping[str, BadFile]) -> Listing:
    """Return a listing in which some of the files are left out."""
    added = [
        LeftOut(path=redact(of.source.url), found=f"a bad file: {of.reason}") for of in bad.values()
    ]
    return replace(
        listing,
        sources={key: of for key, of in listing.sources.items() if key not in bad},
        left_out=tuple(sorted([*listing.left_out, *added], key=lambda of: of.path)),
        bad={**listing.bad, **bad},
    )


def without_known(
    listing: Listing, dataset: Dataset, identify: Callable[[list[RawSource]], Known]
) -> Listing:
    """Return a listing without the files that a build could not read, and that are as they were;
    the whole of it where these are all, or more than the config allows."""
    known = read_kept(dataset.folder / BAD_FILES_NAME, KnownBadFile)
    sources = [listing.sources[key] for key in known if key in listing.sources]
    if not sources:
        return listing
    with suppress(TokflowError, OSError):
        files = identify(sources)
        bad = {
            of.key: BadFile(source=of, reason=known[of.key].reason)
            for of in sources
            if of.key in files and _digest(files[of.key], dataset) == known[of.key].digest
        }
        if len(bad) <= dataset.raw.max_bad_files and bad.keys() < listing.sources.keys():
            return without(listing, bad)
    return listing


def note_bad_files(dataset: Dataset, bad: Mapping[str, BadFile], known: Known) -> None:
    """Keep the bad files of a build that has just ended; nothing is raised. `known`: files that it
    has looked at."""
    before = read_kept(path := dataset.folder / BAD_FILES_NAME, KnownBadFile)
    now: dict[str, KnownBadFile] = {}
    for key, of in sorted(bad.items()):
        if key in before and key not in known:
            now[key] = before[key]
        elif key in known:
            with suppress(TokflowError, OSError):
                now[key] = KnownBadFile(digest=_digest(known[key], dataset), reason=of.reason)
    if now != before:
        keep(path, now)


def read_kept(path: Path, kind: type[T]) -> dict[str, T]:
    """Return what was kept for the next build by keys; nothing where that cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
    return {}


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Keep something for the next build, or remove the file where there is nothing."""
    with suppress(OSError, UnicodeEncodeError):  # a name may be no UTF-8
        if not found:
            path.unlink(missing_ok=True)
            return
        with new_file(path) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


def _digest(raw: RawFile, dataset: Dataset) -> str:
    documents = dataset.documents
    read_by = [documents.model_dump(), deciding_fields(documents, {}), dataset.tokenizer]
    decides = [raw.sha256, *map(str, read_by), str(TOKENS_VERSION), pa.__version__]
    return joined_digest(decides)
