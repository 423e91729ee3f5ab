"""The contracts of loaders: a source of rows, an order of them, and the samples of a training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from tokflow.store.store import Store

Batch: TypeAlias = dict[str, npt.NDArray[Any]]
"""Fields of some rows. With T inputs a row: input_ids and labels, int64 (num_rows, T); segment_ids
and position_ids, int32 (num_rows, T); loss_mask, bool (num_rows, T); index, int64 (num_rows,): the
number of each row in its source."""

Numbers: TypeAlias = npt.NDArray[np.int64]

FilesOf: TypeAlias = Callable[[Numbers], Iterable[tuple[Store, Path]]]
"""Returns the files, each with its store, that some rows, or samples, are read from, and that were
not read yet."""

ENDLESS = 2**63 - 1
"""The length of samples that have no end."""


class RowSource(Protocol):
    """The rows of one part of an export or a token store, in the order of their files."""

    @property
    def name(self) -> str:
        """The export and the part, for people: `demo/exports/bin/train`."""

    @property
    def fingerprint(self) -> str:
        """sha256 of what decides its rows: another content, part or length is another one."""

    @property
    def output(self) -> str:
        """What its output is called in the store, a folder: the beginning of its fingerprint."""

    @property
    def cut(self) -> Mapping[str, Any]:
        """How its rows are cut from the tokens, as JSON: the arguments of `open_rows` that decide
        them. The fingerprint has them too; these are for people."""

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the tokenizer that made its tokens; empty where it is not known."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of what `gather` returns."""

    @property
    def sequence_length(self) -> int:
        """Inputs of a row."""

    @property
    def num_tokens(self) -> int:
        """Tokens in all rows, padding left out."""

    def __len__(self) -> int:
        """Return how many rows it has."""

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows of these numbers, from 0 to its length, in the order asked for.

        In arrays of their own, which the caller may change; several threads may ask at once.
        """

    def files_elsewhere(self) -> FilesOf | None:
        """Return what tells the files of rows at a URL; None where all are on this disk."""


@runtime_checkable
class StreamSource(RowSource, Protocol):
    """A source whose rows are cut from a stream of N tokens, cut at any other place too."""

    @property
    def num_windows(self) -> int:
        """Positions that T inputs and a label for each may begin at: N - T, or 0."""

    def windows(self, positions: Numbers) -> Batch:
        """Return T inputs from each position on, from 0 to `num_windows`; `index` is the position.
        All have labels, but for those that the edge of a document takes away."""


class Order(Protocol):
    """An order of the rows of a source: the row at each place, computed alone."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides it, as JSON: kind, version, seed, epoch and so on."""

    def __len__(self) -> int:
        """Return how many places it has."""

    def at(self, places: Numbers) -> Numbers:
        """Return the number of the row at each place."""


@runtime_checkable
class Samples(Protocol):
    """The samples of a training, in their order, each found alone from its number."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides which row each sample is, as JSON: kind, version, seed, and `sources`: of
        each its name, fingerprint and output, and how it is cut."""

    def __len__(self) -> int:
        """Return how many there are; ENDLESS where there is no end."""

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers in the order asked for."""

    def files_elsewhere(self) -> FilesOf | None:
        """Return what tells the files of samples at a URL; None where all are on this disk."""


@dataclass(frozen=True, slots=True)
class Gathered(Sequence[Batch]):
    """The rows of a batch, each a view of it: what torch's DataLoader gets from `__getitems__`.

    Its default collate copies them one after another; `collate` of tokflow takes the batch as it
    is."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch["index"])

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return Gathered({name: values[number] for name, values in self.batch.items()})
        return {name: values[number] for name, values in self.batch.items()}

    def __iter__(self) -> Iterator[Batch]:
        return (self[number] for number in range(len(self)))


def picked(chosen: Any, length: int) -> Numbers:
    """Return the numbers that a slice or a list of numbers picks of `length`; negative ones count
    from the end. Raises: IndexError."""
    if isinstance(chosen, slice):
        return np.arange(*chosen.indices(length), dtype=np.int64)
    numbers = np.asarray(chosen)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        found = f"one of {numbers.dtype}, of shape {numbers.shape}"
        raise IndexError(f"expected a number, a slice or a list of numbers, found {found}")
    numbers = numbers.astype(np.int64)
    numbers = np.where(numbers < 0, numbers + length, numbers)
    is_outside = (numbers < 0) | (numbers >= length)
    if is_outside.any():
        raise IndexError(
            f"expected numbers from 0 to {length - 1:,}, found {int(numbers[is_outside][0]):,}"
        )
    return numbers


def check_samples(numbers: Numbers, length: int) -> None:
    """Make sure that there are samples of these numbers, where there are `length` in all.

    Raises: IndexError.
    """
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < length:
        raise IndexError(f"expected samples from 0 to {length - 1:,}, found others")


def sources_of(*sources: RowSource) -> list[dict[str, Any]]:
    """Return what decides the rows of sources, as an identity has it."""
    return [
        {"name": of.name, "fingerprint": of.fingerprint, "output": of.output, **of.cut}
        for of in sources
    ]


def no_dataset(samples: object, number: object) -> NoReturn:
    """Raise TypeError that explains how to use a DataLoader: it asked for a single sample.

    Raises: TypeError.
    """
    raise TypeError(
        f"expected a Dataset, found a {type(samples).__name__}, which gives no single sample; "
        "make `loader = Loader(...)` of it and iterate over that, or give a DataLoader "
        "`loader.samples_dataset` and `batch_sampler=loader.sampler()`"
    )


def samples_shown(samples: Samples) -> str:
    """Return the `repr` of samples: their kind, their sources and how many they are."""
    kind = type(samples).__name__
    names = ", ".join(str(source["name"]) for source in samples.identity["sources"])
    return f"<{kind} of {names}: {num_shown(len(samples))}>"


def num_shown(num_samples: int) -> str:
    """Return how many samples there are, as people read it."""
    return "without end" if num_samples == ENDLESS else f"{num_samples:,} samples"


def grouped(values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield each value that there is, from the least on, and the indices that have it."""
    order = np.argsort(values, kind="stable")
    found, firsts = np.unique(values[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=False)
