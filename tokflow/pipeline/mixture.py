"""How much a mixture takes of each file of its sources: planned from the sizes of their splits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokflow.errors import ConfigError
from tokflow.split.mixed_split import BUDGET_CUTS, MixtureShare, source_and_key
from tokflow.split.mixture import MixtureConfig, PartSize, epochs, plan_partitions, plan_sources
from tokflow.store.config import relocated
from tokflow.tokenizers.tokenizer import Encoding


def part_sizes(counts: Mapping[str, int], parts: Sequence[str]) -> dict[str, PartSize]:
    """Return what a split with these counts has of each part."""
    return {
        part: PartSize(
            num_tokens=counts.get(f"{part}.num_tokens", 0),
            num_documents=counts.get(f"{part}.num_documents", 0)
            + counts.get(f"{part}.num_cut_pieces", 0),
        )
        for part in parts
    }


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
