"""Trace a step of a training to the documents that its samples are made of; the samples opened
again from the state that its loader saved."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.audit.trace import TokenOrigin, Tracer
from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.exports.columns import NO_LABEL
from tokflow.loaders.mixed_samples import MixedSamples, mix
from tokflow.loaders.orders import WINDOW
from tokflow.loaders.position import Position, Steps, position_of, ranks_of
from tokflow.loaders.row_sources import PackedRows
from tokflow.loaders.rows import RandomWindows, Rows, RowSource, open_rows
from tokflow.loaders.samples import Numbers, Samples, grouped
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import opened, output_at

SAMPLES_AT_ONCE = 2**16
"""Samples whose rows are worked out together: 2 MB."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """A sample that a training has seen, and that has tokens of a document."""

    sample: int
    """Its number in the order of the training, from 0."""
    step: int
    rank: int
    epoch: int | None
    """The epoch of its source, from 0; None of random windows, which have none."""
    source: str
    """The export and the part that it is of: `demo/exports/bin/train`."""
    row: int
    """As of `SampleTrace`."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions in the part that a training has as a source."""

    source: int
    """The number of the source."""
    start: int
    stop: int


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
        if not len(numbers):
            expected, remedy = "a step before the samples end", "name an earlier one"
            raise ConfigError(where="--step", expected=expected, found=f"{step:,}", remedy=remedy)
        if rank is not None and not 0 <= rank < world_size:
            expected = f"a rank from 0 to world_size - 1, which is {world_size - 1}"
            remedy = "give --world-size, too"
            raise ConfigError(where="--rank", expected=expected, found=f"{rank}", remedy=remedy)
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

    def sightings(
        self, documents: Sequence[Sequence[Span]], *, world_size: int = 1
    ) -> list[list[Sighting]]:
        """Return of each document, given where its tokens are, the samples before the state that
        have one of them, in order; those that were skipped are none.

        The order is gone through from its first sample, 0.1 us a sample or, of blocks and mixtures,
        up to 0.9 us: a row comes once in each epoch of its source. What is found alone is read.
        """
        numbers = self._touching([span for spans in documents for span in spans])
        places = places_of(self.samples, numbers)
        epochs = _times_before(np.stack([places.sources, places.rows]))
        steps, in_batch, sizes = self.steps.of(numbers)
        ranks = ranks_of(in_batch, sizes, world_size=world_size)
        sources, has_epochs = sources_in(self.samples), not isinstance(self.samples, RandomWindows)
        was_seen = np.ones(len(numbers), dtype=bool)
        for some in self.steps.position.skipped:
            was_seen &= (numbers < some.start) | (numbers >= some.stop)
        found: list[list[Sighting]] = []
        for spans in documents:
            has_some = np.zeros(len(numbers), dtype=bool)
            for span in spans:
                is_inside = (places.starts < span.stop) & (span.start < places.stops)
                has_some |= is_inside & (places.sources == span.source)
            found.append(
                [
                    Sighting(
                        sample=int(numbers[at]),
                        step=int(steps[at]),
                        rank=int(ranks[at]),
                        epoch=int(epochs[at]) if has_epochs else None,
                        source=sources[places.sources[at]].name,
                        row=int(places.rows[at]),
                    )
                    for at in np.flatnonzero(has_some & was_seen)
                ]
            )
        return found

    def _touching(self, spans: Sequence[Span]) -> Numbers:
        """Return the samples before the state that can have a token in one of some spans, which do
        not overlap: labels are taken for there."""
        edges, found = {}, [np.zeros(0, dtype=np.int64)]
        for number in {span.source for span in spans}:
            own = sorted((span.start, span.stop) for span in spans if span.source == number)
            edges[number] = np.array(own, dtype=np.int64).T
        end = self.steps.position.next_sample if spans else 0
        for first in range(0, end, SAMPLES_AT_ONCE):
            numbers = np.arange(first, min(first + SAMPLES_AT_ONCE, end))
            rows: Any = self.samples.at(numbers)  # type: ignore[attr-defined]  # all have it
            of_sources, rows = rows if isinstance(rows, tuple) else (np.zeros_like(rows), rows)
            for number, (starts, stops) in edges.items():
                here, source = of_sources == number, sources_in(self.samples)[number]
                begins = rows[here] * positions_of_row(self.samples, source)
                ends = begins + source.sequence_length + 1
                is_hit = np.searchsorted(stops, begins, "right") < np.searchsorted(starts, ends)
                found.append(numbers[here][is_hit])
        return np.sort(np.concatenate(found))


def _times_before(keys: Numbers) -> Numbers:
    """Return how often each column of keys stands before it."""
    order = np.lexsort(keys)
    sorted_ = keys[:, order]
    is_first = np.append(True, (sorted_[:, 1:] != sorted_[:, :-1]).any(axis=0))[: len(order)]
    places = np.arange(len(order))
    times = np.empty_like(places)
    times[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return times


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
    num_labels = np.zeros_like(numbers)
    if "labels" in batch:
        num_labels += batch["labels"][:, -1] != NO_LABEL
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


def open_saved(state: Mapping[str, Any], path: str | None = None) -> tuple[Samples, Position]:
    """Return the samples that the state of a loader is of, and the position that it tells.

    Exports are looked for where they were or, with `path`, there: an export, a store or a folder of
    one, or its URL. They have no end, since the state tells none.

    Raises: ConfigError for what is no state; MissingOutputError where an export is not there any
    more, or was made again with another content.
    """
    try:
        order = json.loads(state["order"])
        sources = [{"name": "", "path": None, "part": None, **of} for of in order["sources"]]
        kind = order["kind"]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            where="--state",
            expected="what `Loader.state_dict` returned, as JSON",
            found=f"{state!r:.60}",
            remedy="save it with `json.dumps(loader.state_dict())`",
        ) from None
    rows = [_open_source(source, path) for source in sources]
    of_rows = order["epochs"] if kind == "mixture" else order.get("order", {})
    how = {"blocks": of_rows.get("blocks"), "window": of_rows.get("window", WINDOW)}
    if kind == "mixture":
        stages: list[tuple[int, Mapping[str, Any]]] = [
            (of["first_sample"], {name: Fraction(share) for name, share in of["weights"].items()})
            for of in order["stages"]
        ]
        named = dict(zip(stages[0][1], rows, strict=True))
        samples: Samples = mix(named, stages=stages, seed=order["seed"], **how)
    elif kind == "random windows":
        samples = rows[0].random_windows(order["seed"])
    elif order["seed"] is not None:
        samples = rows[0].epochs(order["seed"], **how)
    elif "seed" in of_rows:
        samples = rows[0].shuffled(of_rows["seed"], of_rows["epoch"], **how).epochs()
    else:
        samples = rows[0].epochs()
    return samples, position_of(state, samples)


def _open_source(source: Mapping[str, Any], path: str | None) -> Rows:
    """Return the rows that an identity has a source of. Raises: MissingOutputError."""
    is_stream = "tail" in source
    across = source["across_documents"]
    seen: list[str] = []
    for output in _outputs(source, path):
        with suppress(ConfigError):  # of another format or part
            rows = open_rows(
                output,
                source["part"],
                source["sequence_length"],
                fields=("input_ids", "labels"),
                tail=source.get("tail", "pad"),
                across_documents=across if is_stream else across or None,
            )
            if rows.source.fingerprint == source["fingerprint"]:
                return rows
        seen.append(output.manifest.recipe.fingerprint[:16])
    raise MissingOutputError(
        where=source["path"] if path is None else path,
        expected=f"{source['name']}, {source['output']}, of which the training was",
        found=f"{', '.join(seen)}: it was made again since" if seen else "none",
        remedy="name the store that has it, or a copy of the export: "
        "`tokflow trace EXPORT --state FILE`; equal raw files and config make it again",
    )


def _outputs(source: Mapping[str, Any], path: str | None) -> Iterator[StoredOutput]:
    """Yield outputs that can be the one of a source, the likeliest first: the one at the path, and
    those where the source has its place in a store that is there, or above it."""
    store, folder = opened(source["path"] if path is None else path)
    place = Path(source["name"].removesuffix(f"/{source['part']}"))
    above = [folder, *folder.absolute().parents]
    places = [of / place for of in above]
    likely = [folder, *(of / source["output"] for of in places), *places]
    store.look_for(likely)
    found: set[Path] = set()
    for each in filter(Path.exists, likely):
        with suppress(MissingOutputError, CorruptOutputError):
            output = output_at(store, each)
            if output is not None and output.folder not in found:
                found.add(output.folder)
                yield output
