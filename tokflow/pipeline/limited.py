"""Raw files that a limit of the whole dataset takes, one after another until it is reached."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tokflow.documents import Limit
from tokflow.errors import MissingOutputError, RawFileError
from tokflow.pipeline.dataset import Dataset
from tokflow.raw import RawSource
from tokflow.shown import counted
from tokflow.split.rule import part_of_file
from tokflow.split.shuffle import ShuffleConfig, document_keys
from tokflow.tokens.origins import Origins

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
