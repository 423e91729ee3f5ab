"""The raw files of a dataset that has its own, as they are at this moment."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from tokflow.documents import DocumentsConfig
from tokflow.errors import RawFileError, TokflowError
from tokflow.pipeline.limited import LimitedFiles
from tokflow.pipeline.output import NeededOutputs, Output
from tokflow.pipeline.partitions import group_files, list_files, positions_of
from tokflow.raw import Listing, Progress, RawFile, RawPartition, RawSource, read_raw_files
from tokflow.split.rule import FilePosition, SplitConfig
from tokflow.split.spans import Split, open_split, split_recipe
from tokflow.store.manifest import Recipe
from tokflow.tokenizers.sources import TokenizerSource, select_training_keys
from tokflow.tokens.shard import TokenShard, open_token_shard

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph


class OwnFiles:
    """The partitions of a dataset with raw files of its own.

    They have the methods of `Mixture`, of which `BuildGraph` says what they return. Each file is
    looked at once, when it is first asked for.
    """

    def __init__(self, graph: "BuildGraph") -> None:
        self._graph = graph
        self._dataset = graph.dataset
        self._raw_files: dict[str, RawFile] = {}
        self._tokens = NeededOutputs()

    def online(self, graph: "BuildGraph") -> "OwnFiles":
        """Return those of a graph that asks servers; what is known of this disk stays known."""
        found = OwnFiles(graph)
        found.listing = self.listing
        sources, raw_files = self.listing.sources, self._raw_files.items()
        found._raw_files = {
            key: raw
            for key, raw in raw_files
            if sources[key].is_local or (self._is_elsewhere and not sources[key].may_differ)
        }
        return found

    @cached_property
    def listing(self) -> Listing:
        """Everything that the patterns of the dataset match."""
        return list_files(self._dataset)

    @cached_property
    def listed(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition that there may be."""
        return group_files(self._dataset, self.listing.sources)

    @property
    def partitions(self) -> dict[str, tuple[RawSource, ...]]:
        """The raw files of each partition: those listed or, with a limit, those that it takes."""
        return self.listed if self.limited is None else self.limited.partitions

    @cached_property
    def limited(self) -> LimitedFiles | None:
        """The files that a limit of the whole dataset takes; None without such a limit."""
        is_limited = self._dataset.documents.limit.scope == "dataset"
        return LimitedFiles(self._graph) if is_limited else None

    def take_more(self) -> list[str]:
        """Take the files that follow those of a limit; return their keys."""
        return [] if self.limited is None else self.limited.advance()

    def forget_tokens(self) -> None:
        """Let go of what tokens decide that must be made again."""
        for name in ("limited", "_positions"):
            self.__dict__.pop(name, None)

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read."""
        documents, limited = self._dataset.documents, self.limited
        return documents.model_copy(update={"limit": limited.of(key)}) if limited else documents

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of one partition."""
        sources = self.listed.get(key) or self._unknown(key)
        return RawPartition(key, tuple(self.raw_file(source.key) for source in sources))

    @property
    def known_raw_files(self) -> tuple[RawFile, ...]:
        """Those that were looked at so far."""
        return tuple(self._raw_files.values())

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file."""
        if key not in self._raw_files:
            self._read([self.listing.sources.get(key) or self._unknown(key)])
        return self._raw_files[key]

    def _unknown(self, key: str) -> NoReturn:
        known, name = self.partitions, self._dataset.name
        raise RawFileError(
            where=f"{name}: {key}",
            expected="the key of a partition",
            found=f"none of that name among {len(known):,} such as {next(iter(known), None)!r}",
            remedy="put the file back, or name one that `tokflow plan` lists; the job "
            f"{name}_scan removes partitions without a file",
        )

    def read_raw_files(self, keys: Sequence[str], *, progress: Progress | None = None) -> None:
        """Look at the raw files of many partitions together."""
        sources = [source for key in keys for source in self.listed[key]]
        new = [
            of
            for of in sources
            if (of.is_local or self._is_elsewhere) and of.key not in self._raw_files
        ]
        with suppress(TokflowError, OSError):
            self._read(new, progress)

    @property
    def _is_elsewhere(self) -> bool:
        """True if the store is, so that a look at a raw file elsewhere fetches nothing of it."""
        return not self._dataset.store.is_here

    def _read(self, sources: Sequence[RawSource], progress: Progress | None = None) -> None:
        self._raw_files |= read_raw_files(
            sources,
            store=self._dataset.folder,
            of=self._dataset.store,
            progress=progress,
            offline=self._graph.offline,
            rehash=self._graph.rehash,
            as_read=self._dataset.documents.limit.ends_early,
        )

    def output(self, *_: str) -> Output | None:
        """Return None: the tokenizer and the tokens are the dataset's own."""
        return None

    def tokenizer_source(self) -> TokenizerSource:
        """Return what the tokenizer is made from."""
        config = self._dataset.tokenizer
        is_trained = config.kind == "trained"  # others are made without a look at the raw files
        keys = select_training_keys(config, list(self.listing.sources)) if is_trained else []
        return TokenizerSource(
            config=config,
            base=self._dataset.base,
            raw_files={key: self.raw_file(key) for key in keys},
            documents=self._dataset.documents.for_training,
        )

    def split_recipe(self, key: str) -> Recipe:
        """Return what decides the split of one partition."""
        return split_recipe(
            self._graph.tokens(key).fingerprint,
            self.split_config(key),
            self.position(key),
            self.partitions[key][0].key,
            shuffle_seed=self._dataset.shuffle.of_documents,
        )

    def split_config(self, key: str) -> SplitConfig:
        """Return the split of one partition, whose raw files are all of one part where parts take
        whole files."""
        first = self.partitions[key][0]
        return self._dataset.split.of_file(first.key, first.source_split)

    def position(self, key: str) -> FilePosition:
        """Return where a partition stands in the dataset; with scope file it does not matter."""
        if self._dataset.split.scope == "file":
            return FilePosition()
        return self._positions[key]

    @cached_property
    def _positions(self) -> dict[str, FilePosition]:
        self._tokens.check(map(self._graph.tokens, self.partitions))
        return positions_of(self._graph)

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one partition."""
        return open_token_shard(self._graph.tokens(key).open())

    def open_split(self, key: str) -> Split:
        """Return the split of one partition."""
        return open_split(self._graph.split(key).open(), self.open_tokens(key))
