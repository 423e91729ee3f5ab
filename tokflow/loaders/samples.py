"""Samples, which a training goes through: their contract, batches of them, and files ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from math import prod
from numbers import Integral
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError, TokflowError
from tokflow.store.store import StoredOutput

T = TypeVar("T")

Batch: TypeAlias = dict[str, npt.NDArray[Any]]
"""Fields of some rows. With T inputs a row: input_ids and labels, int64 (num_rows, T); segment_ids
and position_ids, int32 (num_rows, T); loss_mask, bool (num_rows, T); index, int64 (num_rows,): the
number of each row in its source."""

SMALL_BYTES = 2**16
"""Arrays that are smaller are allocated as usual."""

IDLE_BYTES, MAX_SIZES = 2**26, 8
"""Idle memory of a size, and sizes, that are kept: of arrays that are larger none is."""

_idle: dict[int, deque[npt.NDArray[np.uint8]]] = {}


class _Lent:
    """Memory lent to an array; no view of the array outlives it."""

    __slots__ = ("_idle", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], idle: deque[npt.NDArray[np.uint8]]) -> None:
        self._memory, self._idle = memory, idle

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._idle.append(self._memory)  # of a deque, for any thread may come by here at any time


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array of any content, as `np.empty` does, in memory that was used before.

    The system gives new memory a page at a time, when it is written to: batches of 64 x 2,048
    tokens in new memory take 1.1 ms, in memory that was used before 0.1 ms.
    """
    num_bytes = prod(shape) * np.dtype(dtype).itemsize
    if num_bytes < SMALL_BYTES:
        return np.empty(shape, dtype)
    if num_bytes not in _idle and len(_idle) >= MAX_SIZES:
        _idle.clear()
    idle = _idle.setdefault(num_bytes, deque(maxlen=IDLE_BYTES // num_bytes))
    try:
        memory = idle.pop()
    except IndexError:
        memory = np.empty(num_bytes, np.uint8)
    return np.asarray(_Lent(memory, idle)).view(dtype).reshape(shape)


def copied(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return values as contiguous numbers of a type, in memory that was used before."""
    found = empty(values.shape, dtype)
    np.copyto(found, values, casting="same_kind")
    return found


@dataclass(frozen=True, slots=True)
class Gathered(Sequence[Batch]):
    """The rows of a batch, each a view of it: what torch's DataLoader gets from `__getitems__`.

    Its default collate copies them one after another; `collate` of tokflow takes the batch as it
    is."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch["index"])

    def __getitem__(self, number: Any) -> Any:
        chosen = {name: values[number] for name, values in self.batch.items()}
        return Gathered(chosen) if isinstance(number, slice) else chosen


def tensors_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as tensors that share their memory, and numbers as they are."""
    import torch

    return {
        name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        for name, values in batch.items()
    }


def collate(rows: Sequence[Batch] | Batch, *, cu_seqlens: bool = False) -> dict[str, Any]:
    """Return the batch that `__getitems__` gathered as tensors: the `collate_fn` of a DataLoader.

    Or a batch of arrays, such as `rows[:8]`. No token is copied, but where something between gave
    rows one by one. `cu_seqlens`: with the fields of `with_cu_seqlens`.
    """
    if isinstance(rows, Gathered):
        batch = rows.batch
    elif isinstance(rows, Mapping):
        batch = rows
    else:
        batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return tensors_of(with_cu_seqlens(batch) if cu_seqlens else batch)


def with_cu_seqlens(batch: Batch) -> dict[str, Any]:
    """Return a batch with the segments of its rows end to end, as flash-attn's
    `flash_attn_varlen_func` and torch's `varlen_attn` take them.

    cu_seqlens, int32 (num_segments + 1,): where each segment begins in `input_ids.reshape(-1)`, and
    the end of the last; max_seqlen, an int: the longest of them. The padding of a row is a segment
    of its own, and a segment ends with its row.

    Of the segment_ids [1 1 2] and [1 0 0]: [0 2 3 4 6], and 2.

    Raises: ConfigError where the batch has no segment_ids.
    """
    if "segment_ids" not in batch:
        raise ConfigError(
            where="cu_seqlens",
            expected="rows with segment_ids, which tell where segments begin",
            found=", ".join(batch),
            remedy="name segment_ids among `fields`, or open an export that keeps them",
        )
    ids = batch["segment_ids"]
    is_start = np.ones(ids.shape, dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=is_start[:, 1:])
    edges = np.append(np.flatnonzero(is_start), ids.size).astype(np.int32)
    longest = int(np.diff(edges).max(initial=0))
    return {**batch, "cu_seqlens": edges, "max_seqlen": longest}


Numbers: TypeAlias = npt.NDArray[np.int64]

StoredFile: TypeAlias = tuple[StoredOutput, str]
"""An output, and the name of a file of it."""

FilesOf: TypeAlias = Callable[[Numbers], Iterable[StoredFile]]
"""Returns the files that some rows, or samples, are read from, and that were not read yet."""

ENDLESS = 2**63 - 1
"""The length of samples that have no end."""

STEP = 1_024
"""Samples whose files are looked for at one go, 2 ms of a shuffle."""

STEPS_AHEAD = 64
"""65,536 samples: of 2,048 tokens 256 MB, which a network brings in the time in which no training
has gone through them."""

FILES_AT_ONCE = 32


@runtime_checkable
class Samples(Protocol):
    """The samples of a training, in their order, each found alone from its number."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that decide which row each sample is, as JSON: kind, version, seed, and
        `sources`: of each its name, fingerprint and output, and how it is cut."""

    def __len__(self) -> int:
        """Return how many there are; ENDLESS where there is no end."""

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers in the order asked for."""

    def remote_files(self) -> FilesOf | None:
        """Return what tells the files of samples at a URL; None where all are on this disk."""


@dataclass(frozen=True, slots=True)
class SamplesDataset:
    """Samples as a map-style Dataset of torch: the one of a number, or a batch of some."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Batch:
        batch: Batch = self.__getitems__([number])[0]
        return batch

    def __getitems__(self, numbers: Sequence[int]) -> Gathered:
        """Return the samples of these numbers, gathered in one pass."""
        return Gathered(self.samples.gather(picked(numbers, len(self))))


class FilesAhead:
    """The files of the next 65,536 samples on their way to this disk, for a reader that goes
    through them in order; nothing where all are on this disk. No sample is made.

    A file that cannot be fetched is passed over: its reader meets the error.
    """

    def __init__(self, samples: Samples) -> None:
        self._files_of, self._num_samples = samples.remote_files(), len(samples)
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._step: int | None = None

    def move_to(self, sample: int) -> None:
        """Fetch the files of the samples from this one on; does something every 1,024 samples."""
        if self._files_of is None or self._step == sample // STEP:
            return
        if self._step is None:
            arguments = self._queue, self._files_of, self._num_samples
            Thread(target=_fetch, args=arguments, name="tokflow-files", daemon=True).start()
        self._step = sample // STEP
        self._queue.put(self._step)

    def __del__(self) -> None:
        self._queue.put(None)  # takes no lock that a forked process may have copied


def fetch(files: Iterable[StoredFile]) -> None:
    """Bring files to this disk, those of one output several at once. Raises: as `StoredOutput`."""
    for _, of_output in groupby(files, key=lambda file: file[0].folder):
        outputs, names = zip(*of_output, strict=True)
        outputs[0].fetch(names)


def _fetch(queue: SimpleQueue[int | None], files_of: FilesOf, num_samples: int) -> None:
    """Fetch the files of the steps from the one that was named last, until None is."""
    files: Iterator[StoredFile] = iter(())
    step, behind = queue.get(), 0
    while step is not None:
        if not step <= behind <= step + STEPS_AHEAD:
            files, behind = iter(()), step
        if some := list(islice(files, FILES_AT_ONCE)):
            with suppress(TokflowError, OSError):
                fetch(some)
        elif behind < min(step + STEPS_AHEAD, -(-num_samples // STEP)):
            numbers = np.arange(behind * STEP, min((behind + 1) * STEP, num_samples))
            files, behind = iter(files_of(numbers)), behind + 1
        else:
            step = queue.get()
        while step is not None and not queue.empty():
            step = queue.get()


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
        found = f"{int(numbers.min()):,} to {int(numbers.max()):,}"
        raise IndexError(f"expected samples from 0 to {length - 1:,}, found {found}")


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
    num = "without end" if len(samples) == ENDLESS else f"{len(samples):,} samples"
    return f"<{kind} of {names}: {num}>"


def grouped(values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield each value that there is, from the least on, and the indices that have it."""
    order = np.argsort(values, kind="stable")
    found, firsts = np.unique(values[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=False)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer of any library as an int; a bool is none, nor is one below the least.

    Raises: ConfigError.
    """
    is_it = isinstance(value, Integral) and not isinstance(value, bool)
    is_it = is_it and (least is None or int(value) >= least)
    expected = "an integer" if least is None else f"an integer of at least {least}"
    remedy = "give a whole number such as 1; 1.0, '1' and True are none"
    _check_type(name, value, expected, remedy, is_it=is_it)
    return int(value)


positive = partial(integer, least=1)
"""Returns an integer of at least 1. Raises: ConfigError."""


def boolean(name: str, value: Any) -> bool:
    """Return a bool, also one of numpy; a text such as `no` is none. Raises: ConfigError."""
    is_bool = isinstance(value, bool | np.bool_)
    _check_type(name, value, "True or False", "give one of them", is_it=is_bool)
    return bool(value)


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """Return None as it is, and all else as the check does. Raises: ConfigError."""
    return None if value is None else check(name, value)


def _check_type(name: str, value: Any, expected: str, remedy: str, *, is_it: bool) -> None:
    if not is_it:
        found = f"{value!r}, of {type(value).__name__}"
        raise ConfigError(where=name, expected=expected, found=found, remedy=remedy)
