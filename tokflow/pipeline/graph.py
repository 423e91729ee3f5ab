"""Outputs that a dataset must have: their recipes and folders, computed, never guessed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tokflow.documents import DocumentsConfig
from tokflow.exports import ExportConfig, export_recipe
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.limited import NAME_OR_RUN, LimitedFiles
from tokflow.pipeline.mixture import MixturePlan, check_same_tokenizer, part_sizes
from tokflow.pipeline.output import SOURCE_STAGES, STAGES, NeededOutputs, Output, Stage
from tokflow.pipeline.raw_files import RawFiles, check_columns, positions_of, selected, unknown_key
from tokflow.raw import Listing, Progress, RawFile, RawPartition, RawSource
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import FileSequences, open_sequences, sequences_recipe
from tokflow.split.mixed_split import mixed_split_recipe, open_mixed_split, source_and_key
from tokflow.split.rule import FilePosition, SplitConfig
from tokflow.split.spans import Split, open_split, split_recipe
from tokflow.store.manifest import Recipe
from tokflow.store.store import Store
from tokflow.store.verdicts import write_verdict
from tokflow.tokenizers.sources import TokenizerSource, select_training_keys
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, resolve_encoding, tokenizer_of
from tokflow.tokens.shard import TokenShard, open_token_shard, refused, tokens_recipe


class BuildGraph:
    """The outputs of a dataset, as its config and its raw files of this moment decide them.

    A snapshot: raw files are looked at once, when first asked for. With `offline`, those that are
    elsewhere are taken as they were fetched last, and no server is asked for them, though for what
    a pattern or a dataset of the hub matches now. The manifests of a store at a URL are fetched
    first. With `rehash` raw files on this disk are hashed, whatever is remembered of them.

    A partition of a mixture is one of a source: `code/a.jsonl` is a.jsonl of the source code, whose
    raw files and tokens are the mixture's; all after them is the same for both.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        offline: bool = False,
        rehash: bool = False,
        is_refreshed: bool = False,
        before: "BuildGraph | None" = None,
    ) -> None:
        """`is_refreshed`: manifests were just fetched. `before`: the graph of a plan, of which all
        that is known of this disk stays known."""
        if not is_refreshed and before is None:
            dataset.store.refresh(dataset.folder)
        self.dataset: Dataset = dataset
        self.store: Store = dataset.store
        self.folder: Path = dataset.folder
        """Folder of all outputs of the dataset."""
        self.has_new_verdict = False
        """True if gigatoken was found wrong since, so that other tokens are expected now."""
        self.of_sources: Mapping[str, BuildGraph] = {
            of.name: before.of_sources[of.name].online()
            if before
            else BuildGraph(of, offline=offline, rehash=rehash)
            for of in dataset.sources
        }
        """The graphs of a mixture's sources by their names, the first of which has the tokenizer of
        all; none of a dataset with raw files of its own."""
        files = before.files if before else None
        self.files: RawFiles = RawFiles(dataset, offline=offline, rehash=rehash, before=files)
        self._outputs: dict[tuple[Stage, str, str], Output] = {}
        self._needed = NeededOutputs()

    def online(self) -> "BuildGraph":
        """Return the graph of a build after a plan, which looks at raw files elsewhere again."""
        return BuildGraph(self.dataset, before=self)

    def at(self, key: str) -> tuple["BuildGraph", str]:
        """Return the graph that a partition, or a raw file, is of, and its key there: of a mixture
        that of the source.

        Raises: RawFileError for one of no source.
        """
        if not self.of_sources:
            return self, key
        name, of_source = source_and_key(key)
        if name in self.of_sources:
            return self.of_sources[name], of_source
        raise unknown_key(key, self.partitions, name=self.dataset.name)

    @cached_property
    def packings(self) -> dict[str, PackingConfig]:
        """The packings of the dataset by their names."""
        return self.dataset.packings

    @cached_property
    def own_stages(self) -> tuple[Stage, ...]:
        """The stages with an output of each raw file that the dataset has of its own."""
        return self.dataset.own_stages

    @cached_property
    def listing(self) -> Listing:
        """Everything that the patterns of the dataset match.

        Raises: ConfigError, also for a file of no format that documents are read from, and for a
        part of the split that takes files of which there is none.
        """
        if not self.of_sources:
            return self.files.listing
        graphs = self.of_sources.items()
        left_out = tuple(left for _, graph in graphs for left in graph.listing.left_out)
        found = {f"{of}/{key}": source for of, g in graphs for key, source in g.sources.items()}
        sources = {key: replace(of, key=key) for key, of in sorted(found.items())}
        return Listing(sources=sources, left_out=left_out)

    @property
    def sources(self) -> dict[str, RawSource]:
        """The raw files by their keys, sorted."""
        return self.listing.sources

    @property
    def partitions(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key, in the order of all outputs: those listed or,
        with a limit of the whole dataset, those that it is known to take. Raises: as `listed`."""
        if self.of_sources:
            return self._partitions_of_sources
        return self.listed if self.limited is None else self.limited.partitions

    @cached_property
    def _partitions_of_sources(self) -> dict[str, tuple[RawSource, ...]]:
        found = {
            f"{name}/{key}": tuple(replace(of, key=f"{name}/{of.key}") for of in files)
            for name, graph in self.of_sources.items()
            for key, files in graph.partitions.items()
        }
        return dict(sorted(found.items()))

    @property
    def listed(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition that there may be, by its key, sorted.

        Raises: as `listing`, and ConfigError where they cannot be grouped as `raw.group` says.
        """
        return self._partitions_of_sources if self.of_sources else self.files.listed

    @cached_property
    def limited(self) -> LimitedFiles | None:
        """The files that a limit of the whole dataset takes; None without one, and of a mixture."""
        if self.of_sources or self.dataset.documents.limit.scope != "dataset":
            return None

        def counts_of(key: str) -> Mapping[str, int] | None:
            tokens = self.tokens(key)  # the first costs no checksum
            return None if tokens.is_first_of_kind or not tokens.is_made else tokens.counts

        def look_ahead(keys: list[str]) -> None:
            self.read_raw_files([key for key in keys if not self.tokens(key).is_first_of_kind])

        return LimitedFiles(self.dataset, self.listed, counts_of, look_ahead)

    def take_more(self) -> list[str]:
        """Return the keys of partitions that are known now that more tokens are there."""
        if self.limited is not None:
            return self.limited.advance()
        before = self.__dict__.pop("_partitions_of_sources", {})
        return [key for key in self.partitions if key not in before] if self.of_sources else []

    def selected_keys(self, partitions: Sequence[str] | None) -> list[str]:
        """Return the partition keys asked for, as `raw_files.selected` does."""
        remedy = "name one of them" if self.limited is None else NAME_OR_RUN
        return selected(self.partitions, partitions, name=self.dataset.name, remedy=remedy)

    def check_columns(self) -> None:
        """Make sure that one of the first raw files of this disk has the columns that are read."""
        files = ((of, key) for key, files in self.partitions.items() for of in files)
        check_columns((of, self.documents(key)) for of, key in files if of.is_local)

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read, up to the limit that is left to it."""
        graph, of_source = self.at(key)
        documents, limited = graph.dataset.documents, graph.limited
        if limited is None:
            return documents
        return documents.model_copy(update={"limit": limited.of(of_source)})

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of one partition, fetched if elsewhere. Raises: RawFileError."""
        graph, of_source = self.at(key)
        return graph.files.partition(of_source)

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file, as `raw` does."""
        graph, of_source = self.at(key)
        return graph.files.file(of_source)

    def read_raw_files(self, keys: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the raw files of many partitions together, those of this disk, which is faster
        than one by one; of a mixture at all of its sources.

        If one of them is bad nothing is raised here: `raw` does when it is asked for it.
        """
        for graph in self.of_sources.values():
            graph.read_raw_files(list(graph.partitions), progress=progress)
        if not self.of_sources:
            self.files.read(keys, progress)

    def outputs(self, keys: Sequence[str] | None = None) -> Iterator[Output]:
        """Yield every output of the partitions `keys`, by default of all, and of the dataset, in
        the order of the stages and of the keys: what an output is made from comes before it. Those
        of the sources of a mixture are not among them."""
        known = list(self.partitions) if keys is None else keys
        for stage in STAGES[1:]:
            yield from self.outputs_of(stage, known)

    def outputs_for_mixtures(self) -> Iterator[Output]:
        """Yield the outputs that a mixture needs of the dataset as one of its sources."""
        keys = list(self.partitions)
        for stage in SOURCE_STAGES:
            yield from self.outputs_of(stage, keys)

    def outputs_of(self, stage: Stage, keys: Iterable[str]) -> Iterator[Output]:
        """Yield the outputs of a stage, those of raw files for the partitions `keys`."""
        if stage == "export":
            yield from map(self.export, self.dataset.exports)
        elif stage == "tokenizer":
            yield from () if self.of_sources else (self.tokenizer_output,)
        elif stage in self.own_stages:
            for packing in self.packings if stage == "sequences" else ("",):
                yield from (self.output(stage, key, packing) for key in keys)

    def output(self, stage: Stage, name: str, packing: str = "") -> Output:
        """Return one output: of a raw file by its key, sequences by their packing too, an export by
        its name. The tokenizer and the tokens of a mixture are those of its sources."""
        if self.of_sources and stage in ("tokenizer", "tokens"):
            first = next(iter(self.of_sources.values()))
            graph, name = (first, name) if stage == "tokenizer" else self.at(name)
            return graph.output(stage, name)
        if (known := self._outputs.get((stage, name, packing))) is None:
            known = self._outputs[stage, name, packing] = Output(self, stage, name, packing)
        return known

    @property
    def tokenizer_output(self) -> Output:
        """The tokenizer's folder."""
        return self.output("tokenizer", "tokenizer")

    def tokens(self, key: str) -> Output:
        """Return the token shard of one file."""
        return self.output("tokens", key)

    def split(self, key: str) -> Output:
        """Return the split of one file."""
        return self.output("split", key)

    def sequences(self, key: str, packing: str = "") -> Output:
        """Return the sequences of one file."""
        return self.output("sequences", key, packing)

    def export(self, config: ExportConfig) -> Output:
        """Return one export of all files."""
        return self.output("export", config.name)

    def is_built(self, key: str) -> bool:
        """Return whether all of one file is made that exports are made from."""
        return all(of.is_made for of in self.outputs_of(self.own_stages[-1], [key]))

    def inputs(self, config: ExportConfig) -> dict[str, Output]:
        """Return the outputs that an export is made from, by partition key."""
        stage = self.dataset.stage_of_inputs(config)
        packing = self.dataset.packing_name(config) if stage == "sequences" else ""
        if self.limited is not None:
            self.limited.check_closed()
        return {key: self.output(stage, key, packing) for key in self.partitions}

    def recipe(self, output: Output) -> Recipe:
        """Return what decides an output, as the function says that stands beside its stage."""
        dataset, key = self.dataset, output.name
        if output.stage == "tokenizer":
            return self.tokenizer_source().recipe
        if output.stage == "tokens":
            return tokens_recipe(
                self.raw(key), self.documents(key), dataset.tokenizer, self.tokenizer
            )
        if output.stage == "split":
            return self._split_recipe(key)
        if output.stage == "sequences":
            return sequences_recipe(self.split(key).fingerprint, self.packings[output.packing])
        config = dataset.export_config(key)
        parents = {key: of.fingerprint for key, of in self.inputs(config).items()}
        order = dataset.shuffle.of_export
        return export_recipe(config, dataset.packing_of(config), parents, order=order)

    def _split_recipe(self, key: str) -> Recipe:
        seed = self.dataset.shuffle.of_documents
        if self.of_sources:
            graph, of_source = self.at(key)
            share = self.mixture_plan.share(key)
            return mixed_split_recipe(graph.split(of_source).fingerprint, share, shuffle_seed=seed)
        decides = self.split_config(key), self.position(key), self.partitions[key][0].key
        return split_recipe(self.tokens(key).fingerprint, *decides, shuffle_seed=seed)

    def refused(self, output: Output, counts: Mapping[str, int]) -> str | None:
        """Return what is in an output that the config makes an error now; None where nothing is."""
        configs = self.dataset.documents, self.dataset.tokenizer
        return refused(counts, *configs) if output.stage == "tokens" else None

    def split_config(self, key: str) -> SplitConfig:
        """Return the split of a partition, whose raw files are of one part if parts take files."""
        first = self.partitions[key][0]
        return self.dataset.split.of_file(first.key, first.source_split)

    def position(self, key: str) -> FilePosition:
        """Return where a partition stands in the dataset; with scope file it does not matter."""
        return FilePosition() if self.dataset.split.scope == "file" else self._positions[key]

    @cached_property
    def _positions(self) -> dict[str, FilePosition]:
        self._needed.check(map(self.tokens, self.partitions))
        counts = {key: self.tokens(key).counts for key in self.partitions}
        return positions_of(counts, self.dataset.split)

    @cached_property
    def mixture_plan(self) -> MixturePlan:
        """What a mixture takes of its sources, of which the splits must have been made.

        Raises: MissingOutputError; ConfigError where the sources cannot be mixed so.
        """
        config, parts, sources = self.dataset.mixture, [*self.dataset.split.parts], self.of_sources
        assert config is not None
        self._needed.check(of.split(key) for of in sources.values() for key in of.partitions)
        self.check_tokenizers()
        sizes = {
            name: {key: part_sizes(of.split(key).counts, parts) for key in of.partitions}
            for name, of in sources.items()
        }
        return MixturePlan(config, sizes, parts=parts, where=self.dataset.name)

    def check_tokenizers(self) -> None:
        """Make sure that all sources of a mixture have one tokenizer, which must have been made.

        Raises: ConfigError that names the source of which it is another.
        """
        encodings = {of.dataset.name: of.encoding for of in self.of_sources.values()}
        check_same_tokenizer(encodings, name=self.dataset.name)

    def tokenizer_source(self) -> TokenizerSource:
        """Return what the tokenizer is made from: of a mixture, that of its first source."""
        for graph in self.of_sources.values():
            return graph.tokenizer_source()
        config = self.dataset.tokenizer
        is_trained = config.kind == "trained"  # others are made without a look at the raw files
        keys = select_training_keys(config, list(self.sources)) if is_trained else []
        return TokenizerSource(
            config=config,
            base=self.dataset.base,
            raw_files={key: self.raw_file(key) for key in keys},
            documents=self.dataset.documents.for_training,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which must have been made."""
        trust = self.dataset.tokenizer.trust_remote_code
        return tokenizer_of(self.tokenizer_output.open(), trust_remote_code=trust)

    @property
    def encoding(self) -> Encoding:
        """The tokenizer, which must have been made, as the dataset's config uses it.

        Raises: TokenizerError where it has no such EOS or BOS.
        """
        return resolve_encoding(self.dataset.tokenizer, self.tokenizer)

    def disqualify(self, difference: str) -> None:
        """Keep in the store what gigatoken did wrong with the tokenizer, and expect the tokens of
        the reference from now on."""
        write_verdict(self.tokenizer, difference)
        self.has_new_verdict = True
        self._outputs = {("tokenizer", "tokenizer", ""): self.tokenizer_output}
        self._needed = NeededOutputs()
        for name in ("tokenizer", "limited", "_positions"):
            self.__dict__.pop(name, None)

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one file, which must have been made."""
        if self.of_sources:
            return self.open_split(key).shard
        return open_token_shard(self.tokens(key).open())

    def open_split(self, key: str) -> Split:
        """Return the split of one file, which must have been made; that of a mixture takes its
        documents from that of the source."""
        stored = self.split(key).open()
        if not self.of_sources:
            return open_split(stored, self.open_tokens(key))
        graph, of_source = self.at(key)
        return open_mixed_split(stored, graph.open_split(of_source))

    def open_sequences(self, key: str, packing: str = "") -> FileSequences:
        """Return the sequences of one file, which must have been made."""
        return open_sequences(self.sequences(key, packing).open(), self.open_split(key))
