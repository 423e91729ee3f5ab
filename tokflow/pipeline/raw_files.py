"""The current raw files of a dataset: listed, grouped and identified, up to a limit of all."""

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from tokflow.documents import Limit, format_of
from tokflow.errors import (
    ConfigError,
    MissingOutputError,
    RawFileError,
    TokflowError,
    first_five,
    nearest,
)
from tokflow.pipeline.dataset import Dataset
from tokflow.raw import (
    GroupProposal,
    LeftOut,
    Listing,
    Progress,
    RawFile,
    RawPartition,
    RawSource,
    list_raw,
    partitions_of,
    read_raw_files,
)
from tokflow.shown import counted, redact
from tokflow.split.rule import SplitConfig, part_of_file
from tokflow.split.shuffle import ShuffleConfig, document_keys
from tokflow.store.config import relocated
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.shard import Origins
from tokflow.tokens.shard_files import is_large
from tokflow.tokens.stage import TOKENS


class RawFiles:
    """Raw files of a dataset, each identified once, when it is first needed.

    With `offline`, those that are elsewhere are taken as they were fetched last. With `rehash`
    those of this disk are hashed, whatever is remembered of them; with `reads_once` the files of a
    dataset of which nothing was built are hashed when their documents are read.
    """

    def __init__(
        self, dataset: Dataset, *, offline: bool, rehash: bool, reads_once: bool = False
    ) -> None:
        self._dataset = dataset
        self.offline, self.rehash, self.reads_once = offline, rehash, reads_once
        self._known: dict[str, RawFile] = {}

    def online(self) -> "RawFiles":
        """Return the raw files of a build after a plan: those listed, and what is known of those
        on this disk or of one version."""
        files = RawFiles(self._dataset, offline=False, rehash=False, reads_once=self.reads_once)
        files.listing = self.listing
        is_kept = not self._dataset.store.is_cached
        for key, raw in self._known.items():
            source = self.listing.sources[key]
            if source.is_local or not (is_kept or source.may_differ):
                files._known[key] = raw
        return files

    @cached_property
    def listing(self) -> Listing:
        """Listing of everything that the dataset's patterns match.

        Raises: ConfigError, also for a file of no format that documents are read from, and for a
        part of the split that takes files of which there is none.
        """
        dataset, folder = self._dataset, self._dataset.folder
        with _naming(dataset):
            found = list_raw(dataset.raw, base=dataset.base, store=folder)
            for key, source in found.sources.items():
                format_of(Path(source.url if source.is_local else key), dataset.documents)
            by_file = dataset.split.takes_whole_files
            return taken_by_parts(found, dataset.split) if by_file else found

    @cached_property
    def listed(self) -> dict[str, tuple[RawSource, ...]]:
        """Raw files of each possible partition, by its key, sorted.

        Raises: as `listing`, and ConfigError where they cannot be grouped as `raw.group` says.
        """
        dataset, sources = self._dataset, self.listing.sources
        with _naming(dataset):
            return partitions_of(
                sources,
                dataset.raw.group,
                is_alone=partial(is_large, documents=dataset.documents),
                kind_of=lambda key: part_of_file(key, sources[key].source_split, dataset.split),
            )

    @property
    def known(self) -> tuple[RawFile, ...]:
        """Raw files identified so far."""
        return tuple(self._known.values())

    def partition(self, key: str) -> RawPartition:
        """Return the raw files of one partition. Raises: RawFileError."""
        if (sources := self.listed.get(key)) is None:
            raise unknown_key(key, self.listed, name=self._dataset.name)
        return RawPartition(key, tuple(self.file(source.key) for source in sources))

    def file(self, key: str) -> RawFile:
        """Return one raw file. Raises: RawFileError."""
        if key not in self._known:
            if (source := self.listing.sources.get(key)) is None:
                raise unknown_key(key, self.listed, name=self._dataset.name)
            self._read([source])
        return self._known[key]

    def read(self, keys: Iterable[str], progress: Progress | None = None) -> None:
        """Identify the raw files of many partitions together; errors are raised when a file is
        requested. With a remote store, identifying a remote raw file fetches nothing."""
        sources = [source for key in keys for source in self.listed[key]]
        is_far = self._dataset.store.is_cached
        new = [of for of in sources if (of.is_local or is_far) and of.key not in self._known]
        with suppress(TokflowError, OSError):
            self._read(new, progress)

    def proposed_group(self) -> GroupProposal | None:
        """Return how to group the files that are identified, where many small ones are a partition
        each and nothing was built of them."""
        dataset = self._dataset
        is_of_all = dataset.mixture or dataset.documents.limit.scope == "dataset"
        if is_of_all or dataset.raw.group or (dataset.folder / TOKENS.path).is_dir():
            return None
        return GroupProposal.of(len(self._known), sum(of.num_bytes for of in self.known))

    def _read(self, sources: Sequence[RawSource], progress: Progress | None = None) -> None:
        self._known |= read_raw_files(
            sources,
            store=self._dataset.folder,
            of=self._dataset.store,
            progress=progress,
            offline=self.offline,
            rehash=self.rehash,
            as_read=self._dataset.documents.limit.ends_early,
            reads_once=self.reads_once and self._is_first_build,
        )

    @property
    def _is_first_build(self) -> bool:
        """True if nothing was built here, and the tokens are made of all that is in the raw files,
        which nothing reads before."""
        dataset = self._dataset
        return (
            not dataset.store.is_cached
            and dataset.tokenizer.kind != "trained"
            and not dataset.documents.limit.ends_early
            and not any((dataset.folder / of.path).is_dir() for of in (TOKENIZER, TOKENS))
        )


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

    def of(self, keys: Sequence[str]) -> list[str]:
        """Return the share of the keys: every 64th, from the third."""
        return list(keys[self.number - 1 :: self.of_shares])

    def __str__(self) -> str:
        return f"{self.number}/{self.of_shares}"


def unknown_key(key: str, known: Collection[str], *, name: str) -> RawFileError:
    """Return the error for an unknown partition key."""
    return RawFileError(
        where=f"{name}: {key}",
        expected="the key of a partition",
        found=f"none of that name among {len(known):,} such as {next(iter(known), None)!r}",
        remedy="put the file back, or name one that `tokflow plan` lists; the job "
        f"{name}_scan removes partitions without a file",
    )


@contextmanager
def _naming(dataset: Dataset) -> Iterator[None]:
    """Add the dataset's name to errors about its fields, since a YAML can have several."""
    try:
        yield
    except ConfigError as error:
        raise relocated(error, f"dataset {dataset.name!r}: {error.where}") from error.__cause__


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


NAME_OR_RUN = (
    "name one of them; run without --partition to take the files that follow, until "
    "documents.limit is reached"
)
"""Remedy where a partition is named that is not known yet."""


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
            name = self._dataset.name
            raise RawFileError(
                where=f"{name}: {key}",
                expected="a file that documents.limit, of scope dataset, takes now",
                found="none"
                if key not in self._order
                else "one that comes after others whose "
                "tokens are not there yet, or that reach the limit",
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
