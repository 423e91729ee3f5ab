"""Steps of a training: the samples of the batch of each, and the step that has a sample."""

from dataclasses import dataclass, field

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.position import Position
from tokflow.loaders.samples import ENDLESS, Numbers, integer
from tokflow.store.tables import offsets_of


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
