"""One part of the split over all files in order, from which an export is made."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError
from tokflow.exports.index import KeptOfDocuments, index_tables
from tokflow.exports.options import PartRows
from tokflow.exports.part_sequences import TOKENS_AT_ONCE, PartSequences
from tokflow.exports.shuffled_documents import (
    TOKENS_GATHERED,
    GatheredTokens,
    PackedFile,
    PartitionDocuments,
    ShuffledDocuments,
    documents_in_order,
)
from tokflow.sequences import PackingConfig
from tokflow.sequences.segments import FileSequences, Sequences
from tokflow.split import Split
from tokflow.split.permutation import ExportOrder
from tokflow.store.manifest import FileEntry, joined_digest
from tokflow.store.tables import offsets_of
from tokflow.tokens import taken_in_batches

T = TypeVar("T")

FileFacts: TypeAlias = Mapping[str, Any]
"""Facts of one file of a part that files about several state, without its name: plain JSON."""

LARGEST_ID = 2**31 - 1
"""Largest token id: that of int32, which most trainers read."""


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The tokens of the first raw files of a part, in the last export."""

    folder: Path
    """The folder of the export."""
    files: Mapping[str, FileEntry]
    """Its files."""
    num_splits: int
    """The number of the raw files, which are the first of the part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the split over all files, in the order of their partition keys, or of a seed.

    Nothing is read before it is asked for. Memory grows with the documents of the largest file
    (some 100 bytes for each), in formats that keep where documents begin with those of the part (8
    to 50 bytes for each), where documents of all files are shuffled with them (24 bytes for each),
    and where sequences are shuffled with their segments (12 bytes for each), not with the tokens.
    """

    name: str
    splits: Sequence[Split]
    shuffled: ShuffledDocuments | None = None
    """The documents of all splits in the order of a seed; None: they are in that of the splits."""
    packed: PartSequences
    """Counts and index of its sequences; of none for formats that are made from the split alone."""
    eos_id: int | None
    """The id that ends each document; None where none does."""
    bos_id: int | None = None
    """The id that begins each document; None where none does."""
    vocab_size: int
    dtype: np.dtype[np.unsignedinteger]
    file_name: str
    """Its name in the names of an export's files: its own, unless the format has another."""
    has_kept_columns: bool = False
    """Its rows have the columns that are kept of documents: those of this part or another are of
    one document each."""
    within: range | None = None
    """Ordinals of the sequences that `sequences` yields; None: all."""
    shard_sizes: Sequence[int] | None = None
    """Sequences of each file of the part, where they are of whole raw files and worked out."""
    first_number: int = 0
    """Number of the first file of its stream."""
    files: Sequence[FileFacts] = ()
    """Facts of its files, in order, once they are written."""
    last: "LastTokens | None" = None
    """The file that the last export has of its first raw files, if there is one."""
    taken: Counter[str] | None = None
    """Counts of what was asked for since: of `stream`, `stream_loss_mask` and `sequences`
    num_tokens (padding is none) and num_loss_tokens, of `sequences` num_unsupervised_sequences, of
    `document_lengths` num_documents and num_empty_documents. None: nobody counts."""

    def __post_init__(self) -> None:
        largest = min(int(np.iinfo(self.dtype).max), LARGEST_ID)
        if not 0 <= self.packed.pad_id <= largest:
            where, found = "packing.pad_id", f"{self.packed.pad_id:,}"
            expected = f"an id from 0 to {largest:,}, for tokens are {self.dtype.name}"
            remedy = "name an id that the model knows or ignores"
        elif self.vocab_size > LARGEST_ID + 1:
            where, found = "tokenizer", f"{self.vocab_size:,} ids"
            expected = f"ids up to {LARGEST_ID:,}, for trainers read int32"
            remedy = "name another tokenizer"
        else:
            return
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)

    @property
    def rows(self) -> PartRows:
        """Facts of this part that decide how its sequences are divided into files."""
        facts = self.num_sequences, self.sequence_length, self.has_loss_mask, self.dtype
        files = self.packed.of_files if self.shard_sizes is None else ()
        return PartRows(*facts, files=files, shards=self.shard_sizes)

    @property
    def num_tokens(self) -> int:
        """Tokens of the part, before packing."""
        return sum(split.manifest.counts[f"{self.name}.num_tokens"] for split in self.splits)

    @property
    def has_loss_mask(self) -> bool:
        """True where only some tokens are loss tokens: the documents are chats."""
        return any(split.shard.has_loss_mask for split in self.splits)

    def stream(self, *, eos_first: bool = False) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Yield the part's tokens, documents end to end, some million at a time: of many documents
        as they are mapped, of few joined.

        With `eos_first` the EOS of each document stands before it; documents that begin with BOS
        stay as they are.

        Raises: ConfigError where `eos_first` is asked for and documents have neither.
        """
        batches, eos_id = self._batches(), self._eos_to_move() if eos_first else None
        if eos_id is not None:
            batches = _with_eos_first(batches, eos_id)
        return self._counted(batches, num_tokens=len)

    def _batches(self, *, of_mask: bool = False) -> Iterator[npt.NDArray[Any]]:
        """Yield the tokens of `stream`, or their loss mask."""
        if self.shuffled is None:  # runs of neighbouring documents are one span, read as mapped
            for split in self.splits:
                runs = split.rows(self.name)
                source = (
                    GatheredTokens.of([split], of_mask=True) if of_mask else split.token_source()
                )
                spans = runs["token_start"], runs["num_tokens"]
                yield from taken_in_batches(source, *spans, TOKENS_AT_ONCE)
            return
        gathered = GatheredTokens.of(self.splits, of_mask=of_mask)
        for some in self.documents():
            spans_of = some.token_start, some.num_tokens
            yield from taken_in_batches(
                gathered, *spans_of, TOKENS_AT_ONCE, gathered=TOKENS_GATHERED
            )

    def documents(self) -> Iterator[PartitionDocuments]:
        """Yield what `stream` is made of, in order: the documents of one partition at a time or,
        where those of all are shuffled, some of them.

        A span of a cut document counts as a document, one without tokens too.
        """
        if self.shuffled is None:
            return documents_in_order(self.name, self.splits)
        return self.shuffled.documents()

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each of `documents`, (num_documents,)."""
        of_each = [of_one.num_tokens for of_one in self.documents()]
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *of_each])
        if self.taken is not None:
            self.taken["num_documents"] = len(lengths)
            self.taken["num_empty_documents"] = int(np.count_nonzero(lengths == 0))
        return lengths

    def stream_loss_mask(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield 1 for each loss token of `stream`, else 0, in arrays of the same sizes.

        Only where `has_loss_mask`; without it the loss is taken of every token.
        """
        return self._counted(self._batches(of_mask=True), num_loss_tokens=np.count_nonzero)

    def _counted(self, batches: Iterator[T], **measures: Callable[[T], Any]) -> Iterator[T]:
        for some in batches:
            if self.taken is not None:
                self.taken.update({name: int(num(some)) for name, num in measures.items()})
            yield some

    def stream_index(self, *, eos_first: bool = False) -> Iterator[pa.Table]:
        """Yield the index of `stream` in order, each table of one file unless documents of all are
        shuffled."""
        position = 0
        moves_eos = eos_first and self._eos_to_move() is not None
        for of_one in self.documents():
            starts = offsets_of(of_one.num_tokens)
            columns = {
                "position": position + starts[:-1],
                "num_tokens": of_one.num_tokens,
                "row": of_one.row,
                "char_start": of_one.char_start,
                "token_in_piece": np.zeros_like(of_one.row),
            }
            if moves_eos:  # two rows for each
                columns = {name: np.repeat(values, 2) for name, values in columns.items()}
                num_behind = np.maximum(of_one.num_tokens - 1, 0)
                columns["position"][1::2] += 1
                columns["num_tokens"][::2] -= num_behind
                columns["num_tokens"][1::2] = columns["token_in_piece"][::2] = num_behind
            yield from index_tables(self.name, of_one.origins, columns)
            position += int(starts[-1])

    def index(self, *, is_packed: bool, eos_first: bool) -> Iterator[pa.Table]:
        """Yield the index in the order of the files' tokens, of sequences or of a stream, with the
        columns that are kept of each document."""
        tables = self.packed.index() if is_packed else self.stream_index(eos_first=eos_first)
        return KeptOfDocuments(self.splits).added(tables)

    def _eos_to_move(self) -> int | None:
        """Return the EOS that must be moved before each document, of which each is the last token;
        None where a BOS stands there.

        Raises: ConfigError.
        """
        if self.bos_id is not None:
            return None
        check_eos_first(has_eos=self.eos_id is not None, has_bos=False, where=self.name)
        for split in self.splits:
            spans = split.spans(self.name)
            is_some = spans.num_tokens > 0
            last = (spans.token_start + spans.num_tokens - 1)[is_some]
            found = split.token_source().take(last, np.ones_like(last))
            if len(wrong := np.flatnonzero(found != self.eos_id)):
                row = split.shard.documents(["row"])["row"][spans.document[is_some][wrong[0]]]
                raise ConfigError(
                    where=f"{split.manifest.partition}: document {row.as_py():,}",
                    expected=f"EOS ({self.eos_id}) as its last token, to be moved before it",
                    found=f"token {int(found[wrong[0]])}",
                    remedy="name a format that keeps EOS last",
                )
        return self.eos_id

    @property
    def sequence_length(self) -> int:
        """Tokens stored per sequence, the label of the last input among them."""
        return self.packed.packing.stored_length

    @property
    def num_sequences(self) -> int:
        """Sequences of the part: those of each file, then those made of all tails."""
        return self.packed.num_sequences

    def sequences(
        self, at_once: int | None = None, whole: range | None = None
    ) -> Iterator[Sequences]:
        """Yield the part's sequences in order, `at_once` at a time; the last may be fewer.

        By default so many that they take some 50 MB. Only those `within`, if that is given: of
        batches, those of all, cut. `whole`: only those, in batches of their own.
        """
        within = self.within if whole is None else whole
        return self._counted(
            self.packed.sequences(at_once, within=within, starts_anew=whole is not None),
            num_tokens=lambda some: np.count_nonzero(some.segment_ids),
            num_loss_tokens=lambda some: np.count_nonzero(some.loss_mask),
            num_unsupervised_sequences=lambda some: np.count_nonzero(~some.loss_mask.any(axis=1)),
        )


def make_parts(
    names: Sequence[str],
    details: Mapping[str, Any],
    files: Sequence[Split | FileSequences],
    packing: PackingConfig,
    *,
    order: ExportOrder,
    is_packed: bool,
) -> list[Part]:
    """Return the parts of these names, their tokens described as a manifest's details have it.

    `files`: the sequences of every raw file or, for formats of streams and where documents of all
    files are shuffled, its split.
    """
    splits = [of.split if isinstance(of, FileSequences) else of for of in files]
    in_files = [of for of in files if isinstance(of, FileSequences)]
    outputs = [f"{split.folder} {split.manifest.recipe.fingerprint}" for split in splits]
    digest = joined_digest([str(order.documents), *outputs])
    found = []
    for name in names:
        own, documents = packing.of_part(name), None
        packed: Sequence[PackedFile] = in_files
        if order.documents is not None:
            documents = ShuffledDocuments(name, splits, order.documents, digest)
            if is_packed:
                packed = documents.groups(own, is_kept=order.sequences is not None)
        sequences = PartSequences(
            part=name,
            splits=splits,
            files=packed,
            packing=own,
            pad_id=details["eos_id"] or 0 if own.pad_id is None else own.pad_id,
            shuffle_seed=order.sequences,
        )
        part = Part(
            name=name,
            file_name=name,
            splits=splits,
            shuffled=documents,
            packed=sequences,
            has_kept_columns=is_packed and packing.is_of_one_document(names),
            dtype=np.dtype(details["dtype"]),
            **{of: details[of] for of in ("eos_id", "bos_id", "vocab_size")},
        )
        found.append(part)
    return found


def check_eos_first(*, has_eos: bool, has_bos: bool, where: str) -> None:
    """Make sure that documents have what stands before each of them with `eos_first`.

    Raises: ConfigError.
    """
    if not (has_eos or has_bos):
        raise ConfigError(
            where=where,
            expected="documents with an EOS, which this format has before each of them",
            found="documents without EOS and BOS",
            remedy="set `tokenizer.eos: last`, or name another format",
        )


def _with_eos_first(
    batches: Iterator[npt.NDArray[np.unsignedinteger]], eos_id: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Yield an EOS and all of `batches` but the last token, which is one."""
    waiting = None
    for batch in batches:
        yield np.array([eos_id], dtype=batch.dtype) if waiting is None else waiting
        waiting = batch
    if waiting is not None:
        yield waiting[:-1]
