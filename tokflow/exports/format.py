"""What an export format is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.extras import Extra
from tokflow.exports.index import INDEX_VERSION
from tokflow.exports.part import Part
from tokflow.exports.source_names import SourceNames
from tokflow.sequences.packing import PackingConfig
from tokflow.store.config import Config
from tokflow.store.manifest import FileEntry, Manifest

Arrays = dict[str, npt.NDArray[Any]]

MadeOf = Literal["stream", "sequences"]
"""stream: the tokens of a part end to end, not packed; sequences: packed, all of one length."""

Counts = dict[str, int]
"""`<part>.num_tokens` (padding not counted), `<part>.num_dropped_tokens`, and for formats of
sequences `<part>.num_sequences`, `<part>.num_padding`, `<part>.num_repeated_tokens` (in another
row too) and the fields of PackingCounts; of chats, where the format keeps the
loss mask, `<part>.num_loss_tokens`; where it keeps offsets, `<part>.num_documents`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What stands in the files of an export."""

    made_of: MadeOf
    keeps: tuple[str, ...]
    """The fields that the files hold; the rest is lost.

    Of a stream: token_ids (num_tokens,); offsets, int64 (num_documents + 1,), where each
    document begins, in tokens; loss_mask, bool (num_tokens,). Of sequences: token_ids,
    segment_ids, position_ids, loss_mask, each (num_sequences, sequence_length)."""
    eos_first: bool = False
    """Of a stream: the EOS of each document stands before it, not behind it."""
    leaves_out_empty: bool = False
    """Of a stream: documents without tokens are not among the offsets."""
    columns: tuple[str, ...] = ()
    """Of files with a record per sequence: their columns, but for one that only chats have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a dataset's YAML says that an export depends on, known before any token is."""

    parts: tuple[str, ...]
    """Names of the parts of the split."""
    has_eos: bool
    """Whether EOS ends each document."""
    has_bos: bool
    """Whether BOS begins each document."""
    packing: PackingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How one export format is written and read back."""

    description: str
    """One line for people: whose format it is and what the files are called."""
    options: type[Config]
    """The fields a user can set beside `format`."""
    layout: Callable[[Any], Layout]
    """What stands in the files, given the options."""
    write: Callable[[Sequence[Part], Any, Path], Counts]
    """Write all parts into an empty folder; return what was written and what was left out."""
    read: Callable[[Path, Manifest, str], Iterator[Arrays]] | None
    """Yield one part's fields in order, a file at a time or less, memory-mapped where the format
    can be; nothing for a part without a file. None: is never read.

    A document lies whole in what is yielded at once if the format keeps offsets, which begin at
    0 each time. loss_mask is yielded where the format keeps it, and of a stream only of chats."""
    known_checksums: Callable[[Sequence[Part], Any], Mapping[str, FileEntry]] = (
        lambda parts, options: {}
    )
    """Files, by path, that are copies of files whose checksum is in a manifest already."""
    extra: Extra | None = None
    """The optional package that `write` and `read` need; looked for when a dataset is declared."""
    part_names: tuple[str, ...] | None = None
    """The parts that the format has a file for, whatever the dataset has; None: any."""
    check: Callable[[Any, Declared], object] = lambda options, declared: None
    """Refuse, by a ConfigError, options that cannot go with the rest of the dataset. `write` checks
    the same, for an export may be converted from another."""
    named: Callable[[Any, SourceNames], Any] = lambda options, names: options
    """Return the options with the names that the user left to the dataset."""
    version: int = 1
    """Raised when the same input would give other bytes of the format's files."""

    @property
    def version_of_export(self) -> int:
        """The version of all files: it rises with that of the format's own, and of the index."""
        return self.version + INDEX_VERSION


def fixed(layout: Layout) -> Callable[[Any], Layout]:
    """Return the layout of a format whose options do not change it."""
    return lambda options: layout


def counts_of_rows(
    part: Part, *, num_sequences: int, num_tokens: int, num_loss_tokens: int | None = None
) -> Counts:
    """Return the counts of a part written as rows, and of what packing repeated and left out.

    `num_loss_tokens`: None where the files do not keep the loss mask.
    """
    counts = {
        "num_sequences": num_sequences,
        "num_tokens": num_tokens,
        "num_padding": num_sequences * part.sequence_length - num_tokens,
        "num_repeated_tokens": part.num_repeated_tokens,
        **asdict(part.packing_counts),
    }
    return _named(part, counts, num_loss_tokens)


def counts_of_stream(
    part: Part,
    *,
    num_tokens: int,
    num_documents: int | None = None,
    num_loss_tokens: int | None = None,
) -> Counts:
    """Return the counts of a part written end to end.

    None where the files do not keep what documents there are, or the loss mask.
    """
    counts = {"num_tokens": num_tokens, "num_dropped_tokens": part.num_tokens - num_tokens}
    if num_documents is not None:
        counts["num_documents"] = num_documents
    return _named(part, counts, num_loss_tokens)


def _named(part: Part, counts: Counts, num_loss_tokens: int | None) -> Counts:
    if part.has_loss_mask and num_loss_tokens is not None:  # of other documents all are learnt
        counts = {**counts, "num_loss_tokens": num_loss_tokens}
    return {f"{part.name}.{name}": num for name, num in counts.items()}


def index_of(part: Part, layout: Layout) -> Iterator[pa.Table]:
    """Yield the index of a part in the order of the files' tokens, each table of one file but
    for the last of rows."""
    if layout.made_of == "sequences":
        return part.sequence_index()
    return part.stream_index(eos_first=layout.eos_first)
