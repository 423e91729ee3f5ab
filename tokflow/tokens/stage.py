"""The stage that tokenizes raw files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokflow.documents import DocumentsConfig, is_accepted, ranges
from tokflow.pools.pool import Advance
from tokflow.raw import RawPartition
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, Writer
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.unfinished import segments_folder
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.stage import encoding_of
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, TokenizerConfig
from tokflow.tokens.shard import (
    TokenShard,
    open_token_shard,
    tokens_recipe,
    write_token_shard,
)
from tokflow.tokens.shard_files import (
    ShardSegment,
    join_segments,
    may_have_segments,
    segments_of,
)

ABOUT = """\
The token ids of each raw file, documents end to end. A table beside them has a row for each \
document: where it begins and how long it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensWriter(Writer):
    """The writer of a token shard and of its segments; goes to another process as it is."""

    raw: RawPartition
    documents: DocumentsConfig
    encoding: Encoding
    dataset: str
    recipe: Recipe
    """That of the shard, or `begun`."""
    begun: Recipe | None = None
    """The recipe with stamps in place of checksums, where raw files were not read yet, or segments
    are there that were begun before they were."""

    def write(self, folder: Path, progress: Advance) -> None:
        """Write the shard, as `write_token_shard` does."""
        self.write_share(None, folder, progress)

    def write_share(self, share: ShardSegment | None, folder: Path, progress: Advance) -> None:
        """Write a segment of the shard, or all of it."""
        write_token_shard(
            self.raw,
            self.documents,
            self.encoding,
            folder,
            dataset=self.dataset,
            recipe=share.recipe if share else self.recipe,
            segment=share,
            progress=progress,
        )

    def shares(self) -> list[ShardSegment]:
        """Return the segments that the shard of a large raw file is made of; of others none."""
        return segments_of(self.raw, self.documents, self.recipe)

    def join(self, shares: Sequence[StoredOutput], folder: Path) -> None:
        """Make the shard of its segments, as `join_segments` does."""
        raw, documents, recipe = self.raw, self.documents, self.recipe
        join_segments(shares, folder, raw=raw, documents=documents, recipe=recipe)


class TokensStage(Stage):
    """The token shard of each raw file, or group of them."""

    name = "tokens"
    cost = Cost(0.005, 1 / 40e6)
    has_engine = True

    def variants(self, dataset: DatasetConfig) -> Mapping[str, DocumentsConfig]:
        """Return the config of the documents."""
        return {"": dataset.of(DocumentsConfig)}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the raw files of the partition, and the tokenizer."""
        return [Input(stage="raw"), Input(stage="tokenizer")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a shard: its raw files, how they are read, and the tokenizer."""
        documents, config = making.of(DocumentsConfig), making.of(TokenizerConfig)
        return tokens_recipe(
            making.graph.raw(making.key), documents, config, making.opened("tokenizer")
        )

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the shard of any raw file."""
        config = dataset.of(DocumentsConfig), dataset.of(TokenizerConfig)
        return tokens_recipe(None, *config, None)

    def writer(self, making: Making) -> TokensWriter:
        """Return what makes a shard; a verdict about gigatoken is made known to all machines."""
        raw, documents = making.graph.raw(making.key), making.of(DocumentsConfig)
        tokenizer: Tokenizer = making.opened("tokenizer")
        if tokenizer.verdict is not None:
            spread_verdict(tokenizer)
        begun = None
        if not raw.is_hashed or may_have_segments(raw, documents):
            begun = tokens_recipe(raw.by_stamp, documents, making.of(TokenizerConfig), tokenizer)
            segments = segments_folder(making.place / begun.fingerprint[:16])
            begun = None if raw.is_hashed and not segments.is_dir() else begun
        return TokensWriter(
            raw=raw,
            documents=documents,
            encoding=encoding_of(making),
            dataset=making.graph.dataset.name,
            recipe=begun or making.recipe,
            begun=begun,
        )

    def largest_task(self, making: Making, num_bytes: int) -> int:
        """Return the text of one range, where the file is read in ranges."""
        is_cut = may_have_segments(making.graph.raw(making.key), making.of(DocumentsConfig))
        return min(num_bytes, ranges.RANGE_BYTES) if is_cut else num_bytes

    def open(self, stored: StoredOutput, inputs: Opened) -> TokenShard:
        """Return the shard."""
        return open_token_shard(stored)

    def refused(self, counts: Mapping[str, int], dataset: DatasetConfig) -> str | None:
        """Return what a shard contains that is an error now: rejects, special tokens. Its bytes are
        right, but it was made when these were set aside, or were plain text."""
        documents, config = dataset.of(DocumentsConfig), dataset.of(TokenizerConfig)
        num_rejects, num_special = counts["num_rejects"], counts["num_special_tokens_in_text"]
        if not is_accepted(documents, num_rejects=num_rejects):
            return f"{num_rejects:,} in rejects.jsonl, more than documents.on_bad_document allows"
        if num_special and config.special_tokens_in_text == "error":
            return f"{num_special:,} special tokens in texts, where that is an error"
        return None

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the tags of raw numbers and tables."""
        return ["numpy", "parquet"]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return ABOUT


TOKENS = TokensStage()
