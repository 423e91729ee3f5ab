"""Splits of a mixture: how much each takes of a file of a source, planned from the sizes of their
splits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol, cast

from tokflow.errors import ConfigError
from tokflow.split.mixed_split import (
    BUDGET_CUTS,
    MixtureShare,
    mixed_split_recipe,
    open_mixed_split,
    source_and_key,
    write_mixed_split,
)
from tokflow.split.mixture import MixtureConfig, PartSize, epochs, plan_partitions, plan_sources
from tokflow.split.shuffle import ShuffleConfig
from tokflow.split.spans import Split
from tokflow.split.stage import SplitStage
from tokflow.stage import DatasetConfig, Input, Making, Opened, WholeWriter, Writer
from tokflow.store.config import relocated
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.tokenizer import Encoding


def check_same_tokenizer(encodings: Mapping[str, Encoding], *, name: str) -> None:
    """Make sure that all sources of a mixture have the same tokenizer, EOS and BOS.

    Raises: ConfigError that names the source of which one is another.
    """
    first = next(iter(encodings))
    facts = _facts(encodings[first])
    for source, encoding in encodings.items():
        for fact, found in _facts(encoding).items():
            if found != facts[fact]:
                raise ConfigError(
                    where=f"{name}: mixture.sources.{source}",
                    expected=f"the {fact} of {first}, {facts[fact]}, since "
                    "tokens of two vocabularies do not mix",
                    found=found,
                    remedy="give all sources the same `tokenizer:`",
                )


def _facts(encoding: Encoding) -> dict[str, str]:
    """Return what must be the same in all sources, as it is said."""
    tokenizer, config = encoding.tokenizer, encoding.config
    kind = f"{config.kind} {config.name}" if config.name else config.kind
    said = {
        name: "none" if of is None else f"{of:,}"
        for name, of in {"EOS": encoding.eos_id, "BOS": encoding.bos_id}.items()
    }
    shown = f"{kind} ({tokenizer.fingerprint[:7]}, {tokenizer.vocab_size:,} ids)"
    return {"tokenizer": shown, **said}


class MixturePlan:
    """Tokens that a mixture takes: of the part that is mixed as the config says, of others all."""

    def __init__(
        self,
        config: MixtureConfig,
        sizes: Mapping[str, Mapping[str, Mapping[str, PartSize]]],
        *,
        parts: Sequence[str],
        where: str,
    ) -> None:
        """`sizes`: by source, partition there, and part. Raises: ConfigError where the sources
        cannot be mixed so, which begins with `where`."""
        self._config, self._sizes, self._parts = config, sizes, parts
        self._available = {
            name: {part: sum(of[part].num_tokens for of in files.values()) for part in parts}
            for name, files in sizes.items()
        }
        mixed = config.part
        try:
            planned = plan_sources(config, {of: has[mixed] for of, has in self._available.items()})
        except ConfigError as error:
            raise relocated(error, f"{where}: {error.where}") from None
        self._planned = {
            name: {**has, mixed: planned[name]} for name, has in self._available.items()
        }

    @cached_property
    def _tokens(self) -> dict[str, dict[str, int]]:
        """Tokens that are taken of each partition, by part."""
        mixed, found = self._config.part, dict[str, dict[str, int]]()
        for name, files in self._sizes.items():
            of_mixed = {key: of[mixed] for key, of in files.items()}
            num = self._planned[name][mixed]
            taken = plan_partitions(num, of_mixed, seed=self._config.seed, name=name)
            for key, of in files.items():
                whole = {part: size.num_tokens for part, size in of.items()}
                found[f"{name}/{key}"] = {**whole, mixed: taken[key]}
        return found

    def share(self, key: str) -> MixtureShare:
        """Return what is taken of a partition."""
        name, of_source = source_and_key(key)
        tokens, sizes = self._tokens[key], self._sizes[name][of_source]
        is_drawn = any(num % (sizes[part].num_tokens or 1) for part, num in tokens.items())
        seed = self._config.seed if is_drawn else 0  # which decides nothing of whole passes
        return MixtureShare(key=key, tokens=tokens, seed=seed)

    def planned(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return of each source and part the tokens that are to be taken, the epochs that these
        are, and the tokens that the source has."""
        return {
            name: {
                part: {
                    "planned_tokens": num,
                    "planned_epochs": epochs(num, self._available[name][part]),
                    "available_tokens": self._available[name][part],
                }
                for part, num in planned.items()
            }
            for name, planned in self._planned.items()
        }

    def realised(self, counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
        """Return the plan with the tokens and epochs that splits of the mixture with these counts,
        by partition, have of each source, and how many documents they cut."""
        taken: Counter[tuple[str, str]] = Counter()
        cuts: Counter[tuple[str, str]] = Counter()
        for key, of_split in counts.items():
            for part in self._parts:
                place = source_and_key(key)[0], part
                taken[place] += of_split[f"{part}.num_tokens"]
                cuts[place] += of_split[f"{part}.{BUDGET_CUTS}"]
        found = self.planned()
        for name, parts in found.items():
            for part, of in parts.items():
                of["tokens"] = taken[name, part]
                of["epochs"] = epochs(taken[name, part], of["available_tokens"])
                of[BUDGET_CUTS] = cuts[name, part]
        return found


def plan_mixture(
    config: MixtureConfig,
    counts: Mapping[str, Mapping[str, Mapping[str, int]]],
    parts: Sequence[str],
    *,
    where: str,
) -> MixturePlan:
    """Return the plan of a mixture of sources whose splits have these counts, by source and
    partition.

    Raises: ConfigError where the sources cannot be mixed so, which begins with `where`.
    """
    sizes = {
        name: {
            key: {
                part: PartSize(
                    num_tokens=of.get(f"{part}.num_tokens", 0),
                    num_documents=of.get(f"{part}.num_documents", 0)
                    + of.get(f"{part}.num_cut_pieces", 0),
                )
                for part in parts
            }
            for key, of in files.items()
        }
        for name, files in counts.items()
    }
    return MixturePlan(config, sizes, parts=parts, where=where)


class _Mixture(Protocol):
    """A mixture as it is now."""

    @property
    def mixture_plan(self) -> MixturePlan:
        """Plan of what it takes of its sources."""


class MixedSplitStage(SplitStage):
    """The splits of a mixture: a plan of spans over the splits of its sources."""

    def variants(self, dataset: DatasetConfig) -> Mapping[str, MixtureConfig]:
        """Return the config of the mixture."""
        return {"": dataset.of(MixtureConfig)}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the splits of all partitions of each source."""
        sources = dataset.of(MixtureConfig).sources
        return [Input(stage=self.name, reach="all", dataset=of) for of in sources]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a split: the source's and the share of it."""
        fingerprint = making.input(self.name).fingerprint
        seed = making.of(ShuffleConfig).of_documents
        return mixed_split_recipe(fingerprint, _share(making), shuffle_seed=seed)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of any split."""
        config = dataset.of(MixtureConfig)
        seed = dataset.of(ShuffleConfig).of_documents
        share = MixtureShare(key="", tokens={}, seed=config.seed)
        recipe = mixed_split_recipe("", share, shuffle_seed=seed)
        own = config.model_dump(exclude={"sources": {"__all__": {"config"}}})
        return replace(recipe, config={**recipe.config, "mixture_config": own})

    def writer(self, making: Making) -> Writer:
        """Return what takes the share of a source's split."""
        return WholeWriter(
            partial(
                write_mixed_split,
                making.opened(self.name),
                _share(making),
                tokenizer=making.opened("tokenizer"),
                dataset=making.graph.dataset.name,
                recipe=making.recipe,
                shuffle_seed=making.of(ShuffleConfig).of_documents,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Split:
        """Return the split over its source's."""
        return open_mixed_split(stored, inputs.opened(self.name))


MIXED_SPLIT = MixedSplitStage()


def _share(making: Making) -> MixtureShare:
    return cast(_Mixture, making.graph).mixture_plan.share(making.key)
