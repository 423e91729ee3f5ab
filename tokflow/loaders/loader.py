"""Batches of a training: the same samples in the same order on any number of ranks, resumed at any
batch."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, get_args

from tokflow.errors import ConfigError
from tokflow.loaders.position import Position, Steps, position_of, share_of
from tokflow.loaders.rows import Rows
from tokflow.loaders.samples import (
    ENDLESS,
    FilesAhead,
    Numbers,
    Samples,
    SamplesDataset,
    boolean,
    integer,
    no_dataset,
    tensors_of,
    with_cu_seqlens,
)
from tokflow.pools.machine import renew_in_forks

if TYPE_CHECKING:
    from tokflow.audit.step_trace import SampleTrace

ArrayKind = Literal["numpy", "torch"]


class Loader:
    """The batches of one rank, one after another, made by threads ahead of time.

    Of 2 ranks and a batch_size of 4:

        samples  0 1 2 3  4 5 6 7  8 ...
        rank 0   0 1      4 5      8
        rank 1       2 3      6 7

    Ranks and batch_size decide how samples are dealt out, never their order, and the state has
    neither: both may change wherever it is loaded. It goes through the samples once. Where they
    end, the last batch has those that are left, of which a rank may get none; with `drop_last` one
    that is not full is left out.
    """

    _ahead: Position
    _waiting: deque[tuple[Callable[[], dict[str, Any]], Position]]
    _pool: ThreadPoolExecutor | None
    _files: FilesAhead

    def __init__(
        self,
        rows: Rows | Samples,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        blocks: int | None = None,
        num_epochs: int | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        arrays: ArrayKind = "numpy",
        cu_seqlens: bool = False,
    ) -> None:
        """Load `rows` epoch after epoch, without end or `num_epochs` of them: each shuffled by the
        seed (by `blocks`, as in `Rows.shuffled`), or in the order of `rows` where there is none.
        Samples, such as a mixture or `rows.random_windows(seed)`, have an order of their own.

        `batch_size` counts the samples of all ranks together; `prefetch` batches are made ahead,
        each by a thread of its own, none with 0. `cu_seqlens`: batches have cu_seqlens and
        max_seqlen, for attention within segments; see `with_cu_seqlens`.
        """
        self.batch_size = integer("batch_size", batch_size)
        self.rank, self.world_size = integer("rank", rank), integer("world_size", world_size)
        self.prefetch, self.arrays = integer("prefetch", prefetch, 0), arrays
        self.drop_last = boolean("drop_last", drop_last)
        self.cu_seqlens = boolean("cu_seqlens", cu_seqlens)
        _check_batches(self.batch_size, self.rank, self.world_size, arrays)
        if isinstance(rows, Rows):
            self.samples: Samples = rows.epochs(seed, blocks=blocks, num_epochs=num_epochs)
        else:
            _check_samples(rows, seed=seed, blocks=blocks, num_epochs=num_epochs)
            self.samples = rows
        self.position = Position()
        """The place behind the last batch that was handed out."""
        self._begin_anew()

    def __repr__(self) -> str:
        return (
            f"<Loader of {self.samples!r}: batch_size {self.batch_size:,}, rank {self.rank} of "
            f"{self.world_size}, at sample {self.position.next_sample:,}>"
        )

    def __len__(self) -> int:
        """Return how many batches a rank has from the first sample to the end, whatever the place;
        skipped samples are in none. Raises: TypeError where there is no end."""
        length = len(self.samples)
        if length == ENDLESS:
            raise TypeError(
                "len: expected a loader of samples that end, found some without end; give "
                "`num_epochs=`, or `num_samples=` to `mix`; a DataLoader takes no loader, but "
                "`loader.samples_dataset` and `batch_sampler=loader.sampler()`"
            )
        skipped = self.position.skipped
        num_skipped = sum(len(range(some.start, min(some.stop, length))) for some in skipped)
        num_full, rest = divmod(length - num_skipped, self.batch_size)
        return num_full + bool(rest and not self.drop_last)

    def __bool__(self) -> bool:
        return True  # also without a length

    __getitem__ = no_dataset

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch; one that could not be read is tried again by the next call.

        Threads may share a loader: each batch is given to one of them.
        """
        with self._turn:
            self._files.move_to(self._ahead.next_sample)
            while len(self._waiting) <= self.prefetch:
                own, behind = self.batch_at(self._ahead)
                if behind == self._ahead:
                    break
                batch_of: Callable[[], dict[str, Any]] = partial(self._gather, own)
                if self.prefetch:
                    if self._pool is None:
                        name = "tokflow-loader"
                        self._pool = ThreadPoolExecutor(self.prefetch, thread_name_prefix=name)
                    batch_of = self._pool.submit(batch_of).result
                self._waiting.append((batch_of, behind))
                self._ahead = behind
            if not self._waiting:
                raise StopIteration
            batch_of, behind = self._waiting[0]
            try:
                batch = batch_of() if self.arrays == "numpy" else tensors_of(batch_of())
            except BaseException:
                self._move_to(self.position)
                raise
            self._waiting.popleft()
            self.position = behind
            return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last batch that was handed out, as JSON has it.

        The same on every rank: the number of the next sample, what decides the samples, and those
        that were skipped. Batches made ahead do not count.
        """
        return self.position.state(self.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved, on any rank of any number, with any batch size.

        Raises: ConfigError for a state of another source, seed or version.
        """
        self._move_to(position_of(state, self.samples))

    def skip(self, samples: range) -> None:
        """Jump over samples that were not handed out, such as those of a spike in the loss.

        Batches stay full. `samples` counts as the state does, which keeps it. Raises: ConfigError.
        """
        self._move_to(self.position.skip(samples, length=len(self.samples)))

    def documents_of(self, step: int) -> "list[SampleTrace]":
        """Return the samples of a step, the batch of all ranks of this number, counted from 0 since
        the training began: of each its rank, row, documents, raw places, kept columns and text.

        Steps that are done are told as they were, also where batches had another size; those behind
        as this loader will have them. Ranks are those of this loader's `world_size`. Raises:
        ConfigError for a step that there is not.
        """
        from tokflow.audit.step_trace import Training  # late: no training needs it

        steps = Steps(self.position, self.batch_size, len(self.samples))
        if self.drop_last and len(steps.samples(step)) < self.batch_size and step >= steps.num_done:
            steps = replace(steps, length=0)
        return Training(self.samples, steps).trace(step, world_size=self.world_size)

    @property
    def samples_dataset(self) -> SamplesDataset:
        """The samples by their numbers: what torch's DataLoader gathers batches from."""
        return SamplesDataset(self.samples)

    def sampler(self) -> "BatchSampler":
        """Return the numbers of this rank's samples, batch by batch.

        For torch's DataLoader and torchdata's StatefulDataLoader, where worker processes are
        wanted: `DataLoader(loader.samples_dataset, batch_sampler=loader.sampler(),
        collate_fn=collate, num_workers=2)`. An iteration of it begins where the loader is, also
        after a later `load_state_dict` or `skip`; it does not move the loader.
        """
        return BatchSampler(self)

    def batch_at(self, position: Position) -> tuple[Numbers, Position]:
        """Return the samples of this rank in the batch at a place, and the place behind it, which
        is the same one where there is no batch."""
        numbers, behind = position.take(self.batch_size, length=len(self.samples))
        if len(numbers) < (self.batch_size if self.drop_last else 1):
            return numbers[:0], position
        return share_of(numbers, rank=self.rank, world_size=self.world_size), behind

    def close(self) -> None:
        """Stop the threads and forget batches made ahead; the next batch starts threads again."""
        self._move_to(self.position)
        self._files = FilesAhead(self.samples)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return it without threads and without batches made ahead."""
        own = ("_ahead", "_waiting", "_pool", "_files", "_turn")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()

    def _gather(self, numbers: Numbers) -> dict[str, Any]:
        batch = self.samples.gather(numbers)
        return with_cu_seqlens(batch) if self.cu_seqlens else batch

    def _begin_anew(self) -> None:
        """Go on behind the last batch without threads and locks, as a new process has none."""
        self._ahead, self._waiting, self._pool = self.position, deque(), None
        self._files, self._turn = FilesAhead(self.samples), Lock()
        renew_in_forks(self, Loader._begin_anew)

    def _move_to(self, position: Position) -> None:
        """Go on from a position; batches made ahead are forgotten."""
        self.position = self._ahead = position
        self._waiting.clear()


class BatchSampler:
    """The numbers of one rank's samples, batch by batch: the `batch_sampler` of a DataLoader.

    Every iteration begins where the loader is then, and does not move it. Its states are those of
    `Loader`. torchdata's StatefulDataLoader keeps and loads them by itself.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._begun: Position | None = None

    def __len__(self) -> int:
        """Return how many batches there are from the first sample to the end, as of `Loader`."""
        return len(self.loader)

    def __iter__(self) -> "BatchNumbers":
        self._begun = self.loader.position
        return BatchNumbers(self.loader)

    def state_dict(self, num_batches: int = 0) -> dict[str, Any]:
        """Return the state behind the first `num_batches` of the last iteration.

        A DataLoader asks for batches ahead of those it hands out: count these, and give the number.
        """
        num_batches = integer("num_batches", num_batches, 0)
        samples, begun = self.loader.samples, self._begun or self.loader.position
        behind = begun.after(num_batches, self.loader.batch_size, length=len(samples))
        return behind.state(samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move the loader to where the state was saved. Raises: ConfigError, as of `Loader`."""
        self.loader.load_state_dict(state)
        self._begun = None


class BatchNumbers(Iterator[list[int]]):
    """An iteration of a sampler, with the state behind what it has yielded."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._position = loader, loader.position
        self._files = FilesAhead(loader.samples)  # which worker processes find on this disk

    def __next__(self) -> list[int]:
        self._files.move_to(self._position.next_sample)
        numbers, behind = self._loader.batch_at(self._position)
        if behind == self._position:
            raise StopIteration
        self._position = behind
        return [*map(int, numbers)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last batch."""
        return self._position.state(self._loader.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved. Raises: ConfigError, as of `Loader`."""
        self._position = position_of(state, self._loader.samples)


def _check_samples(samples: Any, **options: int | None) -> None:
    """Make sure that it is given samples, which are no rows, and no order or end of them again.

    Raises: ConfigError.
    """
    given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if not isinstance(samples, Samples):
        expected = "rows of `open_rows`, or samples, such as of `mix`"
        found = f"{samples!r:.60}, of {type(samples).__name__}"
        remedy = "open an export first, `open_rows(path, part=...)`; give several to `mix`"
    elif given:
        expected = f"no {given[0].partition('=')[0]}, since samples already define order and length"
        found = ", ".join(given)
        remedy = "drop it, or give it where they are made, as in `mix(..., seed=1)`"
    else:
        return
    raise ConfigError(where="Loader", expected=expected, found=found, remedy=remedy)


def _check_batches(batch_size: int, rank: int, world_size: int, arrays: ArrayKind) -> None:
    """Make sure that every rank is one of them and gets some of each batch, and that batches can
    be made so. Raises: ConfigError."""
    if not 0 <= rank < world_size:
        expected = f"a rank from 0 to world_size - 1, which is {world_size - 1}"
        found = f"rank {rank}"
        remedy = "give the number of this process, and of all processes, of the training"
    elif batch_size < world_size:
        expected, found = f"a batch_size of at least {world_size}, one per rank", f"{batch_size}"
        remedy = "count the samples of all ranks together in batch_size"
    elif arrays not in get_args(ArrayKind):
        expected, found = f"arrays of {' or '.join(get_args(ArrayKind))}", repr(arrays)
        remedy = "take numpy for other libraries: most make arrays of their own from it"
    elif arrays == "torch" and find_spec("torch") is None:
        expected, found = "torch, for arrays='torch'", "no torch in this environment"
        remedy = "install it, `pip install torch`, or leave arrays out for those of numpy"
    else:
        return
    raise ConfigError(where="Loader", expected=expected, found=found, remedy=remedy)
