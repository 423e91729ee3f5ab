"""Trace a step of a training to the documents that its samples are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokflow.audit.trace import TokenOrigin, Tracer
from tokflow.errors import ConfigError
from tokflow.exports.columns import NO_LABEL
from tokflow.loaders.mixed_samples import MixedSamples
from tokflow.loaders.position import ranks_of
from tokflow.loaders.rows import RandomWindows, RowSource
from tokflow.loaders.samples import Numbers, Samples, grouped
from tokflow.loaders.saved_samples import open_saved
from tokflow.loaders.sources import PackedRows
from tokflow.loaders.steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTrace:
    """One sample of a training, and the documents that its tokens are of."""

    sample: int
    """Its number in the order of the training, from 0."""
    rank: int
    """The rank that has it."""
    source: str
    """The export and the part that it is of: `demo/exports/bin/train`."""
    row: int
    """The number of its row there, as `index` of a batch; of random windows the first position."""
    positions: tuple[int, int]
    """Where its tokens begin and end in the part: the inputs, and the label of the last input
    where there is one."""
    origins: Sequence[TokenOrigin]
    """The documents of its tokens, in order; padding is of none."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training as the state of its loader tells it: the order of its samples, and its steps."""

    samples: Samples
    steps: Steps

    @staticmethod
    def of(
        state: Mapping[str, Any], path: str | None = None, batch_size: int | None = None
    ) -> "Training":
        """Return the training that a state is of; `path`: as `open_saved`. `batch_size`: of steps
        that the state does not tell. Raises: as `open_saved`, `Steps`."""
        samples, position = open_saved(state, path)
        return Training(samples, Steps(position, batch_size))

    def trace(
        self,
        step: int,
        *,
        rank: int | None = None,
        world_size: int = 1,
        trust_remote_code: bool = False,
    ) -> list[SampleTrace]:
        """Return the samples of a step, in order: of all ranks, or of one of `world_size`.

        Of each export no more is read than its index where it has these rows, these tokens, and the
        tables of their documents. Raises: ConfigError for a rank or a step that there is not.
        """
        numbers = self.steps.samples(step)
        ranks = ranks_of(
            np.arange(len(numbers)), np.full_like(numbers, len(numbers)), world_size=world_size
        )
        if not len(numbers) or (rank is not None and not 0 <= rank < world_size):
            is_step = not len(numbers)
            raise ConfigError(
                where="--step" if is_step else "--rank",
                expected="a step before the samples end"
                if is_step
                else f"a rank from 0 to world_size - 1, which is {world_size - 1}",
                found=f"{step:,}" if is_step else f"{rank}",
                remedy="name an earlier one" if is_step else "give --world-size, too",
            )
        is_wanted = np.ones(len(ranks), dtype=bool) if rank is None else ranks == rank
        places = places_of(self.samples, numbers[is_wanted])
        found: dict[int, SampleTrace] = {}
        for number, source in enumerate(sources_in(self.samples)):
            here = np.flatnonzero(places.sources == number)
            if not len(here):
                continue
            spans = [*zip(places.starts[here].tolist(), places.stops[here].tolist(), strict=True)]
            tracer = Tracer(source.stored, trust_remote_code=trust_remote_code)
            of_spans = tracer.origins(source.opening.part, spans)
            for at, span, origins in zip(here.tolist(), spans, of_spans, strict=True):
                found[at] = SampleTrace(
                    sample=int(numbers[is_wanted][at]),
                    rank=int(ranks[is_wanted][at]),
                    source=source.name,
                    row=int(places.rows[at]),
                    positions=span,
                    origins=origins,
                )
        return [found[at] for at in sorted(found)]


@dataclass(frozen=True, slots=True)
class SamplePlaces:
    """Places of samples in their sources; arrays (num_samples,), int64."""

    sources: Numbers
    """The number of the source of each."""
    rows: Numbers
    starts: Numbers
    """The first position of each in its part."""
    stops: Numbers
    """The position behind the last token of each, the label of its last input."""


def sources_in(samples: Samples) -> list[RowSource]:
    """Return the sources of samples, by their numbers."""
    if isinstance(samples, MixedSamples):
        return [of.source for of in samples.sources.values()]
    return [samples.source]  # type: ignore[attr-defined]  # of Epochs and RandomWindows


def places_of(samples: Samples, numbers: Numbers) -> SamplePlaces:
    """Return where samples lie."""
    batch = samples.gather(numbers)
    sources = batch.get("source", np.zeros(len(numbers))).astype(np.int64)
    rows, starts, stops = batch["index"], np.empty_like(numbers), np.empty_like(numbers)
    num_labels = (
        (batch["labels"][:, -1] != NO_LABEL).astype(np.int64)
        if "labels" in batch
        else np.zeros_like(numbers)
    )
    for number, here in grouped(sources):
        source = sources_in(samples)[number]
        starts[here] = rows[here] * positions_of_row(samples, source)
        stops[here] = starts[here] + source.sequence_length + num_labels[here]
    return SamplePlaces(sources, rows, starts, stops)


def positions_of_row(samples: Samples, source: RowSource) -> int:
    """Return from how many positions on the next row of a source begins; 1 of random windows."""
    if isinstance(samples, RandomWindows):
        return 1
    return source.stored_length if isinstance(source, PackedRows) else source.sequence_length
