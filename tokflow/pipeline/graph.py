"""Outputs that a dataset must have: their recipes and folders, computed, never guessed."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, TokflowError, first_five
from tokflow.exports.growing_bin import TokensAhead
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.output import Output
from tokflow.pipeline.raw_files import (
    LimitedFiles,
    grouped_files,
    list_files,
    unknown_key,
    without,
    without_known,
)
from tokflow.pipeline.results import check_supervised
from tokflow.pipeline.stages import needed_for, token_readers
from tokflow.raw import BadFile, Listing, Progress, RawFile, RawPartition, RawSource, read_raw_files
from tokflow.split import Split
from tokflow.split.permutation import DOCUMENT_ORDER, shuffle_fields
from tokflow.split.stage import SPLIT
from tokflow.stage import Stage
from tokflow.store.engine_verdicts import write_verdict
from tokflow.store.remembered import ManifestIndex, ManifestIndexes
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, resolve_encoding, tokenizer_of
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.stage import TOKENS

T = TypeVar("T")


class BuildGraph:
    """The outputs of a dataset, as its config and its raw files of this moment decide them.

    A snapshot: raw files are looked at once, when first asked for. With `offline` remote ones are
    taken as they were fetched last, and servers are asked only what a pattern matches now. With
    `rehash` local raw files are hashed, whatever is remembered of them; with `reads_once` those of
    a dataset of which nothing was built are hashed when their documents are read.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        offline: bool = False,
        rehash: bool = False,
        reads_once: bool = False,
        is_refreshed: bool = False,
    ) -> None:
        """`is_refreshed`: the manifests of other machines were just fetched."""
        if not is_refreshed:
            dataset.store.refresh(dataset.folder)
        self.dataset, self.store, self.folder = dataset, dataset.store, dataset.folder
        self.stages: tuple[Stage, ...] = dataset.stages
        self.steps: Mapping[str, Stage] = {of.name: of for of in self.stages}
        """The stages by their names."""
        self.offline, self.rehash, self.reads_once = offline, rehash, reads_once
        self.known_files: dict[str, RawFile] = {}
        """Raw files that were identified so far, by their keys."""
        self.ahead: TokensAhead | None = None
        """The file that tokens are copied to as they are made, while an export of them is built."""
        self._outputs: dict[tuple[str, str, str], Output] = {}
        self._shared: dict[Hashable, Any] = {}
        self.indexes = ManifestIndexes(self.folder, are_used=not (self.store.is_cached or rehash))
        self.sections: dict[type, Any] = {}
        self._missing: dict[str, Output] = {}
        """By stage: the first output that was missing where those of all partitions are needed."""
        self.made_for: BuildGraph = self
        """The graph that has the exports: that of the mixture, of a graph of a source in it."""
        self.of_sources: Mapping[str, BuildGraph] = {}
        """The graphs of the datasets of a mixture by their names; none of one with raw files."""
        self.takes: Mapping[str, BuildGraph] = {}
        """The same by the names of sources, of which several can be strata of one dataset."""

    def online(self) -> "BuildGraph":
        """Return the graph of a build after a plan, which looks at raw files elsewhere again."""
        graph = BuildGraph(self.dataset, reads_once=self.reads_once, is_refreshed=True)
        graph.indexes, graph.matched, bad = self.indexes, self.matched, self.listing.bad
        asked_again = {key for key, of in bad.items() if of.source.may_differ}
        stay = {key: of for key, of in bad.items() if key not in asked_again}
        graph.listing = without(self.matched, stay) if asked_again else self.listing
        for key, raw in self.known_files.items():
            source = self.listing.sources.get(key)
            if source and (source.is_local or (self.store.is_cached and not source.may_differ)):
                graph.known_files[key] = raw
        return graph

    def at(self, key: str) -> tuple["BuildGraph", str]:
        """Return the graph that has a partition, or a raw file, and its key there. Raises:
        RawFileError for one of no source of a mixture."""
        return self, key

    @cached_property
    def matched(self) -> Listing:
        """Everything that the patterns of the dataset match. Raises: as `list_files`."""
        return list_files(self.dataset)

    @cached_property
    def listing(self) -> Listing:
        """The same without files that are known to be bad."""
        if self.dataset.raw.on_bad_file == "error":
            return self.matched
        return without_known(self.matched, self.dataset, self.identified)

    @property
    def bad_files(self) -> dict[str, str]:
        """Why each raw file is left out that cannot be read, by its key, sorted."""
        return {key: of.reason for key, of in sorted(self.listing.bad.items())}

    def leave_out(self, bad: Mapping[str, BadFile]) -> bool:
        """Take raw files for not there; return whether that may change tokens of others."""
        self.listing = without(self.listing, bad)
        is_alone = not (self.dataset.raw.group or self.limited)
        is_alone &= self.dataset.tokenizer.kind != "trained"
        stays = {of.name for of in self.stages if is_alone and (of.decides_all or of.has_engine)}
        more = () if is_alone else ("tokenizer", "limited")
        self._forget("listed", "makes_exports", *more, stays=stays)
        return not is_alone

    def _forget(self, *properties: str, stays: Collection[str]) -> None:
        """Look for all anew but the outputs of some stages."""
        self._outputs = {at: of for at, of in self._outputs.items() if at[0] in stays}
        self._missing.clear()
        self._shared = {}
        for name in properties:
            self.__dict__.pop(name, None)

    @property
    def sources(self) -> dict[str, RawSource]:
        """The raw files by their keys, sorted."""
        return self.listing.sources

    @property
    def partitions(self) -> Mapping[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key, in the order of all outputs: those listed or,
        with a limit of the whole dataset, those that it is known to take. Raises: as `listed`."""
        return self.listed if self.limited is None else self.limited.partitions

    @cached_property
    def listed(self) -> Mapping[str, tuple[RawSource, ...]]:
        """The raw files of each partition that there may be, by its key, sorted. Raises: as
        `list_files`, and ConfigError where they cannot be grouped as `raw.group` says."""
        return grouped_files(self.dataset, self.listing)

    @cached_property
    def limited(self) -> LimitedFiles | None:
        """The files that a limit of the whole dataset takes; None without one."""
        if self.dataset.documents.limit.scope != "dataset":
            return None

        def counts_of(key: str) -> Mapping[str, int] | None:
            tokens = self.tokens(key)  # the first costs no checksum
            return None if tokens.is_first_of_kind or not tokens.is_made else tokens.counts

        def look_ahead(keys: list[str]) -> None:
            self.read_raw_files([key for key in keys if not self.tokens(key).is_first_of_kind])

        return LimitedFiles(self.dataset, self.listed, counts_of, look_ahead)

    def take_more(self) -> list[str]:
        """Return the keys of partitions that are known now that more tokens are there."""
        return [] if self.limited is None else self.limited.advance()

    def selected_keys(self, partitions: Sequence[str] | None) -> list[str]:
        """Return the partition keys asked for, by default all, in the order of the dataset.

        Raises: ConfigError for one that it does not have.
        """
        known = self.partitions
        if unknown := [key for key in partitions or () if key not in known]:
            more = "; run without --partition to take the files that follow, until "
            more += "documents.limit is reached"
            raise ConfigError(
                where="--partition",
                expected=f"a partition of {self.dataset.name}: {first_five(list(known))}",
                found=repr(unknown[0]),
                remedy="name one of them" + (more if self.limited else ""),
            )
        asked = known if partitions is None else set(partitions)
        return [key for key in known if key in asked]

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read, up to the limit that is left to it."""
        graph, of_source = self.at(key)
        documents, limited = graph.dataset.documents, graph.limited
        if limited is None:
            return documents
        return documents.model_copy(update={"limit": limited.of(of_source)})

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of one partition, fetched if remote. Raises: RawFileError."""
        graph, of_source = self.at(key)
        if (sources := graph.listed.get(of_source)) is None:
            raise unknown_key(of_source, graph.listed, graph.listing, name=graph.dataset.name)
        return RawPartition(of_source, tuple(graph.raw_file(of.key) for of in sources))

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file, as `raw` does."""
        graph, of_source = self.at(key)
        if of_source not in graph.known_files:
            if (source := graph.sources.get(of_source)) is None:
                raise unknown_key(of_source, graph.listed, graph.listing, name=graph.dataset.name)
            graph.known_files |= graph.identified([source])
        return graph.known_files[of_source]

    def read_raw_files(self, keys: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the raw files of many partitions together, which is faster than one by one: those
        of this disk and, with a store at a URL, remote ones, of which nothing is fetched. A bad one
        raises nothing before `raw` is called."""
        sources = [source for key in keys for source in self.listed[key]]
        is_far = self.store.is_cached
        new = [of for of in sources if (of.is_local or is_far) and of.key not in self.known_files]
        with suppress(TokflowError, OSError):
            self.known_files |= self.identified(new, progress)

    def identified(
        self, sources: Sequence[RawSource], progress: Progress | None = None
    ) -> dict[str, RawFile]:
        """Return raw files by their keys, fetched if remote. Raises: RawFileError."""
        ends_early = self.dataset.documents.limit.ends_early
        # Tokens are made of all that is in them, nothing reads them before, or was built of them.
        is_read_at_once = not (self.store.is_cached or ends_early)
        is_read_at_once &= self.dataset.tokenizer.kind != "trained"
        is_built = any((self.folder / of.path).is_dir() for of in (TOKENIZER, TOKENS))
        return read_raw_files(
            sources,
            store=self.folder,
            of=self.store,
            progress=progress,
            offline=self.offline,
            rehash=self.rehash,
            as_read=ends_early,
            reads_once=self.reads_once and is_read_at_once and not is_built,
        )

    def outputs(
        self, keys: Sequence[str] | None = None, *, until: str | None = None
    ) -> Iterator[Output]:
        """Yield every output of the partitions `keys`, by default of all, and of the dataset, in
        the order of the stages and of the keys: what an output is made from comes before it. Those
        of the sources of a mixture are not among them. `until`: only those of this stage, and what
        they are made from."""
        known = list(self.partitions) if keys is None else keys
        needed = None if until is None else needed_for([(until, "")], self.dataset)
        for step in self.stages:
            for output in self.outputs_of(step.name, known):
                if needed is None or (output.stage, output.variant) in needed:
                    yield output

    def outputs_of(self, stage: str, keys: Iterable[str]) -> Iterator[Output]:
        """Yield the outputs of a stage, those of raw files for the partitions `keys`."""
        if (step := self.steps.get(stage)) is not None:
            for variant in step.variants(self.dataset):
                for key in keys if step.is_of_file else ("",):
                    yield self.output(stage, key, variant)

    def output(self, stage: str, key: str = "", variant: str = "") -> Output:
        """Return one output."""
        if (place := (stage, key, variant)) not in self._outputs:
            if (step := self.steps.get(stage)) is None:
                raise LookupError(f"{self.dataset.name} has no stage {stage}")
            self._outputs[place] = Output(self, step, key, variant)
        return self._outputs[place]

    def has(self, output: Output) -> bool:
        """Return whether an output is still as it was when it was asked for."""
        return self._outputs.get((output.stage, output.key, output.variant)) is output

    def is_of_file(self, stage: str) -> bool:
        """Return whether each partition has an output of a stage."""
        step = self.steps.get(stage)
        return step is not None and step.is_of_file

    def named(self, stage: str, name: str, packing: str = "") -> Output:
        """Return one output by its name: a partition key, that of an export, or `tokenizer`."""
        if self.is_of_file(stage):
            return self.output(stage, name, packing)
        step = self.steps.get(stage)
        is_variant = step is not None and name in step.variants(self.dataset)
        return self.output(stage, variant=name if is_variant else "")

    def tokens(self, key: str) -> Output:
        """Return the token shard of one file."""
        return self.output(TOKENS.name, key)

    def split(self, key: str) -> Output:
        """Return the split of one file."""
        return self.output(SPLIT.name, key)

    def unbuilt(self, keys: Iterable[str]) -> list[str]:
        """Return the partitions of which something is missing that exports are made from."""
        last = [of for of in self.stages if of.is_of_file and of.variants(self.dataset)][-1]
        are_made = {key: [of.is_made for of in self.outputs_of(last.name, [key])] for key in keys}
        return [
            of for of in are_made if not all(are_made[of]) or self.lacks_tokens(self.tokens(of))
        ]

    def lacks_tokens(self, output: Output) -> bool:
        """Return whether files of an output were dropped that are needed again."""
        if not (output.is_made and output.manifest().dropped):
            return False
        readers = self.shared(token_readers, partial(token_readers, self.dataset))
        made = (self.output(stage, output.key, variant).is_made for stage, variant in readers)
        return self.made_for.makes_exports or not all(made)

    @cached_property
    def makes_exports(self) -> bool:
        """Whether something is to be made that all tokens are needed for."""
        steps = [of.name for of in self.stages if not of.is_of_file]
        outputs = (output for of in steps for output in self.outputs_of(of, ()))
        return not all(output.is_made for output in outputs if output.is_of_all_files)

    def check_made(self, stage: str, outputs: Iterable[Output]) -> None:
        """Raise the error of the first output of a stage that is not there; see `Output.manifest`.

        While one is missing it is looked at first, so that asking again for each of 100,000 files
        does not look at all 100,000 each time.
        """
        if (missing := self._missing.get(stage)) is not None:
            missing.manifest()
        for output in outputs:
            self._missing[stage] = output
            output.manifest()
        self._missing.pop(stage, None)

    def shared(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what outputs have in common, computed once; see `Graph`."""
        if key not in self._shared:
            self._shared[key] = compute()
        return cast(T, self._shared[key])

    def index(self, step: Stage) -> ManifestIndex | None:
        """Return the index of a stage's manifests; None of few, with `rehash`, and at a URL."""
        return self.indexes.of(step.name, self.listed) if step.is_of_file else None

    def write_indexes(self) -> None:
        """Keep for later graphs, also of a mixture's sources, the manifests that were read."""
        for graph in (self, *self.of_sources.values()):
            graph.indexes.write()

    def open(self, output: Output) -> Any:
        """Return an output, which must have been made, as its stage opens it."""
        if output.step.decides_all:
            return self.tokenizer
        return output.step.open(output.open(), output)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which must have been made."""
        may_run = self.dataset.tokenizer.trust_remote_code
        return tokenizer_of(self.output(TOKENIZER.name).open(), trust_remote_code=may_run)

    @property
    def encoding(self) -> Encoding:
        """The tokenizer, which must have been made, as the dataset's config uses it. Raises:
        TokenizerError where it has no such EOS or BOS."""
        return resolve_encoding(self.dataset.tokenizer, self.tokenizer)

    def token_details(self) -> dict[str, Any]:
        """Return what the manifest of each export says of token ids."""
        tokenizer, encoding = self.tokenizer, self.encoding
        return {
            "dtype": tokenizer.dtype.str,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": encoding.eos_id,
            "bos_id": encoding.bos_id,
        }

    def export_details(self) -> dict[str, Any]:
        """Return what the manifest of each export says of its tokens. Raises: ConfigError where
        they are of chats and none is supervised."""
        dataset, shards = self.dataset, [self.tokens(key).counts for key in self.partitions]
        if dataset.documents.is_chat:
            check_supervised(self, shards)
        return {
            **self.token_details(),
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "names": dataset.names.fields(),
            **shuffle_fields(dataset.shuffle.of_documents, DOCUMENT_ORDER),
            **dataset.shuffle.of_export.document_fields(),
            **({"commits": commits} if (commits := self.listing.commits) else {}),
            **({"bad_files": self.bad_files} if self.listing.bad else {}),
        }

    def disqualify(self, difference: str) -> None:
        """Keep in the store what gigatoken did wrong with the tokenizer, and expect the tokens of
        the reference from now on."""
        write_verdict(self.tokenizer, difference)
        self._forget("tokenizer", "limited", stays=[TOKENIZER.name])

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one file, which must have been made."""
        return cast(TokenShard, self.open(self.tokens(key)))

    def open_split(self, key: str) -> Split:
        """Return the split of one file, which must have been made."""
        return cast(Split, self.open(self.split(key)))
