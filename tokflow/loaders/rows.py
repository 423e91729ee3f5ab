"""Rows: those of an export in an order, opened by `open_rows`, and the samples made of them: epoch
after epoch of all, or random windows of their stream."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.opening import Opening, Tail, find_part
from tokflow.loaders.orders import WINDOW, InOrder, Order, shuffled_order
from tokflow.loaders.row_sources import PackedRows, StreamRows, open_packed_rows, open_stream_rows
from tokflow.loaders.samples import (
    ENDLESS,
    Batch,
    FilesOf,
    Gathered,
    Numbers,
    StoredFile,
    boolean,
    check_samples,
    grouped,
    integer,
    no_dataset,
    optional,
    picked,
    positive,
    samples_shown,
)
from tokflow.split.permutation import hashes
from tokflow.store.store import StoredOutput

RowSource: TypeAlias = PackedRows | StreamRows

RANDOM_WINDOWS_VERSION = 1
"""Raised when the same seed would give other windows."""


def open_rows(
    path: str | Path | StoredOutput,
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
    names = [fields] if isinstance(fields, str) else fields
    opening = Opening(
        output=output,
        part=part,
        sequence_length=optional(integer, "sequence_length", sequence_length),
        fields=None if names is None else tuple(names),
        tail=tail,
        across_documents=optional(boolean, "across_documents", across_documents),
    )
    return in_order((open_packed_rows if is_packed else open_stream_rows)(opening))


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
        """The values that decide which row is at each place, as JSON."""
        return {"order": self.order.identity, "sources": [self.source.identity]}

    def __len__(self) -> int:
        return self.order.num_rows

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows at these places of the order; `index` tells which they are."""
        return self.source.gather(self.order.at(numbers))

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
            optional(positive, "blocks", blocks),
            positive("window", window),
        )
        return replace(self, order=order)

    def epochs(
        self,
        seed: int | None = None,
        *,
        blocks: int | None = None,
        window: int = WINDOW,
        num_epochs: int | None = None,
    ) -> "Epochs":
        """Return the rows as the samples of a training, every row once in each epoch.

        Each epoch is `shuffled` anew by the seed; without one it is in this order. Without
        `num_epochs` there is no end.
        """
        return Epochs(
            source=self.source,
            order=self.order,
            seed=optional(integer, "seed", seed),
            blocks=optional(positive, "blocks", blocks),
            window=positive("window", window),
            num_epochs=optional(positive, "num_epochs", num_epochs),
        )

    def random_windows(self, seed: int) -> "RandomWindows":
        """Return rows cut from the stream at random, as nanoGPT's `get_batch` does: without end,
        and without epochs. Raises: ConfigError where rows are packed."""
        if isinstance(self.source, PackedRows):
            raise ConfigError(
                where=self.source.name,
                expected="a stream of tokens, to cut windows from",
                found="packed rows",
                remedy="take epochs, or an export of a stream (bin, npy, llmc, megatron)",
            )
        return RandomWindows(self.source, integer("seed", seed))


def in_order(source: RowSource) -> Rows:
    """Return the rows of a source in the order of their files."""
    return Rows(source, InOrder(len(source)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """Epoch after epoch of n rows: sample s is the row at place s % n of epoch s // n.

    Of 3 rows, in order:

        sample  0 1 2  3 4 5  6 ...
        epoch   0 0 0  1 1 1  2
        row     0 1 2  0 1 2  0
    """

    source: RowSource
    order: Order
    """The order of each epoch where there is no seed."""
    seed: int | None = None
    """Each epoch has an order of its own, which seed and epoch decide."""
    blocks: int | None = None
    """Rows of a block, where the orders are of `ShuffledBlocks`."""
    window: int = WINDOW
    num_epochs: int | None = None
    """Number of epochs; None: without end."""

    __repr__ = samples_shown
    __getitem__ = no_dataset

    def __post_init__(self) -> None:
        order = self.order.identity["kind"]
        given = [
            f"{name}={of}" for name in ("seed", "blocks") if (of := getattr(self, name)) is not None
        ]
        if not len(self.source):
            where, expected, found = self.source.name, "at least one row, to make epochs of", "none"
            remedy = "take another part, or a shorter sequence_length"
        elif given and not isinstance(self.order, InOrder):
            where, expected = "epochs", "rows in the order of their files, to shuffle in each epoch"
            found = f"rows that are {order}, and {', '.join(given)}"
            remedy = (
                "give the seed once: here, with rows as open_rows returns them "
                "(`rows.epochs(seed, blocks=, window=)` takes a window too), "
                "or to `shuffled` alone, for the same order in each epoch"
            )
        elif self.blocks is not None and self.seed is None:
            where, expected, found = "blocks", "a seed too, which decides their order", "none"
            remedy = "give a seed, or leave blocks out"
        else:
            return
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Samples`; the number of epochs decides no row, so that it may change."""
        return {
            "kind": "epochs",
            "seed": self.seed,
            "order": self._order(epoch=0).identity,
            "sources": [self.source.identity],
        }

    def __len__(self) -> int:
        return ENDLESS if self.num_epochs is None else self.num_epochs * self.order.num_rows

    def at(self, numbers: Numbers) -> Numbers:
        """Return the number of the row that each sample is. Raises: IndexError."""
        check_samples(numbers, len(self))
        epochs, places = np.divmod(numbers, self.order.num_rows)
        rows = np.empty_like(numbers)
        for epoch, here in grouped(epochs):
            rows[here] = self._order(epoch).at(places[here])
        return rows

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers; `index` tells which rows they are."""
        return self.source.gather(self.at(numbers))

    def remote_files(self) -> FilesOf | None:
        """Return the files of samples at a URL; see `Samples`."""
        files_of = self.source.remote_files()
        return None if files_of is None else lambda numbers: files_of(self.at(numbers))

    def _order(self, epoch: int) -> Order:
        """Return the order of the rows in an epoch."""
        if self.seed is None:
            return self.order
        return shuffled_order(len(self.source), self.seed, epoch, self.blocks, self.window)


@dataclass(frozen=True, slots=True)
class RandomWindows:
    """Samples without end: each begins at any token of the stream that is as likely as the next.

    Windows overlap, and after one epoch's worth of them a share of 1/e of the tokens was not seen.
    """

    source: StreamRows
    seed: int
    _keys: tuple[np.uint64, ...] = field(init=False, repr=False, compare=False)

    __repr__ = samples_shown
    __getitem__ = no_dataset

    def __post_init__(self) -> None:
        if not self.source.num_windows:
            raise ConfigError(
                where=self.source.name,
                expected=f"more than {self.source.sequence_length:,} tokens, to cut windows from",
                found="no more",
                remedy="take another part, or a shorter sequence_length",
            )
        name = f"{RANDOM_WINDOWS_VERSION}:{self.source.num_windows}:{self.seed}".encode()
        digest = hashlib.shake_256(name).digest(16)
        object.__setattr__(self, "_keys", tuple(np.frombuffer(digest, dtype="<u8")))

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that decide the samples; see `Samples`."""
        decided = {"version": RANDOM_WINDOWS_VERSION, "seed": self.seed}
        return {"kind": "random windows", **decided, "sources": [self.source.identity]}

    def __len__(self) -> int:
        return ENDLESS

    def at(self, numbers: Numbers) -> Numbers:
        """Return the position that each sample begins at."""
        first, second = self._keys
        hashed = hashes(hashes(numbers.astype(np.uint64), first), second)
        # Of 2**40 tokens the likeliest position is so by one part in 2**24.
        return (hashed % np.uint64(self.source.num_windows)).astype(np.int64)

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers; `index` is the position in the stream."""
        return self.source.windows(self.at(numbers))

    def remote_files(self) -> FilesOf | None:
        """Return the files of the rows in which windows begin and end; see `Samples`."""
        if (files_of := self.source.remote_files()) is None:
            return None

        def files_of_windows(numbers: Numbers) -> Iterable[StoredFile]:
            rows = self.at(numbers) // self.source.sequence_length
            return files_of(np.concatenate([rows, np.minimum(rows + 1, len(self.source) - 1)]))

        return files_of_windows
