"""Mixtures: rows of several sources in the shares that weights give them, made by `mix`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError, nearest
from tokflow.loaders.orders import (
    BLOCK,
    MIXTURE_VERSION,
    WINDOW,
    InOrder,
    MixtureStage,
    make_stages,
    shuffled_block,
)
from tokflow.loaders.rows import Epochs, Rows
from tokflow.loaders.samples import (
    ENDLESS,
    Batch,
    FilesOf,
    Numbers,
    StoredFile,
    check_samples,
    empty,
    grouped,
    integer,
    no_dataset,
    optional,
    samples_shown,
)

MAX_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class SourceUse:
    """The rows that samples of a mixture have of a source."""

    num_rows: int
    epochs: float
    """The rows as a multiple of all rows of the source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSamples:
    """Samples of several sources in shares, as `mix` makes them; any sample is found alone."""

    sources: Mapping[str, Epochs]
    stages: tuple[MixtureStage, ...]
    seed: int
    identity: Mapping[str, Any]
    """See `Samples`. `num_samples` and max_epochs decide no row, so that they may change."""
    num_samples: int = ENDLESS
    _blocks: dict[int, tuple[npt.NDArray[np.int32], Numbers]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Recently used blocks by first sample: a batch is often in the block of the one before."""

    __repr__ = samples_shown
    __getitem__ = no_dataset

    def __len__(self) -> int:
        return self.num_samples

    def at(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return of each sample the source, and the number of its row in it. Raises: IndexError."""
        check_samples(numbers, len(self))
        sources, rows = np.empty_like(numbers), np.empty_like(numbers)
        firsts = np.array([stage.first for stage in self.stages])
        stages = np.searchsorted(firsts, numbers, side="right") - 1
        places = (numbers - firsts[stages]) % BLOCK
        for first, here in grouped(numbers - places):
            its_sources, its_rows = self._block(int(stages[here[0]]), first)
            sources[here], rows[here] = its_sources[places[here]], its_rows[places[here]]
        return sources, rows

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers; `source` tells the number of the source of each, in
        the order they were given in, and `index` the row of it."""
        sources, rows = self.at(numbers)
        every = [epochs.source for epochs in self.sources.values()]
        batch: Batch = {}
        for number, here in grouped(sources):
            for name, values in every[number].gather(rows[here]).items():
                if name not in batch:
                    batch[name] = empty((len(numbers), *values.shape[1:]), values.dtype)
                batch[name][here] = values
        return {**(batch or every[0].gather(rows)), "source": sources.astype(np.int32)}

    def remote_files(self) -> FilesOf | None:
        """Return the files of samples at a URL; see `Samples`."""
        of_sources = [epochs.source.remote_files() for epochs in self.sources.values()]
        if not any(of_sources):
            return None

        def files_of(numbers: Numbers) -> Iterator[StoredFile]:
            sources, rows = self.at(numbers)
            for number, here in grouped(sources):
                if (of_source := of_sources[number]) is not None:
                    yield from of_source(rows[here])

        return files_of

    def _block(self, stage: int, first: int) -> tuple[npt.NDArray[np.int32], Numbers]:
        """Return the sources of the block that begins at a sample, and the numbers of its rows."""
        kept = self._blocks.get(first)  # another thread may clear them
        if kept is not None:
            return kept
        block = (first - self.stages[stage].first) // BLOCK
        sources, taken = shuffled_block(self.stages[stage], block, self.seed)
        rows = np.empty_like(taken)
        for number, epochs in enumerate(self.sources.values()):
            here = sources == number
            rows[here] = epochs.at(taken[here])
        if len(self._blocks) >= MAX_BLOCKS:
            self._blocks.clear()
        self._blocks[first] = sources, rows
        return sources, rows

    def epochs(self, num_samples: int) -> dict[str, SourceUse]:
        """Return what the first samples have of each source: as they are dealt out, not as planned.

        Raises: IndexError.
        """
        if not 0 <= num_samples <= len(self):
            raise IndexError(f"expected up to {len(self):,} samples, found {num_samples:,}")
        stage = [stage for stage in self.stages if stage.first < max(1, num_samples)][-1]
        taken = stage.taken_after(num_samples - stage.first, seed=self.seed)
        return {
            name: SourceUse(num_rows, num_rows / epochs.order.num_rows)
            for num_rows, (name, epochs) in zip(taken, self.sources.items(), strict=True)
        }


def mix(
    sources: Mapping[str, Rows],
    *,
    weights: Mapping[str, float] | None = None,
    stages: Sequence[tuple[int, Mapping[str, float]]] = (),
    max_epochs: float | Mapping[str, float] | None = None,
    seed: int = 0,
    num_samples: int | None = None,
    blocks: int | None = None,
    window: int = WINDOW,
) -> MixedSamples:
    """Return samples that take rows of each source in the shares that the weights give it.

    Weights count tokens and need not add up to one: of {"web": 7, "code": 3} three tokens of ten
    are code. Samples are shuffled within blocks of 1,024. After every block each source is within a
    row of its share; where one is so small that a block has less than two rows of it, after as many
    blocks as give it two, and within them never three rows off (`MixtureStage.rows_after`). It goes
    through its rows epoch after epoch, each `Rows.shuffled` by the seed.

    stages: other weights from a sample on, `[(1_000_000, {"web": 5, "code": 5})]`; sources go on
    where they were. While a training goes on, those may change that begin 1,024 samples ahead.
    max_epochs: how often a source may be gone through, for all or by name. The samples end before
    a row would be one too many; without it they have no end.
    num_samples: an earlier end. Raises: ConfigError, also for more than max_epochs allow.
    """
    _check_sources(sources)
    seed = integer("mix: seed", seed)
    shares = _token_shares(weights, stages, sources)
    orders = {
        name: rows.epochs(seed * len(sources) + number, blocks=blocks, window=window)
        for number, (name, rows) in enumerate(sources.items())
    }
    for_a_token = [Fraction(len(rows), rows.source.num_tokens) for rows in sources.values()]
    of_rows = {  # rows of fewer tokens are more of them
        first: [share * num for share, num in zip(its_shares, for_a_token, strict=True)]
        for first, its_shares in shares.items()
    }
    endless = MixedSamples(
        sources=orders,
        stages=make_stages(of_rows, end=ENDLESS, seed=seed),
        seed=seed,
        identity=_identity(orders, shares, seed),
    )
    most = _most_samples(max_epochs, sources, endless)
    return replace(endless, num_samples=_num_samples(num_samples, endless, most))


def _check_sources(sources: Mapping[str, Rows]) -> None:
    """Make sure that the rows of all can be in one batch. Raises: ConfigError."""
    if not isinstance(sources, Mapping):
        found = f"{sources!r:.60}, of {type(sources).__name__}"
        raise _error("sources", "rows by their names", found, 'give `{"web": rows}`')
    if not sources:
        raise _error("sources", "at least one", "none", "name what is mixed")
    for name, rows in sources.items():
        if not isinstance(rows, Rows):
            remedy = "open them with open_rows; a mixture shuffles them by its own seed"
            raise _error(f"sources.{name}", "rows", type(rows).__name__, remedy)
        if not isinstance(rows.order, InOrder):
            found = f"rows that are {rows.order.identity['kind']}"
            remedy = "give them as open_rows returns them; a mixture shuffles them by its own seed"
            raise _error(f"sources.{name}", "rows in the order of their files", found, remedy)
    (one, its), *others = [(name, _facts(rows)) for name, rows in sources.items()]
    for name, facts in others:
        for fact, value in facts.items():
            if value != its[fact] and value and its[fact]:
                raise _error(
                    f"sources.{name}",
                    f"{fact} {its[fact]}, as {one} has",
                    value,
                    "open all with the same sequence_length and fields, of tokens of one tokenizer",
                )


def _facts(rows: Rows) -> dict[str, str]:
    """Return what must be the same of all sources; empty where it is not known."""
    source = rows.source
    return {
        "sequence_length": f"{source.sequence_length:,}",
        "tokenizer": source.tokenizer[:7],
        "fields": ", ".join(sorted(source.fields)),
    }


def _token_shares(
    weights: Any, later: Any, sources: Mapping[str, Rows]
) -> dict[int, list[Fraction]]:
    """Return by the first sample of each stage the share of each source in its tokens.

    Raises: ConfigError.
    """
    later = later if isinstance(later, Sequence) else [later]
    stages = [*([] if weights is None else [(0, weights)]), *later]
    for stage in stages:
        is_pair = isinstance(stage, Sequence) and len(stage) == 2
        if not is_pair or not isinstance(stage[1], Mapping):
            expected = "weights by the names of sources, of a stage behind its first sample"
            remedy = 'give `weights={"web": 7}`, `stages=[(5_000, {"web": 5})]`'
            raise _error("weights and stages", expected, f"{stage!r:.60}", remedy)
    if not stages or stages[0][0] != 0:
        found = f"stages from sample {stages[0][0]:,} on" if stages else "none"
        raise _error("weights", "a number for each source", found, "give the weights of sample 0")
    shares: dict[int, list[Fraction]] = {}
    for first, of_stage in stages:
        first = integer("mix: stages", first)
        if not max([-1, *shares]) < first < ENDLESS:
            found = f"{first!r} behind {max(shares, default=0):,}"
            raise _error("stages", "samples that ascend", found, "name each once, in their order")
        where = f"stages, sample {first:,}" if first else "weights"
        exact = _numbers(where, of_stage, sources)
        for name in sources:
            if name not in exact:
                remedy = "give it one, 0 to leave it out"
                raise _error(where, f"a weight for {name}", ", ".join(of_stage), remedy)
        total = sum(exact.values())
        if not total:
            raise _error(where, "at least one positive weight", "none", "raise one of them")
        shares[first] = [exact[name] / total for name in sources]
    return shares


def _numbers(
    where: str, numbers: Mapping[str, float], sources: Mapping[str, Rows]
) -> dict[str, Fraction]:
    """Return the numbers of sources as they are written: 0.1 is a tenth. Raises: ConfigError."""
    for name, number in numbers.items():
        if name not in sources:
            remedy = nearest(name, list(sources)) or "name a source as `sources` does"
            raise _error(where, f"some of {', '.join(sources)}", repr(name), remedy)
        if not isinstance(number, Real) or not 0 <= number < math.inf:
            raise _error(f"{where}.{name}", "a number from 0 up", repr(number), "correct it")
    return {name: Fraction(str(number)) for name, number in numbers.items()}


def _identity(
    orders: Mapping[str, Epochs], shares: Mapping[int, Sequence[Fraction]], seed: int
) -> dict[str, Any]:
    """Return what decides the samples. A stage decides none before the last block of the stage
    before it, which it cuts: `decides_from`."""
    order = next(iter(orders.values())).identity["order"]
    firsts = [0, *shares]
    return {
        "kind": "mixture",
        "version": MIXTURE_VERSION,
        "seed": seed,
        "epochs": {name: of for name, of in order.items() if name not in ("seed", "epoch")},
        "stages": [
            {
                "first_sample": first,
                "decides_from": first - (first - before) % BLOCK,
                "weights": {name: str(share) for name, share in zip(orders, of, strict=True)},
            }
            for before, (first, of) in zip(firsts, shares.items(), strict=False)
        ],
        "sources": [epochs.source.identity for epochs in orders.values()],
    }


def _most_samples(
    max_epochs: float | Mapping[str, float] | None,
    sources: Mapping[str, Rows],
    endless: MixedSamples,
) -> int:
    """Return how many samples there are before a source has more rows than it may. Raises:
    ConfigError, also for a source that has a weight and may have no row."""
    if not isinstance(max_epochs, Mapping):
        max_epochs = {} if max_epochs is None else dict.fromkeys(sources, max_epochs)
    exact = _numbers("max_epochs", max_epochs, sources)
    limits = {name: int(epochs * len(sources[name])) for name, epochs in exact.items()}
    for number, name in enumerate(sources):
        if limits.get(name) == 0 and any(stage.weights[number] for stage in endless.stages):
            expected = f"at least one of its {len(sources[name]):,} rows, for it has a weight"
            remedy = "give it the weight 0 to leave it out, or raise its max_epochs"
            raise _error(f"max_epochs.{name}", expected, f"{max_epochs[name]!r} epochs", remedy)
    of_sources = np.array([min(limits.get(name, ENDLESS), ENDLESS) for name in sources])
    for stage in endless.stages if limits else ():
        if (num := stage.num_within(of_sources, seed=endless.seed)) is not None:
            return stage.first + num
    return ENDLESS


def _num_samples(wanted: int | None, endless: MixedSamples, most: int) -> int:
    """Return how many samples there are: those wanted, or all. Raises: ConfigError."""
    wanted = optional(integer, "mix: num_samples", wanted)
    if wanted is not None and not 0 < wanted <= ENDLESS:
        raise _error("num_samples", "a number from 1 up", repr(wanted), "leave it out for all")
    if wanted is None or wanted <= most:
        return int(wanted or most)
    name = list(endless.sources)[endless.at(np.array([most]))[0][0]]  # of the first one too many
    allowed, found = (endless.epochs(num)[name] for num in (most, wanted))
    raise _error(
        "num_samples",
        f"at most {most:,}, which take {allowed.num_rows:,} rows of {name}, "
        f"{allowed.epochs:g} epochs of {endless.sources[name].order.num_rows:,}",
        f"{wanted:,}, which take {found.num_rows:,}: {found.epochs:.4g} epochs",
        f"lower num_samples or the weight of {name}, or raise its max_epochs",
    )


def _error(where: str, expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where=f"mix: {where}", expected=expected, found=found, remedy=remedy)
