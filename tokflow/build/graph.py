"""Which outputs a dataset must have: their fingerprints and folders, computed, never guessed."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, get_args

from tokflow.build.dataset import Dataset
from tokflow.documents import format_of_name
from tokflow.errors import (
    ConfigError,
    CorruptOutputError,
    MissingOutputError,
    RawFileError,
    TokflowError,
    first_five,
    nearest,
)
from tokflow.exports import ExportConfig, Part, export_recipe
from tokflow.exports.texts import TextSource
from tokflow.raw import Listing, RawFile, RawSource, list_raw, read_raw_file, read_raw_files
from tokflow.sequences.segments import FileSequences, open_sequences, sequences_recipe
from tokflow.split.rule import FilePosition, SplitConfig
from tokflow.split.spans import Split, open_split, split_recipe
from tokflow.store.manifest import Manifest, Recipe, read_intact
from tokflow.store.verdicts import write_verdict
from tokflow.tokenizers.encoding import Encoding, resolve_encoding
from tokflow.tokenizers.sources import TokenizerSource, select_training_keys, tokenizer_recipe
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard, open_token_shard, refused, tokens_recipe

Stage = Literal["raw", "tokenizer", "tokens", "split", "sequences", "export"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which data goes through them."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output as it must be; whether it has been made is another question."""

    dataset: str
    stage: Stage
    name: str
    """The partition key; of an export, its name; of the tokenizer, `tokenizer`."""
    recipe: Recipe
    folder: Path
    refused: Callable[[Mapping[str, int]], str | None] = lambda _: None
    """Says of its counts what is in it that the config makes an error; None: nothing."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its recipe."""
        return self.recipe.fingerprint

    @property
    def is_made(self) -> bool:
        """Whether the finished output is in the store, with all its files, and allowed.

        Raises: ForeignOutputError.
        """
        try:
            return self.find() is not None
        except CorruptOutputError:
            return False

    def find(self) -> Manifest | None:
        """Return its manifest; None where it is not in the store, or is not allowed.

        Raises: CorruptOutputError where it is damaged: it is made again, as if it were not there;
        ForeignOutputError where a newer tokflow made it: it is left as it is.
        """
        manifest = self._stored()
        return None if manifest is None or self.refused(manifest.counts) else manifest

    def _stored(self) -> Manifest | None:
        """Return its manifest, whatever is in it; None where it is not in the store."""
        try:
            manifest = read_intact(self.folder)
        except MissingOutputError:
            return None
        if (manifest.fingerprint, manifest.stage) != (self.fingerprint, self.stage):
            raise CorruptOutputError(
                where=self.folder,
                expected=f"{self.stage} with the fingerprint {self.fingerprint[:16]}…",
                found=f"{manifest.stage} with {manifest.fingerprint[:16]}…",
                remedy="run `tokflow run`, which makes it again",
            )
        return manifest

    @property
    def title(self) -> str:
        """`tokens of a.jsonl`, `export bin` or `tokenizer`: how messages call it."""
        if self.stage == "tokenizer":
            return self.stage
        return f"{self.stage} {'' if self.stage == 'export' else 'of '}{self.name}"

    @property
    def asset(self) -> str:
        """The Dagster asset that makes it, with the partition it is of."""
        if self.stage == "export":
            return f"{self.dataset}/exports/{self.name}"
        partition = "" if self.stage == "tokenizer" else f" (partition {self.name})"
        return f"{self.dataset}/{self.stage}{partition}"

    def manifest(self) -> Manifest:
        """Return its manifest.

        Raises: MissingOutputError that says which asset to materialize; CorruptOutputError;
        ForeignOutputError.
        """
        manifest = self._stored()
        found = "none in the store for this file and this config"
        remedy = f"materialize {self.asset}, or run `tokflow run`"
        if manifest is not None:
            if (refused := self.refused(manifest.counts)) is None:
                return manifest
            found = f"one with {refused}"
            remedy = "correct the raw file, or the config; `tokflow run` names the first"
        expected = f"an output with fingerprint {self.fingerprint[:7]}"
        raise MissingOutputError(where=self.asset, expected=expected, found=found, remedy=remedy)


class BuildGraph:
    """The outputs of a dataset, as its config and its raw files of this moment decide them.

    A snapshot: raw files are looked at once, when first asked for. With `offline`, those that are
    elsewhere are taken as they were fetched last, and no server is asked. With `rehash` those on
    this disk are hashed, whatever is remembered of them.
    """

    def __init__(self, dataset: Dataset, *, offline: bool = False, rehash: bool = False) -> None:
        self.dataset = dataset
        self.offline = offline
        self.rehash = rehash
        self.has_new_verdict = False
        """Whether gigatoken was found wrong since, so that other tokens are expected now."""
        self._raw_files: dict[str, RawFile] = {}

    @cached_property
    def listing(self) -> Listing:
        """Everything that the patterns of the dataset match.

        Raises: ConfigError, also for a part of the split that takes files of which there is none.
        """
        dataset = self.dataset
        listing = list_raw(
            dataset.raw, base=dataset.base, store=dataset.folder, format_of=format_of_name
        )
        _check_files_of_parts(dataset.split, list(listing.sources))
        return listing

    @property
    def sources(self) -> dict[str, RawSource]:
        """The raw files by partition key, in the order of all outputs."""
        return self.listing.sources

    def selected_keys(self, partitions: Sequence[str] | None) -> list[str]:
        """Return the partition keys asked for, all by default, in the order of all outputs.

        Raises: ConfigError for a key that is no raw file.
        """
        sources = self.sources
        unknown = [key for key in partitions or () if key not in sources]
        if unknown:
            raise ConfigError(
                where="--partition",
                expected=f"a raw file of {self.dataset.name}: {first_five(list(sources))}",
                found=repr(unknown[0]),
                remedy="name one of them",
            )
        return [key for key in sources if partitions is None or key in partitions]

    def raw_file(self, key: str) -> RawFile:
        """Return one raw file, fetched if it is elsewhere.

        Raises: RawFileError.
        """
        if key not in self._raw_files:
            if key not in self.sources:
                raise RawFileError(
                    where=f"{self.dataset.name}: {key}",
                    expected="the partition key of a raw file",
                    found="none of that name among "
                    f"{len(self.sources):,} files such as {next(iter(self.sources), None)!r}",
                    remedy="put the file back, or name one that `tokflow plan` lists",
                )
            self._raw_files[key] = read_raw_file(
                self.sources[key],
                store=self.dataset.folder,
                offline=self.offline,
                rehash=self.rehash,
            )
        return self._raw_files[key]

    def read_raw_files(
        self, keys: Sequence[str], *, progress: Callable[[int, int | None], None] | None = None
    ) -> None:
        """Look at many raw files of this disk together, which is faster than one by one.

        If one of them is bad nothing is raised here: `raw_file` does when it is asked for it.
        """
        sources = [
            source
            for key in keys
            if (source := self.sources[key]).is_local and key not in self._raw_files
        ]
        with suppress(TokflowError, OSError):
            self._raw_files |= read_raw_files(
                sources,
                store=self.dataset.folder,
                progress=progress,
                offline=self.offline,
                rehash=self.rehash,
            )

    def tokenizer_source(self) -> TokenizerSource:
        """Return what the tokenizer is made from."""
        config = self.dataset.tokenizer
        is_trained = config.kind == "trained"  # others are made without a look at the raw files
        keys = select_training_keys(config, list(self.sources)) if is_trained else []
        return TokenizerSource(
            config=config,
            base=self.dataset.base,
            raw_files={key: self.raw_file(key) for key in keys},
            documents=self.dataset.documents,
        )

    @cached_property
    def tokenizer_output(self) -> Output:
        """The tokenizer's folder."""
        return self._output("tokenizer", "tokenizer", tokenizer_recipe(self.tokenizer_source()))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which must have been made."""
        output = self.tokenizer_output
        trust = self.dataset.tokenizer.trust_remote_code
        return tokenizer_of(output.manifest(), output.folder, trust_remote_code=trust)

    @property
    def encoding(self) -> Encoding:
        """The tokenizer, which must have been made, as the dataset's config uses it.

        Raises: TokenizerError where it has no such EOS or BOS.
        """
        return resolve_encoding(self.dataset.tokenizer, self.tokenizer)

    def disqualify(self, difference: str) -> None:
        """Keep in the store what gigatoken did wrong with the tokenizer, and expect the tokens of
        the reference from now on."""
        write_verdict(self.tokenizer.folder, self.tokenizer.fingerprint, difference)
        self.has_new_verdict = True
        del self.tokenizer

    def tokens(self, key: str) -> Output:
        """Return the token shard of one file."""
        documents, encoding = self.dataset.documents, self.encoding
        recipe = tokens_recipe(self.raw_file(key), documents, encoding)
        of_config = partial(refused, documents=documents, encoding=encoding)
        return replace(self._output("tokens", key, recipe), refused=of_config)

    def split(self, key: str) -> Output:
        """Return the split of one file."""
        return self._output(
            "split",
            key,
            split_recipe(self.tokens(key).fingerprint, self.dataset.split, self.position(key), key),
        )

    def sequences(self, key: str) -> Output:
        """Return the sequences of one file."""
        return self._output(
            "sequences",
            key,
            sequences_recipe(self.split(key).fingerprint, self.dataset.packing),
        )

    def export(self, config: ExportConfig) -> Output:
        """Return one export of all files."""
        return self._output(
            "export",
            config.name,
            export_recipe(config, self.dataset.packing, self.export_parents(config)),
        )

    def export_parents(self, config: ExportConfig) -> dict[str, str]:
        """Return the fingerprint, by partition key, of what an export is made from."""
        output = self.sequences if config.layout.made_of == "sequences" else self.split
        return {key: output(key).fingerprint for key in self.sources}

    def position(self, key: str) -> FilePosition:
        """Return where a file stands in the dataset; with scope file it does not matter."""
        if self.dataset.split.scope == "file":
            return FilePosition()
        return self._positions[key]

    def open_tokens(self, key: str) -> TokenShard:
        """Return the token shard of one file, which must have been made."""
        output = self.tokens(key)
        output.manifest()
        return open_token_shard(output.folder)

    def open_split(self, key: str) -> Split:
        """Return the split of one file, which must have been made."""
        output = self.split(key)
        output.manifest()
        return open_split(output.folder, self.open_tokens(key))

    def open_sequences(self, key: str) -> FileSequences:
        """Return the sequences of one file, which must have been made."""
        output = self.sequences(key)
        output.manifest()
        return open_sequences(output.folder, self.open_split(key))

    def parts(self, config: ExportConfig) -> Sequence[Part]:
        """Return what an export is made from; every listed file must have been built.

        Raises: MissingOutputError that names the first files that have not.
        """
        is_packed = config.layout.made_of == "sequences"
        output = self.sequences if is_packed else self.split
        missing = [key for key in self.sources if not output(key).is_made]
        if missing:
            stage = "sequences" if is_packed else "split"
            raise MissingOutputError(
                where=f"{self.dataset.name}/exports/{config.name}",
                expected=f"the {stage} of all {len(self.sources):,} raw files",
                found=f"{len(missing):,} not built: {first_five(missing)}",
                remedy=f"materialize {self.dataset.name}/{stage} for them, or run `tokflow run`",
            )
        sequences = [self.open_sequences(key) for key in self.sources] if is_packed else []
        splits = (
            [file.split for file in sequences]
            if is_packed
            else [self.open_split(key) for key in self.sources]
        )
        has_texts = config.layout.made_of == "texts"
        return [
            Part(
                name=name,
                splits=splits,
                sequences_of=sequences,
                text_source=self._text_source() if has_texts else None,
                packing=self.dataset.packing,
                eos_id=self.encoding.eos_id,
                bos_id=self.encoding.bos_id,
                vocab_size=self.tokenizer.vocab_size,
                dtype=self.tokenizer.dtype,
            )
            for name in self.dataset.split.parts
        ]

    def _text_source(self) -> TextSource:
        return TextSource(
            raw_files={key: self.raw_file(key) for key in self.sources},
            documents=self.dataset.documents,
            tokenizer=self.tokenizer,
        )

    @cached_property
    def _positions(self) -> dict[str, FilePosition]:
        counts = {key: self.tokens(key).manifest().counts for key in self.sources}
        is_drawn = self.dataset.split.form == "fraction"
        total = sum(of_file["num_documents"] for of_file in counts.values()) if is_drawn else 0
        positions = {}
        first_char = first_document = 0
        for key, of_file in counts.items():
            positions[key] = FilePosition(
                first_char=first_char, first_document=first_document, total_documents=total
            )
            first_char += of_file["num_chars"]
            first_document += of_file["num_documents"]
        return positions

    def _output(self, stage: Stage, name: str, recipe: Recipe) -> Output:
        folder = self.dataset.folder / ("exports" if stage == "export" else stage)
        if stage != "tokenizer":
            folder /= name
        return Output(self.dataset.name, stage, name, recipe, folder / recipe.fingerprint[:16])


def _check_files_of_parts(config: SplitConfig, keys: Sequence[str]) -> None:
    for name, part in config.parts.items():
        if part.files is not None and not fnmatch.filter(keys, part.files):
            raise ConfigError(
                where=f"split.parts.{name}.files",
                expected="a pattern that matches the partition key of a raw file",
                found=f"{part.files!r}, and the raw files are {first_five(keys)}",
                remedy=nearest(part.files, keys) or "correct the pattern",
            )
