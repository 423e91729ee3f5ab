"""The stage that tokenizes raw files: documents -> tokens.bin, documents.parquet, of chats
loss_mask.bin."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokflow.documents import (
    Batch,
    DocumentsConfig,
    DocumentSource,
    Reject,
    is_accepted,
    kind_of_files,
    ranges,
)
from tokflow.pools.machine import in_order, read_ahead
from tokflow.pools.pool import Advance
from tokflow.raw import RawPartition
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, Writer
from tokflow.store.atomic import segments_folder
from tokflow.store.engine_verdicts import spread_verdict
from tokflow.store.manifest import Manifest, Recipe, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, TokenizerConfig
from tokflow.tokens.encoder import DocumentEncoder
from tokflow.tokens.loss_mask import TokenBatch
from tokflow.tokens.shard import TokenShard, tokens_recipe
from tokflow.tokens.shard_files import (
    LOSS_MASK_NAME,
    NUM_LINES,
    TEXT_DIGEST,
    TOKENS_NAME,
    ShardSegment,
    ShardWriter,
    bytes_of,
    join_segments,
    may_have_segments,
    reason_of,
    rejects_by_reason,
    run_facts,
    text_bytes,
)

ABOUT = """\
The token ids of each raw file, documents end to end. A table beside them has a row for each \
document: where it begins and how long it is."""

BATCH_BYTES = 8_000_000
"""Text tokenized at once. Batches of 2 MB take gigatoken up to a third more processor time, and it
never uses more than one core for them."""

THREADED_BYTES = 1_000_000
"""Smaller raw files are tokenized in one thread: starting more takes as long."""

LARGE_BYTES = 32_000_000
"""Text of a batch, which is of one document then, beside which no other is read or written."""


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
    batch_bytes: int = BATCH_BYTES

    def write(self, share: ShardSegment | None, folder: Path, progress: Advance) -> None:
        """Write a segment of the shard, or all of it, into the empty `folder`, manifest last.

        Its bytes depend on nothing but the raw file, the configs and the tokenizer.

        Raises: BadDocumentError, RawFileError, TokenizerError, CorruptOutputError (a file of the
        tokenizer is damaged), EngineDiffersError (gigatoken turns out to be wrong on a document).
        """
        started = time.perf_counter()
        raw, documents, encoding = self.raw, self.documents, self.encoding
        source = DocumentSource(raw.paths, documents, within=share.range if share else None)
        render = open_renderer(documents, encoding.tokenizer)
        encoder, rejects = DocumentEncoder(source, documents, encoding, render), list[Reject]()

        def reject(path: Path, bad: Reject) -> None:
            key = raw.by_path[path].key if raw.is_group else None
            rejects.append(replace(bad, raw_file=key))

        batches = source.batches(
            batch_bytes=self.batch_bytes, on_reject=reject, render=render, encode=encoder.for_limit
        )
        with ExitStack() as opened:
            number = share.number if share else None
            writer = ShardWriter(opened, folder, source, documents, encoding.eos_id, number)
            _write_tokens(batches, encoder, writer, progress, num_bytes=raw.num_bytes)
        raw.check_unchanged(source.paths)
        recipe = share.recipe if share else self.recipe
        if share is None:  # raw files were read now
            recipe = replace(recipe, parents={**recipe.parents, "raw": raw.sha256})
        manifest = Manifest(
            recipe=recipe,
            dataset=self.dataset,
            partition=raw.key,
            counts={**self._counts(source, encoder, writer), "num_rejects": len(rejects)},
            details={
                **self._details(source, writer),
                **({NUM_LINES: source.num_lines} if share else {}),
                **rejects_by_reason([Counter(reason_of(of.reason) for of in rejects)]),
            },
            files=writer.entries(rejects),
        )
        seconds, engine = time.perf_counter() - started, encoder.engine
        facts = run_facts(raw, engine.name, engine.reason, manifest.counts, seconds)
        write_manifest(folder, manifest, run=facts)

    def _counts(
        self, source: DocumentSource, encoder: DocumentEncoder, writer: ShardWriter
    ) -> dict[str, int]:
        encoding, counts = self.encoding, {**writer.counts, **encoder.lost}
        counts["num_special_tokens_in_text"] = encoder.num_special_tokens
        if encoding.eos_id is not None:
            without_eos = 0 if encoding.config.eos_of_empty else writer.num_without_tokens
            of_each = 1 + (encoding.bos_id == encoding.eos_id)  # two where BOS has the same id
            ending = of_each * (counts["num_documents"] - without_eos)
            counts |= {"num_eos": writer.num_eos, "num_eos_in_text": writer.num_eos - ending}
        if self.documents.transform is not None:
            counts |= {"num_records": source.num_records, "num_left_out": source.num_left_out}
        if writer.kept is not None:
            counts["num_lost_values"] = writer.kept.num_lost_values
        if self.documents.document_per == "separator":
            counts["num_uncut_files"] = source.num_uncut_files
        return counts

    def _details(self, source: DocumentSource, writer: ShardWriter) -> dict[str, Any]:
        raw, encoding, tokenizer = self.raw, self.encoding, self.encoding.tokenizer
        described = raw.files[0].described
        if raw.is_group:
            files = zip(map(raw.by_path.__getitem__, source.paths), source.num_rows, strict=True)
            described = {
                "files": [
                    {"raw_file": of.key, "sha256": of.sha256, "num_rows": num_rows, **of.described}
                    for of, num_rows in files
                ]
            }
        return {
            "dtype": tokenizer.dtype.str,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": encoding.eos_id,
            "eos_token": None if encoding.eos_id is None else tokenizer.eos_token,
            "bos_id": encoding.bos_id,
            "bos_token": None if encoding.bos_id is None else tokenizer.bos_token,
            **described,
            TEXT_DIGEST: writer.texts.hexdigest(),
        }

    def shares(self) -> list[ShardSegment]:
        """Return the segments that the shard of much text is made of; of others none."""
        raw, documents = self.raw, self.documents
        if not may_have_segments(raw, documents):
            return []
        if len(raw.files) == 1:
            found = ranges.ranges_of(raw.paths[0], documents, range_bytes=ranges.RANGE_BYTES)
        else:  # of files
            found = ranges.gathered(text_bytes(raw, documents), ranges.RANGE_BYTES)
        return [ShardSegment(number, each, self.recipe) for number, each in enumerate(found)]

    def join(self, shares: Sequence[StoredOutput], folder: Path) -> None:
        """Make the shard of its segments, as `join_segments` does."""
        raw, documents, recipe = self.raw, self.documents, self.recipe
        join_segments(shares, folder, raw=raw, documents=documents, recipe=recipe)


def _write_tokens(
    batches: Iterable[Batch],
    encoder: DocumentEncoder,
    writer: ShardWriter,
    progress: Advance,
    *,
    num_bytes: int,
) -> None:
    """Read, encode, and add BOS and EOS and write, each overlapped with the next if it pays.

    The calling thread does nothing but encode. A large document is alone in memory. Under a limit
    of tokens, encoding is done where documents are read.
    """

    def encoded(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Callable[[], TokenBatch]]]:
        for batch in batches:
            yield batch, encoder.encode(batch)
            del batch

    def finish(of: tuple[Batch, Callable[[], TokenBatch]]) -> None:
        batch, add_ends = of
        tokens = add_ends()
        writer.add(batch, tokens)
        if encoder.lost:
            encoder.count_lost(batch.texts, tokens.token_ids)
        progress(len(batch.rows), bytes_of(batch))

    def is_large(batch: Batch) -> bool:
        return bytes_of(batch) > LARGE_BYTES

    counted = map(encoder.count, batches)
    if num_bytes < THREADED_BYTES:
        for batch in counted:
            finish((batch, encoder.encode(batch)))
        return
    with closing(read_ahead(counted, is_large=is_large)) as read:  # or its thread waits for ever
        for _ in in_order(
            finish, encoded(read), workers=1, depth=2, is_large=lambda of: is_large(of[0])
        ):
            pass


class TokensStage(Stage):
    """The token shard of each raw file, or group of them."""

    name = "tokens"
    config = DocumentsConfig
    cost = Cost(0.005, 1 / 40e6)
    has_engine = True

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the raw files of the partition, and the tokenizer."""
        return [Input(stage="raw"), Input(stage="tokenizer")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a shard: its raw files, how they are read, and the tokenizer."""
        return self._recipe(making, making.graph.raw(making.key))

    def _recipe(self, making: Making, raw: RawPartition) -> Recipe:
        documents, tokenizer = making.of(DocumentsConfig), making.opened("tokenizer")
        kind = *kind_of_files(documents, raw.sizes), may_have_segments(raw, documents)
        of_kind: Recipe = making.graph.shared(
            (self, documents.limit, kind),
            partial(tokens_recipe, raw, documents, making.of(TokenizerConfig), tokenizer),
        )
        return of_kind.with_parents({"raw": raw.sha256, "tokenizer": tokenizer.fingerprint})

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
            begun = self._recipe(making, raw.by_stamp)
            segments = segments_folder(making.place / begun.fingerprint[:16])
            begun = None if raw.is_hashed and not segments.is_dir() else begun
        return TokensWriter(
            raw=raw,
            documents=documents,
            encoding=making.graph.encoding,
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
        return TokenShard(stored)

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

    def spare_files(self, manifest: Manifest) -> list[str]:
        """Return the tokens and their loss mask, of which exports are made alone."""
        stems = [name.partition(".")[0] for name in (TOKENS_NAME, LOSS_MASK_NAME)]
        return [of for stem in stems for of in sorted(manifest.files) if of.startswith(stem)]

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the tags of raw numbers and tables."""
        return ["numpy", "parquet"]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return ABOUT


TOKENS = TokensStage()
