"""Outputs compared with what they were made from: a token shard with its raw file, whose documents
are read again; splits and sequences with the same made again by their own stages' functions."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.verify.tokens import first_other_row, unequal
from tokflow.documents import Batch, DocumentsConfig, DocumentSource
from tokflow.pipeline.output import Output
from tokflow.pools.pool import ignore
from tokflow.raw import RawPartition
from tokflow.sequences.segments import FileSequences, write_sequences
from tokflow.split import (
    CUT_TOKENS_NAME,
    NOT_IN_STRATA,
    SPANS_NAME,
    CutEncoder,
    Split,
    write_split,
)
from tokflow.split.mixed_split import write_mixed_split
from tokflow.split.rule import LONGEST, NO_PART, NOT_TAKEN, FileSpans
from tokflow.store.integrity import Reading
from tokflow.store.listed_files import broken_file
from tokflow.store.manifest import read_manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.tables import one_array, read_table, to_numpy
from tokflow.tokenizers.chat.renderer import Renderer, open_renderer
from tokflow.tokenizers.engines import Engine, InText, ReferenceEngine
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.engines.reference import open_reference, reference_change
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, in_text_of
from tokflow.tokens import TokenSource
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.loss_mask import add_bos_eos
from tokflow.tokens.shard import TokenShard, with_tokens_of
from tokflow.tokens.shard_files import text_hashes

LOSSLESS_KINDS = frozenset({"bytes", "tiktoken", "trained"})
"""Kinds of tokenizers whose decoded tokens are the very text; the rest can normalise it."""

MAX_SAMPLE_CHARS = 200_000
"""Length of the longest document in a sample: the reference takes seconds for a longer one, whose
hash alone is compared."""

NUM_SAMPLES = 64

KEEP_OR_REMAKE = (
    "install the earlier version to keep these tokens; or remove the folders of the tokenizer and "
    "of the tokens, and a run makes both again"
)


def verify_against_raw(
    raw: RawPartition,
    shard: TokenShard,
    documents: DocumentsConfig,
    encoding: Encoding,
    *,
    num_samples: int | None = NUM_SAMPLES,
    max_characters: int | None = None,
    on_difference: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Return where the shard differs from the raw file that it was made from.

    Every document read has its row, length and text hash compared. `num_samples` of them, spread
    evenly and the same each time (None: all, very long ones in chunks), are tokenized by the
    reference engine and compared token by token, and, where the tokenizer loses nothing, decoded
    and compared with the text. Reading stops after `max_characters`. `on_difference` is called with
    the first difference in tokens of gigatoken, unless the reference has another version than when
    the tokenizer was saved.
    """
    table, render = shard.documents(), open_renderer(documents, encoding.tokenizer)
    num_chars = to_numpy(table["num_chars"])
    end = len(num_chars)  # or with the document that reaches the limit
    if max_characters is not None:
        end = min(end, int(np.searchsorted(np.cumsum(num_chars), max_characters)) + 1)
    chosen = np.arange(end)
    if num_samples is not None:
        chosen = np.unique(np.linspace(0, end - 1, num=min(num_samples, end)).astype(np.int64))
        chosen = chosen[num_chars[chosen] <= MAX_SAMPLE_CHARS]
    sample = _Sample(
        shard=shard,
        render=render,
        encoding=encoding,
        in_text=in_text_of(documents, encoding.config.special_tokens_in_text),
        chosen=chosen,
    )
    num_read, problems, source = 0, list[str](), DocumentSource(raw.paths, documents)
    for batch in source.batches(render=render, encode=with_tokens_of(table)):
        first, num_read = num_read, num_read + len(batch.rows)
        of_batch = table.slice(first, len(batch.rows))
        problems += _document_problems(shard, first, batch, of_batch)
        problems += [] if problems else sample.problems(first, batch, of_batch)
        if problems or (num_read >= end and max_characters is not None):
            break
    raw.check_unchanged()
    if sample.difference and "gigatoken" in shard.stored.run().get("engine", ""):
        on_difference(sample.difference)
    if not problems and num_read < end:
        num = shard.manifest.counts["num_documents"]
        sizes = f"expected the {num_read:,} documents of the raw file, found {num:,}"
        problems.append(f"{shard.folder}: {sizes}")
    is_whole = num_read == len(table) and max_characters is None
    return problems or list(_count_problems(shard, source, is_whole=is_whole))


def _count_problems(shard: TokenShard, source: DocumentSource, *, is_whole: bool) -> Iterator[str]:
    """Yield other records that a transform leaves out now; the first file of a group of which the
    shard has other rows, of those read."""
    left_out = shard.manifest.counts.get("num_left_out", 0), source.num_left_out
    if is_whole and left_out[0] != left_out[1]:
        expected = f"{left_out[1]:,} records left out by documents.transform"
        yield f"{shard.folder}: expected {expected}, found {left_out[0]:,}"
        return
    files = zip(shard.manifest.details.get("files", ()), source.num_rows, strict=False)
    for file, num_rows in files:
        if file["num_rows"] != num_rows:
            found = f"{num_rows:,} rows of {file['raw_file']}, found {file['num_rows']:,}"
            yield f"{shard.folder}: expected {found}"
            return


def _document_problems(
    shard: TokenShard, first: int, batch: Batch, table: pa.Table
) -> Iterator[str]:
    """Yield the first difference of documents read, of which the shard has `table`."""
    if len(table) < len(batch.rows):
        yield (
            f"{shard.folder}: expected all documents of the raw file, found {first + len(table):,}"
        )
        return
    columns = {"row": batch.rows, "num_chars": batch.num_chars}
    if batch.records is not None:
        columns["record"] = batch.records
    for name, expected in columns.items():
        found = to_numpy(table[name])
        if len(wrong := np.flatnonzero(expected != found)):
            index = int(wrong[0])
            yield (
                f"{shard.folder}: document {first + index:,}: expected {name} "
                f"{expected[index]:,} as in the raw file, found {found[index]:,}"
            )
            return
    if not text_hashes(batch.texts).equals(one_array(table["text_hash"])):
        last = first + len(table)
        yield f"{shard.folder}: documents {first:,} to {last:,}: the text is not the same"


@dataclass(kw_only=True)
class _Sample:
    """Compares the tokens of some documents with those of the reference."""

    shard: TokenShard
    render: Renderer | None
    encoding: Encoding
    in_text: InText
    chosen: npt.NDArray[np.int64]
    """Numbers of the documents, ascending."""
    difference: str | None = None
    """The last problem that was one of tokens which are not those of the same reference."""

    @cached_property
    def _reference(self) -> ReferenceEngine:
        return open_reference(self.encoding.tokenizer, in_text=self.in_text)

    @cached_property
    def _chunked(self) -> Engine:
        return open_engine(self.encoding.tokenizer, choice="reference", in_text=self.in_text)

    @cached_property
    def _tokens(self) -> TokenSource:
        return self.shard.tokens()

    @cached_property
    def _loss_mask(self) -> TokenSource:
        return self.shard.loss_mask()

    @cached_property
    def _chats(self) -> ChatEncoder:
        how = self.encoding.tokenizer, self.encoding.config.special_tokens_in_text
        return ChatEncoder(self._reference, *how, self.render)

    def problems(self, first: int, batch: Batch, table: pa.Table) -> Iterator[str]:
        """Yield what is wrong with the chosen documents of a batch that begins with `first`;
        neighbours are encoded together, except long ones."""
        begin, end = np.searchsorted(self.chosen, [first, first + len(table)])
        numbers = self.chosen[begin:end] - first
        is_long = batch.num_chars[numbers] > MAX_SAMPLE_CHARS
        edges = np.flatnonzero((np.diff(numbers) > 1) | is_long[1:] | is_long[:-1]) + 1
        for some in filter(len, np.split(numbers, edges)):
            start, stop = int(some[0]), int(some[-1]) + 1
            rows = table.slice(start, stop - start).to_pylist()
            yield from self._token_problems(batch.slice(start, stop), rows)

    def _token_problems(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield what is wrong with the tokens of neighbouring documents, of which the shard has
        `rows`."""
        chat = None
        if self.shard.has_loss_mask:
            encoded, chat = self._chats.encode(batch)
        else:
            is_long = batch.num_chars[0] > MAX_SAMPLE_CHARS
            encoded = (self._chunked if is_long else self._reference).encode(batch.texts)
        made = add_bos_eos(encoded, self.encoding, chat=chat)
        ends = np.cumsum(made.num_tokens).tolist()
        for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
            where = f"{self.shard.manifest.partition}:{row['row']}"
            here = row["token_offset"], row["token_offset"] + row["num_tokens"]
            own = slice(end - int(made.num_tokens[number]), end)
            expected, found = made.token_ids[own], self._tokens.read(*here)
            if not np.array_equal(expected, found):
                difference = (
                    f"{where}: expected the tokens {expected[:8].tolist()} … of "
                    f"{self._reference.name}, found {found[:8].tolist()} …"
                )
                if change := reference_change(self.encoding.tokenizer.stored):
                    yield f"{difference}; {change}: {KEEP_OR_REMAKE}"
                else:
                    self.difference = difference
                    yield difference
            elif self.encoding.tokenizer.kind in LOSSLESS_KINDS:
                decoded = self._reference.decode(encoded.document(number).tolist())
                if decoded != batch.texts[number].as_py():
                    yield f"{where}: expected its text when decoded, found {decoded[:40]!r} …"
            mask = made.loss_mask
            if mask is not None and not np.array_equal(self._loss_mask.read(*here), mask[own]):
                yield f"{where}: expected the loss mask of its loss spans, found another"


def verify_split(
    split: Split,
    encode_cut: CutEncoder | None = None,
    *,
    given: Callable[[str], list[Any]] = lambda kind: [],
) -> list[str]:
    """Return what is wrong with a split: its parts are not the text, or made again it is another.

    Without `encode_cut`, which needs the raw file, cut documents keep the tokens that they have.
    `given`: the selections and strata of its documents, by their kind, that it was made with.
    """
    names, counts = (*split.parts, NOT_TAKEN), split.manifest.counts
    num_chars = sum(counts[f"{name}.num_chars"] for name in names)
    expected = split.shard.manifest.counts["num_chars"]
    where = f"{split.folder}: all parts and no part together"
    problems = [*unequal(where, num_chars=(expected, num_chars))]
    unknown = set()
    if encode_cut is None:
        encode_cut = partial(_stored_cut_tokens, split)
        if CUT_TOKENS_NAME in split.manifest.files:
            unknown = {
                f"{of}.{n}" for of in (NOT_TAKEN, NOT_IN_STRATA) for n in ("num_tokens", LONGEST)
            }
    write = partial(
        write_split,
        split.shard,
        dataset=split.manifest.dataset,
        recipe=split.manifest.recipe,
        encode_cut=encode_cut,
        selections=given("selection"),
        strata=given("strata"),
    )
    unknown |= {f"{name}.{LONGEST}" for name in names} - counts.keys()
    return problems + _made_again(split, write, unknown)


def verify_mixed_split(split: Split, source: Split, tokenizer: Tokenizer) -> list[str]:
    """Return what is wrong with a split of a mixture: made again from the split of its source it is
    another.

    Raises: UntrustedCodeError where a document is cut and the tokenizer is code that may not run.
    """
    about: dict[str, Any] = {"dataset": split.manifest.dataset, "recipe": split.manifest.recipe}
    return _made_again(split, partial(write_mixed_split, source, tokenizer=tokenizer, **about))


def verify_sequences(sequences: FileSequences) -> list[str]:
    """Return what is wrong with the sequences of one file: they are not the tokens of the split,
    or they differ when they are made again."""
    split, manifest = sequences.split, sequences.manifest
    problems: list[str] = []
    names = ("num_tokens", "num_tail_tokens", "num_dropped_tokens", "num_repeated_tokens")
    for part in split.parts:
        full, tail, dropped, repeated = (manifest.counts[f"{part}.{name}"] for name in names)
        num_tokens = split.manifest.counts[f"{part}.num_tokens"], full + tail + dropped - repeated
        where = f"{sequences.folder}: {part}: in sequences, leftover and dropped"
        problems += unequal(where, num_tokens=num_tokens)
    about: dict[str, Any] = {"dataset": manifest.dataset, "recipe": manifest.recipe}
    return problems + _made_again(sequences, partial(write_sequences, split, **about))


def _stored_cut_tokens(split: Split, spans: FileSpans, folder: Path) -> npt.NDArray[np.int64]:
    """Copy the tokens of cut spans from `split`; return how many it has of each span, 0 of those
    that no part takes."""
    table = read_table(split.stored.file(SPANS_NAME))
    in_file_order = np.lexsort([to_numpy(table[name]) for name in ("char_start", "document")])
    is_cut = to_numpy(table["is_cut"])[in_file_order]
    split.cut_tokens().tofile(folder / CUT_TOKENS_NAME)
    num_tokens = np.zeros(len(spans.part), dtype=np.int64)
    is_kept = spans.is_cut & (spans.part != NO_PART)
    num_tokens[is_kept] = to_numpy(table["num_tokens"])[in_file_order][is_cut]
    return num_tokens


def _made_again(
    stored: StoredOutput | InStore,
    write: Callable[[Path], object],
    unknown: Collection[str] = (),
) -> list[str]:
    """Return how an output differs from the same made again by `write`; `unknown` counts may.

    Tables may be of other bytes, as another version of pyarrow writes them, if their rows are
    the same.
    """
    problems = []
    with TemporaryDirectory(prefix="tokflow.") as name, Reading():
        folder = Path(name)
        write(folder)
        manifests = read_manifest(folder), stored.manifest
        expected, found = (
            {**of.counts, **of.details, "files": sorted(of.files)} for of in manifests
        )
        for name in sorted((expected | found).keys() - {*unknown}):
            if expected.get(name) != found.get(name):
                there = f"{expected.get(name)!r} as made again, found {found.get(name)!r}"
                problems.append(f"{stored.folder}: expected {name} {there}")
        for name, entry in manifests[0].files.items():
            path = stored.store.file(stored, name)
            if (broken := broken_file(stored.folder, name, entry)) is None:
                continue
            if path.suffix == ".parquet" and path.is_file():
                problems += _row_difference(path, folder / name)
                continue
            there = f"{broken.expected} as made again, found {broken.found}"
            problems.append(f"{path}: expected {there}")
    return problems


def _row_difference(path: Path, remade: Path) -> Iterator[str]:
    """Yield the first row that is not the one made again, if there is one."""
    found, expected = read_table(path), read_table(remade)
    if found.equals(expected):
        return
    yield from unequal(path, num_rows=(len(expected), len(found)))
    row = first_other_row(expected, found)
    rows = (of.slice(row, 1).to_pylist() for of in (expected, found))
    for one, other in zip(*rows, strict=False):  # none where one of them has ended
        wrong = {name: value for name, value in one.items() if value != other[name]}
        there = {name: other[name] for name in wrong}
        yield f"{path}: row {row:,}: expected {wrong} as made again, found {there}"


def verify_made_again(output: Output) -> list[str]:
    """Return what is wrong with an output that its stage makes again whole: it is another.

    Raises: TokflowError where it cannot be made.
    """
    return _made_again(output.open(), lambda of: output.step.writer(output).write(None, of, ignore))
