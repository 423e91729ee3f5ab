"""Outputs that a dataset must have: their recipes and folders, computed, never guessed."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from tokflow.documents import DocumentsConfig
from tokflow.errors import (
    ConfigError,
    MissingOutputError,
    first_five,
)
from tokflow.exports import ExportConfig, Part
from tokflow.exports.part import make_parts
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.export_details import export_details
from tokflow.pipeline.limited import NAME_OR_RUN, LimitedFiles
from tokflow.pipeline.mixture import Mixture
from tokflow.pipeline.output import STAGES, Output, Stage
from tokflow.pipeline.own_files import OwnFiles
from tokflow.pipeline.recipes import RECIPES, stage_of_inputs
from tokflow.raw import (
    Listing,
    Progress,
    RawFile,
    RawPartition,
    RawSource,
)
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import FileSequences, open_sequences
from tokflow.split.spans import Split
from tokflow.store.integrity import Reading
from tokflow.store.manifest import Recipe
from tokflow.store.verdicts import write_verdict
from tokflow.tokenizers.encoding import Encoding, resolve_encoding
from tokflow.tokenizers.engines import GatedEngine
from tokflow.tokenizers.sources import TokenizerSource
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import TokenShard


class BuildGraph:
    """The outputs of a dataset, as its config and its raw files of this moment decide them.

    A snapshot: raw files are looked at once, when first asked for. With `offline`, those that are
    elsewhere are taken as they were fetched last, and no server is asked for them, though for what
    a pattern or a dataset of the hub matches now. The manifests of a store at a URL are fetched
    first, unless that was just done (`is_refreshed`). With `rehash` raw files on this disk are
    hashed, whatever is remembered of them. A mixture has partitions, tokenizer and tokens of its
    sources, a dataset of raw files its own: `upstream`; all after them is the same for both.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        offline: bool = False,
        rehash: bool = False,
        is_refreshed: bool = False,
    ) -> None:
        if not is_refreshed:
            dataset.store.refresh(dataset.folder)
        self.dataset: Dataset = dataset
        self.offline = offline
        self.rehash = rehash
        self.has_new_verdict = False
        """True if gigatoken was found wrong since, so that other tokens are expected now."""
        config = dataset.mixture
        sources = [BuildGraph(of, offline=offline, rehash=rehash) for of in dataset.sources]
        self.upstream: OwnFiles | Mixture = (
            OwnFiles(self) if config is None else Mixture(self, config, sources)
        )
        """The partitions, and what is made of them before the split."""
        self._outputs: dict[tuple[Stage, str, str], Output] = {}

    def online(self) -> "BuildGraph":
        """Return the graph of a build after a plan: raw files that are elsewhere are looked at
        again, and all that is known of this disk stays known."""
        graph = BuildGraph(self.dataset, is_refreshed=True)
        graph.upstream = self.upstream.online(graph)
        return graph

    @property
    def mixture(self) -> Mixture | None:
        """The sources of a mixture; None of a dataset with raw files of its own."""
        return self.upstream if isinstance(self.upstream, Mixture) else None

    @property
    def listing(self) -> Listing:
        """Everything that the patterns of the dataset match.

        Raises: ConfigError, also for a file of no format that documents are read from, and for a
        part of the split that takes files of which there is none.
        """
        return self.upstream.listing

    @cached_property
    def packings(self) -> dict[str, PackingConfig]:
        """The packings of the dataset by their names."""
        return self.dataset.packings

    @cached_property
    def folder(self) -> Path:
        """Folder of all outputs of the dataset."""
        return self.dataset.folder

    @property
    def sources(self) -> dict[str, RawSource]:
        """The raw files by their keys, sorted."""
        return self.listing.sources

    @property
    def partitions(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key, in the order of all outputs: those listed or,
        with a limit of the whole dataset, those that it is known to take. Raises: as `listed`."""
        return self.upstream.partitions

    @property
    def limited(self) -> LimitedFiles | None:
        """The files that a limit of the whole dataset takes; None without such a limit."""
        return self.upstream.limited

    def take_more(self) -> list[str]:
        """Return the keys of partitions that are known now that more tokens are there."""
        return self.upstream.take_more()

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read, up to the limit that is left to it."""
        return self.upstream.documents(key)

    @property
    def listed(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition that there may be, by its key, sorted.

        Raises: as `listing`, and ConfigError where they cannot be grouped as `raw.group` says.
        """
        return self.upstream.listed

    def selected_keys(self, partitions: Sequence[str] | None) -> list[str]:
        """Return the partition keys asked for, all by default, in the order of all outputs.

        Raises: ConfigError for a key that is no raw file.
        """
        known = self.partitions
        unknown = [key for key in partitions or () if key not in known]
        if unknown:
            raise ConfigError(
                where="--partition",
                expected=f"a partition of {self.dataset.name}: {first_five(list(known))}",
                found=repr(unknown[0]),
                remedy="name one of them" if self.limited is None else NAME_OR_RUN,
            )
        chosen = set(known if partitions is None else partitions)
        return [key for key in known if key in chosen]

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of one partition, fetched if they are elsewhere.

        Raises: RawFileError.
        """
        return self.upstream.raw(key)

    @property
    def known_raw_files(self) -> tuple[RawFile, ...]:
        """Those that were looked at so far: of a plan, all that anything is made from."""
        return self.upstream.known_raw_files

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file, fetched if it is elsewhere.

        Raises: RawFileError.
        """
        return self.upstream.raw_file(key)

    def read_raw_files(self, keys: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the raw files of many partitions together, those of this disk, which is faster
        than one by one.

        If one of them is bad nothing is raised here: `raw` does when it is asked for it.
        """
        self.upstream.read_raw_files(keys, progress=progress)

    def outputs(self, keys: Sequence[str] | None = None) -> Iterator[Output]:
        """Yield every output of the partitions `keys`, by default of all, and of the dataset, in
        the order of the stages and of the keys: what an output is made from comes before it. Those
        of the sources of a mixture are not among them."""
        known = list(self.partitions) if keys is None else keys
        for stage in STAGES[1:]:
            yield from self.outputs_of(stage, known)

    def outputs_of(self, stage: Stage, keys: Iterable[str]) -> Iterator[Output]:
        """Yield the outputs of a stage, those of raw files for the partitions `keys`."""
        if stage == "export":
            yield from map(self.export, self.dataset.exports)
        elif stage == "tokenizer":
            yield from (of for of in [self.tokenizer_output] if of.graph is self)
        elif stage in self.dataset.own_stages:
            for packing in self.packings if stage == "sequences" else ("",):
                yield from (self.output(stage, key, packing) for key in keys)

    def recipe(self, output: Output) -> Recipe:
        """Return what decides an output, by the function that stands beside its stage."""
        return RECIPES[output.stage](self, output.name, output.packing)

    def output(self, stage: Stage, name: str, packing: str = "") -> Output:
        """Return one output: of a raw file by its key, sequences by their packing too, an export by
        its name. The tokenizer and the tokens of a mixture are those of its sources."""
        if (of_source := self.upstream.output(stage, name)) is not None:
            return of_source
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

    def is_built(self, key: str) -> bool:
        """Return whether all of one file is made that exports are made from."""
        last = self.outputs_of(self.dataset.own_stages[-1], [key])
        return all(output.is_made for output in last)

    def export(self, config: ExportConfig) -> Output:
        """Return one export of all files."""
        return self.output("export", config.name)

    def export_config(self, name: str) -> ExportConfig:
        """Return the config of the export called `name`."""
        return self.dataset.export_config(name)

    def inputs(self, config: ExportConfig) -> dict[str, Output]:
        """Return the outputs that an export is made from, by partition key."""
        stage = stage_of_inputs(config, self.dataset.shuffle)
        packing = self.dataset.packing_name(config) if stage == "sequences" else ""
        if self.limited is not None:
            self.limited.check_closed()
        return {key: self.output(stage, key, packing) for key in self.partitions}

    def tokenizer_source(self) -> TokenizerSource:
        """Return what the tokenizer is made from."""
        return self.upstream.tokenizer_source()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which must have been made."""
        stored = self.tokenizer_output.open()
        trust = self.dataset.tokenizer.trust_remote_code
        return tokenizer_of(stored, trust_remote_code=trust)

    @property
    def encoding(self) -> Encoding:
        """The tokenizer, which must have been made, as the dataset's config uses it.

        Raises: TokenizerError where it has no such EOS or BOS.
        """
        return resolve_encoding(self.dataset.tokenizer, self.tokenizer)

    def engine(self) -> GatedEngine:
        """Return the engine that makes the tokens. Raises: as `engine_for`."""
        with Reading():
            return engine_for(self.encoding, self.dataset.documents)

    def disqualify(self, difference: str) -> None:
        """Keep in the store what gigatoken did wrong with the tokenizer, and expect the tokens of
        the reference from now on."""
        write_verdict(self.tokenizer, difference)
        self.has_new_verdict = True
        del self.tokenizer
        self._outputs = {("tokenizer", "tokenizer", ""): self.tokenizer_output}
        self.upstream.forget_tokens()

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one file, which must have been made."""
        return self.upstream.open_tokens(key)

    def open_split(self, key: str) -> Split:
        """Return the split of one file, which must have been made."""
        return self.upstream.open_split(key)

    def open_sequences(self, key: str, packing: str = "") -> FileSequences:
        """Return the sequences of one file, which must have been made."""
        return open_sequences(self.sequences(key, packing).open(), self.open_split(key))

    def parts(self, config: ExportConfig) -> Sequence[Part]:
        """Return what an export is made from; every listed file must have been built.

        Raises: MissingOutputError that names the first files that have not.
        """
        dataset, inputs = self.dataset, self.inputs(config)
        stage = stage_of_inputs(config, dataset.shuffle)
        missing = [key for key, output in inputs.items() if not output.is_made]
        if missing:
            raise MissingOutputError(
                where=f"{dataset.name}/exports/{config.name}",
                expected=f"the {stage} of all {len(self.partitions):,} partitions",
                found=f"{len(missing):,} not built: {first_five(missing)}",
                remedy=f"materialize {dataset.name}/{stage} for them, or run `tokflow run`",
            )
        files = [
            self.open_sequences(key, of.packing) if stage == "sequences" else self.open_split(key)
            for key, of in inputs.items()
        ]
        return make_parts(
            dataset.split.parts,
            export_details(self),
            files,
            dataset.packing_of(config),
            order=dataset.shuffle.of_export,
            is_packed=config.layout.is_packed,
        )
