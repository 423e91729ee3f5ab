"""Place of a training among its samples: the state that is saved and loaded, what was handed out
and what was skipped, and the steps that it tells of."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.orders import BLOCK
from tokflow.loaders.samples import ENDLESS, Numbers, Samples, integer, positive
from tokflow.store.tables import offsets_of

STATE_VERSION = 1

AS_SAVED = "as `state_dict` returned it"
MADE_ALIKE = "make the loader as it was where the state was saved"


@dataclass(frozen=True, slots=True)
class Position:
    """The place between two batches, the same on every rank and with any batch size."""

    next_sample: int = 0
    """Number of the next sample: those before it were in a batch or skipped."""
    skipped: tuple[range, ...] = ()
    """Samples that no batch has, from the first to the last, none touching the next."""
    batches: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """The batches before it, in runs of one size: how many, and the samples of each on all
    ranks."""

    def take(self, num_samples: int, *, length: int) -> tuple[Numbers, "Position"]:
        """Return the numbers of the next samples, and the place behind them.

        There are fewer of them only where the samples, `length` in all, end. After sample 2, with
        4 to 6 skipped, the next 3 samples are 3, 7 and 8.
        """
        taken, behind = self._next(1, num_samples, length)
        numbers = [np.arange(some.start, some.stop, dtype=np.int64) for some in taken]
        return np.concatenate([np.empty(0, dtype=np.int64), *numbers]), behind

    def after(self, num_batches: int, batch_size: int, *, length: int) -> "Position":
        """Return the place behind the next batches, as `take` does, however many they are."""
        return self._next(num_batches, batch_size, length)[1]

    def _next(
        self, num_batches: int, batch_size: int, length: int
    ) -> tuple[list[range], "Position"]:
        taken, first, num_samples = [], self.next_sample, num_batches * batch_size
        for ahead in (*self.skipped, range(length, length)):
            last = min(first + num_samples, ahead.start, length)
            if first < last:
                taken.append(range(first, last))
                num_samples -= last - first
                first = last
            if not num_samples:
                break
            first = max(first, min(ahead.stop, length))
        (num_full, rest), batches = divmod(sum(map(len, taken)), batch_size), self.batches
        for num, size in ((num_full, batch_size), (int(rest > 0), rest)):
            if num and batches and batches[-1][1] == size:  # they lengthen the last run
                num, batches = num + batches[-1][0], batches[:-1]
            batches += ((num, size),) * bool(num)
        return taken, replace(self, next_sample=first, batches=batches)

    def skip(self, samples: range, *, length: int) -> "Position":
        """Return the same place with these samples, of `length` in all, jumped over too.

        Raises: ConfigError.
        """
        if not isinstance(samples, range) or samples.step != 1:
            expected, remedy = "a range of samples one after another", "give `range(first, end)`"
        elif samples.start < self.next_sample:
            expected = f"a range of samples from {self.next_sample:,}, the next one, on"
            remedy = "those before it were handed out: load a state from before them first"
        elif samples.stop > length:
            expected = f"a range of samples up to {length:,}, their end"
            remedy = "name samples that there are"
        else:
            return replace(self, skipped=_joined((*self.skipped, samples)))
        raise ConfigError(where="skip", expected=expected, found=f"{samples!r:.60}", remedy=remedy)

    def state(self, samples: Samples) -> dict[str, Any]:
        """Return it as JSON has it, with what decides the samples.

        Its names are the same for all samples, and `order` is a text: torch's distributed
        checkpoint loads no name that the loader has not, and takes nested values apart by name.
        """
        return {
            "version": STATE_VERSION,
            "samples": self.next_sample,
            "skipped": [[some.start, some.stop] for some in self.skipped],
            "batches": [*map(list, self.batches)],
            "order": json.dumps(samples.identity),
        }


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Return the same numbers in ranges that ascend and do not touch."""
    joined: list[range] = []
    for some in sorted(ranges, key=lambda one: one.start):
        if joined and some.start <= joined[-1].stop:
            some = range(joined[-1].start, max(joined.pop().stop, some.stop))
        joined += [some] if some else []
    return tuple(joined)


def share_of(numbers: Numbers, *, rank: int, world_size: int) -> Numbers:
    """Return a rank's share of the samples of a batch: as many as any other rank's, or one more."""
    first, last = (len(numbers) * some // world_size for some in (rank, rank + 1))
    return numbers[first:last]


def ranks_of(places: Numbers, batch_sizes: Numbers, *, world_size: int) -> Numbers:
    """Return the rank that has the sample at each place of a batch of so many, as `share_of`."""
    return ((places + 1) * world_size - 1) // batch_sizes


def position_of(state: Mapping[str, Any], samples: Samples) -> Position:
    """Return the position that a state of these samples tells.

    A source may have another name and place, and be divided into other files, not another content;
    stages of a mixture that decide none of the samples so far may be others. Raises: ConfigError,
    which names the first difference, for a state of other samples or of another version.
    """
    if not isinstance(state, Mapping):
        _check("version", STATE_VERSION, f"{state!r:.60}, of {type(state).__name__}")
    _check("version", STATE_VERSION, state.get("version"))
    if not {"samples", "skipped", "order"} <= state.keys():
        _check("samples, skipped and order", AS_SAVED, ", ".join(map(str, state)))
    num_samples = integer("samples", state["samples"])
    ours = _read(Position().state(samples)["order"], num_samples)
    theirs = _read(state["order"], num_samples)

    def place(name: str) -> tuple[bool, bool]:  # of sources first what people can read
        return not name.startswith("sources["), name.endswith(".fingerprint")

    def is_free(name: str) -> bool:
        source, _, field = name.rpartition(".")
        of = f"{source}.fingerprint"
        is_equal = field == "output" and ours.get(of) == theirs.get(of)
        is_place = field in ("name", "path", "part")
        return name.startswith("sources[") and (is_place or is_equal)

    for name in sorted(ours | theirs, key=place):
        if not is_free(name):
            _check(name, ours.get(name), theirs.get(name), _remedy(name, theirs, num_samples))
    if not 0 <= num_samples <= len(samples):
        _check("samples", f"from 0 to {len(samples):,}", num_samples)
    skipped = _skipped(state["skipped"])
    return Position(num_samples, skipped, _batches(state.get("batches", ())))


def _read(order: Any, num_samples: int) -> dict[str, Any]:
    """Return the leaves of an order by name. Raises: ConfigError for what is no order."""
    try:
        return dict(_leaves({**json.loads(order)}, num_samples))
    except (TypeError, ValueError, RecursionError):
        _check("order", AS_SAVED, f"{order!r:.60}")
        raise


def _skipped(ranges: Any) -> tuple[range, ...]:
    """Return the ranges of a state. Raises: ConfigError unless they are pairs of whole numbers that
    ascend, and do not touch."""
    try:
        last = -1
        for first, stop in ranges:
            if not last < integer("skipped", first) < integer("skipped", stop) <= ENDLESS:
                raise ValueError
            last = stop
    except (TypeError, ValueError):
        _check("skipped", AS_SAVED, f"{ranges!r:.60}")
    return tuple(range(*ends) for ends in ranges)


def _batches(runs: Any) -> tuple[tuple[int, int], ...]:
    """Return the runs of batches of a state. Raises: ConfigError unless they are pairs of positive
    numbers."""
    try:
        return tuple((positive("batches", num), positive("batches", size)) for num, size in runs)
    except (TypeError, ValueError):
        _check("batches", AS_SAVED, f"{runs!r:.60}")
        raise


def _leaves(value: Any, num_samples: int, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what an identity holds by its name, such as `order.seed`.

    What `decides_from` a sample behind the first `num_samples` on is left out.
    """
    if isinstance(value, Mapping):
        first = value.get("decides_from", 0)
        if isinstance(first, int) and first >= max(1, num_samples):
            return
        for key, inner in value.items():
            yield from _leaves(inner, num_samples, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, num_samples, f"{name}[{number}]")
    else:
        yield name, value


def _check(name: str, ours: Any, theirs: Any, remedy: str = MADE_ALIKE) -> None:
    """Make sure that what the loader has is what the state has. Raises: ConfigError."""
    if ours != theirs:
        expected, found = (
            f"{of if isinstance(of, str) else repr(of):.200}" for of in (ours, theirs)
        )
        raise ConfigError(
            where="load_state_dict",
            expected=f"a state of {name} {expected}",
            found=found,
            remedy=f"{remedy}, or begin without a state",
        )


def _remedy(name: str, theirs: Mapping[str, Any], num_samples: int) -> str:
    """Return the remedy for a difference from the order of a state of `num_samples` samples."""
    if name.startswith("sources["):
        source = f"{name.partition('.')[0]}."
        shown = (
            f"{key.removeprefix(source)}={of!r:.60}"
            for key, of in theirs.items()
            if key.startswith(source) and not key.endswith(".fingerprint")
        )
        return f"open the rows that it is of ({', '.join(shown)})"
    if name.startswith("stages"):
        return (
            f"keep the stages of the first {num_samples:,} samples: others may begin at sample "
            f"{num_samples + BLOCK:,} and later, for samples are mixed in blocks of {BLOCK:,}"
        )
    return MADE_ALIKE


@dataclass(frozen=True, slots=True)
class Steps:
    """The batches of a training by their numbers, from 0: those that a position tells of, and those
    behind it, as they are where the training goes on with one batch size."""

    position: Position
    batch_size: int | None = None
    """Samples of a batch that the position does not tell of; None: as of the last that it does."""
    length: int = ENDLESS
    """The number of samples."""
    _sizes: Numbers = field(init=False, repr=False)
    """Samples of each batch of a run; of the last, which has no end, too."""
    _steps: Numbers = field(init=False, repr=False)
    """The first step of each run."""
    _places: Numbers = field(init=False, repr=False)
    """The samples in batches before each run."""

    def __post_init__(self) -> None:
        runs = [*self.position.batches]
        size = self.batch_size or (runs[-1][1] if runs else None)
        untold = int(self._places_of(np.array([self.position.next_sample]))[0])
        untold -= sum(num * of for num, of in runs)
        if size is None or untold < 0 or (untold and untold % (self.batch_size or ENDLESS)):
            told = f"a state that tells the batches of all but {untold:,} samples"
            raise ConfigError(
                where="--batch-size",
                expected="the samples of a batch on all ranks, which the state does not tell",
                found=told if self.batch_size is None else f"{self.batch_size:,}, and {told}",
                remedy="give the batch_size that the loader had",
            )
        runs = [(untold // size, size)] * bool(untold) + runs
        for name, of in {
            "_sizes": np.array([*(of for _, of in runs), size]),
            "_steps": offsets_of([num for num, _ in runs]),
            "_places": offsets_of([num * of for num, of in runs]),
        }.items():
            object.__setattr__(self, name, of)

    @property
    def num_done(self) -> int:
        """Steps before the position."""
        return int(self._steps[-1])

    def samples(self, step: int) -> Numbers:
        """Return the samples of a step on all ranks, in order; fewer, or none, where they end."""
        step = integer("step", step, 0)
        run = int(np.searchsorted(self._steps, step, side="right")) - 1
        first = self._places[run] + (step - self._steps[run]) * self._sizes[run]
        starts, sizes = self._skipped
        places = first + np.arange(self._sizes[run])
        before = np.searchsorted(starts - sizes[:-1], places, side="right")
        numbers: Numbers = places + sizes[before]
        return numbers[numbers < self.length]

    def of(self, samples: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return of each sample that is in a batch the step, its place in the batch, and how many
        the batch has."""
        places = self._places_of(samples)
        runs = np.searchsorted(self._places, places, side="right") - 1
        sizes = self._sizes[runs]
        steps, in_batch = np.divmod(places - self._places[runs], sizes)
        return self._steps[runs] + steps, in_batch, sizes

    @property
    def _skipped(self) -> tuple[Numbers, Numbers]:
        """The first sample of each run that is skipped; and how many samples are skipped before
        each run, and in all."""
        skipped = self.position.skipped
        starts = np.array([of.start for of in skipped], dtype=np.int64)
        return starts, offsets_of([len(of) for of in skipped])

    def _places_of(self, samples: Numbers) -> Numbers:
        """Return how many samples before each are in a batch; of one that is skipped, those before
        its run."""
        starts, sizes = self._skipped
        before = np.searchsorted(starts, samples, side="right")
        ends = starts + np.diff(sizes)
        inside = np.maximum(0, np.append(0, ends)[before] - samples)
        return samples - sizes[before] + inside
