"""Rows: the rows of an export in an order, opened by `open_rows`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.arguments import boolean, integer, optional
from tokflow.loaders.epochs import Epochs
from tokflow.loaders.opening import Opening, Tail, find_part
from tokflow.loaders.orders import WINDOW, InOrder, shuffled_order
from tokflow.loaders.packed_rows import open_packed_rows
from tokflow.loaders.random_windows import RandomWindows
from tokflow.loaders.samples import (
    Batch,
    FilesOf,
    Gathered,
    Numbers,
    Order,
    RowSource,
    StreamSource,
    picked,
    sources_of,
)
from tokflow.loaders.stream_rows import open_stream_rows


def open_rows(
    path: str | Path,
    part: str | None = None,
    sequence_length: int | None = None,
    *,
    fields: Sequence[str] | None = None,
    tail: Tail = "pad",
    across_documents: bool | None = None,
) -> "Rows":
    """Open the rows of a part of an export, or of a token store, in the order of their files; by
    path or URL (`s3://...`), whose files come to this disk when they are first needed.

    Rows that were packed are as they lie; a stream, which a token store is too, is cut into rows of
    any `sequence_length`, and its last row is padded, or left out with `tail="drop"`. A row is a
    dictionary of arrays: see `Batch`. Nothing is read but the manifest, with which sizes agree.

    part: may be left out where there is one. fields: those wanted; by default all that the format
    keeps. across_documents: False, the first token of a document is no label; True, it is. By
    default it is one in a stream, and none in a packed row.

    Raises: MissingOutputError where there is no export; CorruptOutputError where it is not
    finished, or a file is missing or cut short; ForeignOutputError where a newer tokflow made it;
    ConfigError for arguments that do not go with it.
    """
    if tail not in get_args(Tail):
        expected = " or ".join(map(repr, get_args(Tail)))
        raise ConfigError(where="tail", expected=expected, found=repr(tail), remedy="name one")
    output, part, is_packed = find_part(path, part)
    opening = Opening(
        store=output.store,
        path=output.folder,
        part=part,
        sequence_length=optional(integer, "sequence_length", sequence_length),
        fields=_names(fields),
        tail=tail,
        across_documents=optional(boolean, "across_documents", across_documents),
    )
    return in_order((open_packed_rows if is_packed else open_stream_rows)(opening))


def _names(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of fields; a text is not a list of its letters. Raises: ConfigError."""
    if isinstance(fields, str):
        raise ConfigError(
            where="fields",
            expected="a list of names",
            found=repr(fields),
            remedy=f"give [{fields!r}]",
        )
    return None if fields is None else tuple(fields)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source in an order, each found alone.

    It is a map-style Dataset of torch and a RandomAccessDataSource of Grain.
    """

    source: RowSource
    order: Order

    def __repr__(self) -> str:
        source = self.source
        return (
            f"<Rows of {source.name}: {len(self):,} of {source.sequence_length:,} tokens, "
            f"{self.order.identity['kind']}; {', '.join(source.fields)}>"
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides which row is at each place, as JSON."""
        return {"order": self.order.identity, "sources": sources_of(self.source)}

    def __len__(self) -> int:
        return len(self.order)

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows at these places of the order; `index` tells which they are."""
        return self.source.gather(self.order.at(numbers))

    def files_elsewhere(self) -> FilesOf | None:
        """As `Samples` has it."""
        files_of = self.source.files_elsewhere()
        return None if files_of is None else lambda numbers: files_of(self.order.at(numbers))

    def __getitem__(self, chosen: int | slice | Sequence[int] | Numbers) -> Batch:
        """Return one row, whose fields have one dimension less, or those of a slice or a list."""
        if isinstance(chosen, slice) or np.ndim(chosen):
            return self.gather(picked(chosen, len(self)))
        batch: Batch = self.__getitems__([cast(int, chosen)])[0]
        return batch

    def __getitems__(self, numbers: Sequence[int]) -> Gathered:
        """Return several rows, gathered in one pass: torch's DataLoader asks for a batch so."""
        return Gathered(self.gather(picked(numbers, len(self))))

    def shuffled(
        self, seed: int, epoch: int = 0, *, blocks: int | None = None, window: int = WINDOW
    ) -> "Rows":
        """Return the same rows in an order that seed and epoch decide; any place is found alone.

        blocks: rows of a block, for disks and formats that read many rows at once. Blocks are
        shuffled, and the rows of `window` blocks: a reader that holds so many reads each once.
        """
        order = shuffled_order(
            len(self.source),
            integer("seed", seed),
            integer("epoch", epoch),
            optional(integer, "blocks", blocks),
            integer("window", window),
        )
        return replace(self, order=order)

    def epochs(
        self,
        seed: int | None = None,
        *,
        blocks: int | None = None,
        window: int = WINDOW,
        num_epochs: int | None = None,
    ) -> Epochs:
        """Return the rows as the samples of a training, every row once in each epoch.

        Each epoch is `shuffled` anew by the seed; without one it is in this order. Without
        `num_epochs` there is no end.
        """
        return Epochs(
            source=self.source,
            order=self.order,
            seed=seed,
            blocks=blocks,
            window=window,
            num_epochs=num_epochs,
        )

    def random_windows(self, seed: int) -> RandomWindows:
        """Return rows cut from the stream at random, as nanoGPT's `get_batch` does: without end,
        and without epochs. Raises: ConfigError where rows are packed."""
        if not isinstance(self.source, StreamSource):
            raise ConfigError(
                where=self.source.name,
                expected="a stream of tokens, to cut windows from",
                found="packed rows",
                remedy="take epochs, or an export of a stream (bin, npy, llmc, megatron)",
            )
        return RandomWindows(self.source, seed)


def in_order(source: RowSource) -> Rows:
    """Return the rows of a source in the order of their files."""
    return Rows(source, InOrder(len(source)))
