"""A mixture as it is now: its sources' graphs, and the plan of what it takes of their splits."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tokflow.errors import ConfigError
from tokflow.formatting import ratio
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.pipeline.raw_files import unknown_key
from tokflow.pipeline.results import BuildResult
from tokflow.raw import Listing, Progress, RawSource
from tokflow.split.mixed_split import BUDGET_CUTS, MixtureShare, source_and_key
from tokflow.split.mixture import (
    MixtureConfig,
    PartSize,
    dataset_of,
    part_in,
    plan_partitions,
    plan_parts,
)
from tokflow.split.stage import SPLIT
from tokflow.store.config import relocating
from tokflow.strata.stage import parts_within
from tokflow.tokenizers.tokenizer import Encoding
from tokflow.tokens.shard import TokenShard


def graph_of(dataset: Dataset, **how: bool) -> BuildGraph:
    """Return the graph of a dataset, whether it is a mixture or not; `how`: as `BuildGraph`."""
    return (BuildGraph if dataset.mixture is None else MixtureGraph)(dataset, **how)


class MixtureGraph(BuildGraph):
    """The outputs of a mixture: its splits, and what is made of them.

    Its partition `code/a.jsonl` is a.jsonl of its source code, whose raw files and tokens are the
    mixture's.
    """

    def __init__(self, dataset: Dataset, **how: bool) -> None:
        super().__init__(dataset, **how)
        self._take({of.name: BuildGraph(of, **how) for of in dataset.sources})

    def _take(self, of_sources: Mapping[str, BuildGraph]) -> None:
        self.of_sources = of_sources
        self.takes = {
            of: of_sources[dataset_of(of)] for of in self.dataset.of(MixtureConfig).sources
        }
        for of in of_sources.values():
            of.made_for = self

    def online(self) -> "MixtureGraph":
        """Return the graph of a build after a plan, which looks at raw files elsewhere again."""
        graph = MixtureGraph(self.dataset, is_refreshed=True)
        graph._take({name: of.online() for name, of in self.of_sources.items()})
        return graph

    def at(self, key: str) -> tuple[BuildGraph, str]:
        """Return the graph of the source that has a partition, or a raw file, and its key there;
        of no key that of the first. Raises: RawFileError for one of no source."""
        name, of_source = source_and_key(key) if key else (next(iter(self.takes)), "")
        if name not in self.takes:
            raise unknown_key(key, self.partitions, self.listing, name=self.dataset.name)
        return self.takes[name], of_source

    @cached_property
    def listing(self) -> Listing:
        """The raw files of all sources. Raises: ConfigError."""
        graphs, all_graphs = self.takes.items(), self.of_sources.values()
        left_out = tuple(left for graph in all_graphs for left in graph.listing.left_out)
        found = {f"{of}/{key}": source for of, g in graphs for key, source in g.sources.items()}
        sources = {key: replace(of, key=key) for key, of in sorted(found.items())}
        bad = {f"{of}/{key}": bad for of, g in graphs for key, bad in g.listing.bad.items()}
        return Listing(sources=sources, left_out=left_out, bad=bad)

    @cached_property
    def listed(self) -> Mapping[str, tuple[RawSource, ...]]:
        """The raw files of each partition of the sources, by its key, sorted. Raises:
        ConfigError."""
        found = {
            f"{name}/{key}": tuple(replace(of, key=f"{name}/{of.key}") for of in files)
            for name, graph in self.takes.items()
            for key, files in graph.partitions.items()
        }
        return dict(sorted(found.items()))

    def take_more(self) -> list[str]:
        """Return the keys of partitions that are known now that more tokens are there."""
        before = self.__dict__.pop("listed", {})
        self.__dict__.pop("listing", None)  # bad files of sources are left out now
        return [key for key in self.listed if key not in before]

    def read_raw_files(self, keys: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the local raw files of all sources together."""
        for graph in self.of_sources.values():
            graph.read_raw_files(list(graph.partitions), progress=progress)

    def output(self, stage: str, key: str = "", variant: str = "") -> Output:
        """Return one output: of a stage that the mixture has not, as tokens, that of a source."""
        if self.steps.get(stage) is not None:
            return super().output(stage, key, variant)
        graph, of_source = self.at(key)
        return graph.output(stage, of_source, variant)

    def export_details(self) -> dict[str, Any]:
        """Return what the manifest of each export says of its tokens and of its sources."""
        counts = {key: self.split(key).counts for key in self.partitions}
        return {**super().export_details(), "mixture": self.mixture_plan.realised(counts)}

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one file as its split takes it."""
        return self.open_split(key).shard

    @cached_property
    def mixture_plan(self) -> "MixturePlan":
        """Plan of what is taken of the sources, whose splits must have been made. Raises:
        MissingOutputError; ConfigError where the sources cannot be mixed so."""
        config, where = self.dataset.of(MixtureConfig), self.dataset.name
        return MixturePlan(config, self.source_sizes, parts=self.dataset.parts, where=where)

    @cached_property
    def source_sizes(self) -> dict[str, dict[str, dict[str, PartSize]]]:
        """The size of each part in each partition of each source, whose splits must have been made.
        Raises: MissingOutputError; ConfigError where their tokenizers differ."""
        all_graphs = self.of_sources.values()
        self.check_made(SPLIT.name, (of.split(key) for of in all_graphs for key in of.partitions))
        self.check_tokenizers()
        return {
            name: {key: _sizes(self.dataset.parts, name, of, key) for key in of.partitions}
            for name, of in self.takes.items()
        }

    def check_tokenizers(self) -> None:
        """Make sure that all sources have the same tokenizer, EOS and BOS, which must have been
        made. Raises: ConfigError that names the source of which one is another."""
        (first, facts), *others = [
            (name, _facts(of.encoding)) for name, of in self.of_sources.items()
        ]
        for source, of_source in others:
            for fact, found in of_source.items():
                if found != facts[fact]:
                    raise ConfigError(
                        where=f"{self.dataset.name}: mixture.sources.{source}",
                        expected=f"the {fact} of {first}, {facts[fact]}, since "
                        "tokens of two vocabularies do not mix",
                        found=found,
                        remedy="give all sources the same `tokenizer:`",
                    )


def total_tokens(
    sizes: Mapping[str, Mapping[str, Mapping[str, PartSize]]], parts: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Return the tokens of each source and part over its partitions."""
    parts = [*parts]
    return {
        name: {part: sum(of[part].num_tokens for of in files.values()) for part in parts}
        for name, files in sizes.items()
    }


def _sizes(parts: Sequence[str], source: str, graph: BuildGraph, key: str) -> dict[str, PartSize]:
    """Return what a partition of a source has in each part of a mixture."""
    counts, found = graph.split(key).counts, dict[str, PartSize]()
    for part in parts:
        own = parts_within(graph.dataset.parts, part_in(source, part))
        tokens, *documents = (
            sum(counts[f"{of}.num_{what}"] for of in own)
            for what in ("tokens", "documents", "cut_pieces")
        )
        found[part] = PartSize(num_tokens=tokens, num_documents=sum(documents))
    return found


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
        parts: Iterable[str],
        where: str,
    ) -> None:
        """`sizes`: of each part by source and partition there. Raises: ConfigError where the
        sources cannot be mixed so, which begins with `where`."""
        self._config, self._sizes = config, sizes
        self._available = total_tokens(sizes, parts)
        with relocating(where):
            self._planned = plan_parts(config, self._available)

    @cached_property
    def _tokens(self) -> dict[str, dict[str, int]]:
        """Tokens that are taken of each partition, by part."""
        found = {
            f"{name}/{key}": {part: size.num_tokens for part, size in of.items()}
            for name, files in self._sizes.items()
            for key, of in files.items()
        }
        for name, files in self._sizes.items():
            for part in self._config.parts:
                of_part = {key: of[part] for key, of in files.items()}
                num = self._planned[name][part]
                taken = plan_partitions(num, of_part, seed=self._config.seed, name=name)
                for key, taken_of_file in taken.items():
                    found[f"{name}/{key}"][part] = taken_of_file
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
                    "planned_epochs": ratio(num, self._available[name][part]),
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
            source = source_and_key(key)[0]
            for part in self._planned[source]:
                taken[source, part] += of_split[f"{part}.num_tokens"]
                cuts[source, part] += of_split[f"{part}.{BUDGET_CUTS}"]
        found = self.planned()
        for name, parts in found.items():
            for part, of in parts.items():
                of["tokens"] = taken[name, part]
                of["epochs"] = ratio(taken[name, part], of["available_tokens"])
                of[BUDGET_CUTS] = cuts[name, part]
        return found


def mixture_rows_of(built: BuildResult) -> list[dict[str, Any]]:
    """Return a row for each source and part of a mixture that is built: tokens and epochs as
    planned and as they came out."""
    splits = built.of("split")
    graph = splits[0].output.graph if splits else None
    if not isinstance(graph, MixtureGraph) or len(splits) < len(graph.partitions):
        return []
    counts = {made.output.name: made.manifest.counts for made in splits}
    return mixture_rows(graph.mixture_plan.realised(counts))


MIXTURE_NUMBERS = (
    "planned_tokens",
    "tokens",
    "tokens_fraction",
    "planned_epochs",
    "epochs",
    "available_tokens",
    BUDGET_CUTS,
)


def mixture_rows(details: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the `mixture` of an export's details, or of a plan, as rows, each with its share of
    the tokens of its part; none of parts in which a source has nothing."""

    def tokens(of: Mapping[str, Any]) -> int:
        return int(of["tokens" if "tokens" in of else "planned_tokens"])

    total, rows = Counter[str](), []
    for parts in details.values():
        total.update({part: tokens(of) for part, of in parts.items()})
    for source, parts in details.items():
        for part, of in parts.items():
            numbers = {**of, "tokens_fraction": ratio(tokens(of), total[part])}
            shown = {name: numbers[name] for name in MIXTURE_NUMBERS if name in numbers}
            rows += [{"source": source, "part": part, **shown}] if of["available_tokens"] else []
    return rows
