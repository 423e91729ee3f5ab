"""A mixture's sources as a build has them: their graphs, and how much of each file is taken."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, RawFileError
from tokflow.pipeline.output import NeededOutputs, Output, Stage
from tokflow.raw import Listing, Progress, RawFile, RawPartition, RawSource
from tokflow.split.mixed_split import (
    BUDGET_CUTS,
    MixtureShare,
    mixed_split_recipe,
    open_mixed_split,
    source_and_key,
)
from tokflow.split.mixture import MixtureConfig, PartSize, epochs, plan_partitions, plan_sources
from tokflow.split.spans import Split
from tokflow.store.config import relocated
from tokflow.store.manifest import Recipe
from tokflow.tokenizers.sources import TokenizerSource
from tokflow.tokens.shard import TokenShard

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph

SOURCE_STAGES = ("tokenizer", "tokens", "split")
"""What a mixture needs of a source, which has sequences and exports for itself alone."""


class Mixture:
    """The sources of a mixture, each with its graph.

    A partition of the mixture is one of a source: `code/a.jsonl` is a.jsonl of the source code.
    It has the methods of `OwnFiles`, of which `BuildGraph` says what they return.
    """

    limited = None
    """No limit of the whole dataset: its sources have theirs."""
    known_raw_files: tuple[RawFile, ...] = ()
    """None: raw files are its sources'."""

    def __init__(
        self, graph: "BuildGraph", config: MixtureConfig, graphs: Iterable["BuildGraph"]
    ) -> None:
        self._graph = graph
        self.dataset = graph.dataset
        self.config = config
        self.graphs = {graph.dataset.name: graph for graph in graphs}
        self._splits = NeededOutputs()

    @property
    def first(self) -> "BuildGraph":
        """The graph of the first source, whose tokenizer is that of all."""
        return next(iter(self.graphs.values()))

    def online(self, graph: "BuildGraph") -> "Mixture":
        """Return the sources of a graph that asks servers."""
        return Mixture(graph, self.config, (of.online() for of in self.graphs.values()))

    @cached_property
    def listing(self) -> Listing:
        """The raw files of all sources."""
        listings = [graph.listing for graph in self.graphs.values()]
        left_out = tuple(left for listing in listings for left in listing.left_out)
        sources = (
            _named(name, source)
            for name, graph in self.graphs.items()
            for source in graph.sources.values()
        )
        in_order = sorted(sources, key=lambda source: source.key)
        return Listing(sources={source.key: source for source in in_order}, left_out=left_out)

    @cached_property
    def partitions(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key, sorted."""
        found = {
            f"{name}/{key}": tuple(_named(name, source) for source in sources)
            for name, graph in self.graphs.items()
            for key, sources in graph.partitions.items()
        }
        return dict(sorted(found.items()))

    @property
    def listed(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition, for there are no others."""
        return self.partitions

    def take_more(self) -> list[str]:
        """Return the partitions that a source whose limit is one of all its files has more when it
        is built."""
        before = self.partitions
        for name in ("listing", "partitions"):
            self.__dict__.pop(name, None)
        return [key for key in self.partitions if key not in before]

    def forget_tokens(self) -> None:
        """Nothing: no tokens are its own."""

    def at(self, key: str) -> tuple["BuildGraph", str]:
        """Return the graph of the source of a partition, or of a raw file, and its key there.

        Raises: RawFileError for one of no source.
        """
        name, rest = source_and_key(key)
        if name in self.graphs:
            return self.graphs[name], rest
        raise RawFileError(
            where=f"{self.dataset.name}: {key}",
            expected=f"a key that begins with a source: {', '.join(self.graphs)}",
            found=repr(name),
            remedy="name one that `tokflow plan` lists",
        )

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read."""
        graph, of_source = self.at(key)
        return graph.documents(of_source)

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of one partition."""
        graph, of_source = self.at(key)
        return graph.raw(of_source)

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file."""
        graph, of_source = self.at(key)
        return graph.raw_file(of_source)

    def read_raw_files(self, _: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the raw files of all sources, whatever partitions are asked for."""
        for graph in self.graphs.values():
            graph.read_raw_files(list(graph.partitions), progress=progress)

    def output(self, stage: Stage, name: str) -> Output | None:
        """Return the tokenizer, or the tokens of a partition, which are a source's; None of other
        stages."""
        if stage == "tokenizer":
            return self.first.tokenizer_output
        if stage == "tokens":
            graph, key = self.at(name)
            return graph.tokens(key)
        return None

    def tokenizer_source(self) -> TokenizerSource:
        """Return what the tokenizer of all is made from."""
        return self.first.tokenizer_source()

    def split_recipe(self, key: str) -> Recipe:
        """Return what decides the split of one partition: that of the source, and what is taken."""
        graph, of_source = self.at(key)
        return mixed_split_recipe(
            graph.split(of_source).fingerprint,
            self.share(key),
            shuffle_seed=self.dataset.shuffle.of_documents,
        )

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one partition."""
        return self.open_split(key).shard

    def open_split(self, key: str) -> Split:
        """Return the split of one partition, which takes its documents from that of the source."""
        graph, of_source = self.at(key)
        return open_mixed_split(self._graph.split(key).open(), graph.open_split(of_source))

    def inputs(self) -> Iterator[Output]:
        """Yield the outputs of the sources that the mixture is made from, source by source."""
        for graph in self.graphs.values():
            yield from (output for output in graph.outputs() if output.stage in SOURCE_STAGES)

    @property
    def missing(self) -> list["BuildGraph"]:
        """The graphs of the sources of which something is not made yet."""
        return [
            graph
            for graph in self.graphs.values()
            if not all(of.is_made for of in graph.outputs() if of.stage in SOURCE_STAGES)
        ]

    def share(self, key: str) -> MixtureShare:
        """Return what the mixture takes of a partition.

        Raises: MissingOutputError where the split of a file is not made; ConfigError where the
        sources cannot be mixed so.
        """
        name, of_source = source_and_key(key)
        tokens, sizes = self._tokens[key], self._sizes[name][of_source]
        is_drawn = any(num % (sizes[part].num_tokens or 1) for part, num in tokens.items())
        seed = self.config.seed if is_drawn else 0  # which decides nothing of whole passes
        return MixtureShare(key=key, tokens=tokens, seed=seed)

    def check_tokenizers(self) -> None:
        """Make sure that all sources have one tokenizer, which must have been made.

        Raises: ConfigError that names the source of which it is another.
        """
        first = self.first
        facts = _tokenizer_facts(first)
        for name, graph in self.graphs.items():
            for fact, found in _tokenizer_facts(graph).items():
                if found != facts[fact]:
                    raise ConfigError(
                        where=f"{self.dataset.name}: mixture.sources.{name}",
                        expected=f"the {fact} of {first.dataset.name}, {facts[fact]}, since "
                        "tokens of two vocabularies do not mix",
                        found=found,
                        remedy="give all sources the same `tokenizer:`",
                    )

    def plan(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return of each source and part the tokens that are to be taken, the epochs that these
        are, and the tokens that the source has.

        Raises: as `share`.
        """
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, planned in self._planned.items():
            sizes = self._sizes[name].values()
            found[name] = {}
            for part, num in planned.items():
                available = sum(of[part].num_tokens for of in sizes)
                found[name][part] = {
                    "planned_tokens": num,
                    "planned_epochs": epochs(num, available),
                    "available_tokens": available,
                }
        return found

    def realised(self, splits: Mapping[str, Output]) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the plan with the tokens and epochs that the splits of the mixture, by partition,
        have of each source, and how many documents they cut."""
        taken: Counter[tuple[str, str]] = Counter()
        cuts: Counter[tuple[str, str]] = Counter()
        for key, output in splits.items():
            counts = output.manifest().counts
            for part in self.dataset.split.parts:
                place = source_and_key(key)[0], part
                taken[place] += counts[f"{part}.num_tokens"]
                cuts[place] += counts[f"{part}.{BUDGET_CUTS}"]
        found = self.plan()
        for name, parts in found.items():
            for part, of in parts.items():
                of["tokens"] = taken[name, part]
                of["epochs"] = epochs(taken[name, part], of["available_tokens"])
                of[BUDGET_CUTS] = cuts[name, part]
        return found

    @cached_property
    def _sizes(self) -> dict[str, dict[str, dict[str, PartSize]]]:
        """What each partition of each source has of each part."""
        graphs = self.graphs.values()
        self._splits.check(graph.split(key) for graph in graphs for key in graph.partitions)
        return {
            name: {key: self._size(graph, key) for key in graph.partitions}
            for name, graph in self.graphs.items()
        }

    def _size(self, graph: "BuildGraph", key: str) -> dict[str, PartSize]:
        counts = graph.split(key).manifest().counts
        return {
            part: PartSize(
                num_tokens=counts.get(f"{part}.num_tokens", 0),
                num_documents=counts.get(f"{part}.num_documents", 0)
                + counts.get(f"{part}.num_cut_pieces", 0),
            )
            for part in self.dataset.split.parts
        }

    @cached_property
    def _planned(self) -> dict[str, dict[str, int]]:
        """Tokens of each source by part: of the one that is mixed as the config says, of the others
        all."""
        self.check_tokenizers()
        has = {
            name: {
                part: sum(of[part].num_tokens for of in sizes.values())
                for part in self.dataset.split.parts
            }
            for name, sizes in self._sizes.items()
        }
        mixed = self.config.part
        try:
            planned = plan_sources(self.config, {name: of[mixed] for name, of in has.items()})
        except ConfigError as error:
            raise relocated(error, f"{self.dataset.name}: {error.where}") from None
        return {name: {**of, mixed: planned[name]} for name, of in has.items()}

    @cached_property
    def _tokens(self) -> dict[str, dict[str, int]]:
        """Tokens that are taken of each partition, by part."""
        mixed, seed = self.config.part, self.config.seed
        found = {}
        for name, sizes in self._sizes.items():
            of_mixed = {key: of[mixed] for key, of in sizes.items()}
            taken = plan_partitions(self._planned[name][mixed], of_mixed, seed=seed, name=name)
            for key, of in sizes.items():
                whole = {part: size.num_tokens for part, size in of.items()}
                found[f"{name}/{key}"] = {**whole, mixed: taken[key]}
        return found


def _named(name: str, source: RawSource) -> RawSource:
    return replace(source, key=f"{name}/{source.key}")


def _tokenizer_facts(graph: "BuildGraph") -> dict[str, str]:
    """Return what must be the same in all sources, as it is said."""
    encoding, tokenizer = graph.encoding, graph.tokenizer
    facts = {"EOS": encoding.eos_id, "BOS": encoding.bos_id}
    said = {name: "none" if of is None else f"{of:,}" for name, of in facts.items()}
    config = graph.dataset.tokenizer
    kind = f"{config.kind} {config.name}" if config.name else config.kind
    name = f"{kind} ({tokenizer.fingerprint[:7]}, {tokenizer.vocab_size:,} ids)"
    return {"tokenizer": name, **said}
