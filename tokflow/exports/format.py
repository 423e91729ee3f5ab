"""The contract of an export format: what it holds, how it is written and how it is read."""

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError
from tokflow.exports.index import damage_named, damaged_file
from tokflow.exports.options import PartRows
from tokflow.exports.part import FileFacts, Part
from tokflow.exports.token_files import batches_of_documents
from tokflow.pools.machine import in_order
from tokflow.store.config import Config
from tokflow.store.listed_files import Stamp
from tokflow.store.store import StoredOutput
from tokflow.store.tables import offsets_of, to_arrow

Arrays = dict[str, npt.NDArray[Any]]

MadeOf = Literal["stream", "sequences"]
"""stream: the tokens of a part end to end, not packed; sequences: packed, all of one length."""


TOKENS_AT_ONCE = 2**22
"""Most tokens converted to another dtype at one go; documents stay whole."""

PORTIONS_AHEAD = 16

LOADS = 3
"""Attempts to read a portion whose files the limit of a cache removes meanwhile."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A stretch of a part that is read alone, in any order and by any thread: a row group, a record
    batch, a file that is memory-mapped."""

    stored: StoredOutput
    """The output that it is of."""
    files: tuple[str, ...]
    """The files that `load` reads, by their names there."""
    num: int
    """Sequences; of a stream tokens. Known before anything is read."""
    load: Callable[[], Arrays]
    """Return its fields in whatever types they are in the files; see `read`."""
    is_mapped: bool = False
    """True where `load` decodes nothing and costs no memory: its arrays are maps of the files, or
    `LazyNumbers` of large ones at a URL."""
    offsets: npt.NDArray[np.int64] | None = None
    """Document offsets of a stream, if known before its tokens are decoded."""

    @property
    def path(self) -> Path:
        """The first of its files, by which messages name it."""
        return self.stored.folder / self.files[0]

    def read(self) -> Arrays:
        """Return its fields as they are in the files, where `Export.read` makes them alike; remote
        files are fetched to this disk.

        token_ids are of any type of whole numbers, (num,) or (num, sequence_length). offsets of a
        stream are int64, of whole documents and from 0. loss_mask is bool, and not there where
        every token is a loss token.

        Raises: CorruptOutputError where it has more or less than `num`, or cannot be read;
        MissingOutputError where it has been deleted since.
        """
        return self._checked(self._loaded)

    def read_lazily(self) -> Arrays:
        """Return what `read` does, and fetch no more of large files at a URL than the slices that
        are taken, where the format allows it: those fields are `LazyNumbers`. Raises: as `read`."""
        return self._checked(self.load if self.is_mapped else self._loaded)

    def _checked(self, load: Callable[[], Arrays]) -> Arrays:
        with damage_named(self.path):
            fields = load()
            token_ids, offsets = fields["token_ids"], fields.get("offsets")
        if len(token_ids) != self.num:
            unit = "tokens" if token_ids.ndim == 1 else "sequences"
            expected, found = f"{self.num:,} {unit} in a portion", f"{len(token_ids):,}"
            raise damaged_file(self.path, expected=expected, found=found)
        if offsets is not None:
            edges = [*offsets[:1].tolist(), *offsets[-1:].tolist()]
            if edges != [0, self.num] or (offsets[1:] < offsets[:-1]).any():
                expected = f"documents end to end in {self.num:,} tokens of a portion"
                raise damaged_file(self.path, expected=expected, found="other offsets")
        return fields

    def _loaded(self) -> Arrays:
        """Return what `load` does, of files that are here from its beginning to its end: where the
        limit of the cache takes one away meanwhile, some libraries would read zeros."""
        for _ in range(LOADS):
            self.stored.fetch(self.files)
            with suppress(FileNotFoundError):
                before = self._stamps()
                fields = self.load()
                if self._stamps() == before:
                    return fields
        return {name: np.asarray(values) for name, values in self.load().items()}

    def _stamps(self) -> list[Stamp]:
        return [Stamp.of((self.stored.folder / name).stat()) for name in self.files]


def fetched_ahead(portions: Sequence[Portion]) -> Iterator[Portion]:
    """Yield portions of one output in order, those whose files have come, while those of the next
    PORTIONS_AHEAD are on their way."""

    def fetched(some: Sequence[Portion]) -> Sequence[Portion]:
        some[0].stored.fetch(dict.fromkeys(name for portion in some for name in portion.files))
        return some

    firsts = range(0, len(portions), PORTIONS_AHEAD)
    several = (portions[first : first + PORTIONS_AHEAD] for first in firsts)
    return chain.from_iterable(in_order(fetched, several, workers=1))


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of the files of an export."""

    made_of: MadeOf
    keeps: tuple[str, ...]
    """The fields that the files hold; the rest is lost.

    Of a stream: token_ids (num_tokens,); offsets, int64 (num_documents + 1,), where each
    document begins, in tokens; loss_mask, bool (num_tokens,). Of sequences: token_ids,
    segment_ids, position_ids, loss_mask, each (num_sequences, sequence_length)."""
    eos_first: bool = False
    """True: in a stream the EOS of each document stands before it, not behind it."""
    leaves_out_empty: bool = False
    """True: documents without tokens are not among the offsets of a stream."""
    columns: tuple[str, ...] = ()
    """Columns of files with a record per sequence, except the one that only chats have."""
    attends_across: bool = False
    """True of a stream whose readers know where documents begin and attend across them."""

    @property
    def is_packed(self) -> bool:
        """True where it holds sequences."""
        return self.made_of == "sequences"

    @property
    def is_across_documents(self) -> bool:
        """True where readers cannot but attend from one document to the next, or do so by default:
        nothing tells them where documents begin, or they do not ask."""
        return self.attends_across or not {"offsets", "segment_ids", "position_ids"} & {*self.keeps}


def pieces(fields: Arrays, layout: Layout, dtype: np.dtype[Any]) -> Iterator[Arrays]:
    """Yield the fields of a portion, token_ids as `dtype`, and of sequences with the loss mask
    that the format keeps. In pieces where they have to be copied, else at once."""
    token_ids = fields["token_ids"]
    is_copied = token_ids.dtype.itemsize != dtype.itemsize
    if "offsets" in fields and is_copied:  # whole documents
        for here, offsets in batches_of_documents(np.diff(fields["offsets"]), TOKENS_AT_ONCE):
            mask = {"loss_mask": fields["loss_mask"][here]} if "loss_mask" in fields else {}
            yield {"token_ids": token_ids[here].astype(dtype), "offsets": offsets, **mask}
    elif not (layout.is_packed or is_copied):
        yield {**fields, "token_ids": of_dtype(token_ids, dtype)}
    else:
        at_once = max(1, TOKENS_AT_ONCE // max(1, token_ids[:1].size))
        for first in range(0, len(token_ids), at_once):
            some = {name: values[first : first + at_once] for name, values in fields.items()}
            some["token_ids"] = of_dtype(some["token_ids"], dtype)
            if layout.is_packed and "loss_mask" in layout.keeps and "loss_mask" not in some:
                some["loss_mask"] = some["segment_ids"] != 0
            yield some


def of_dtype(token_ids: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return token ids as `dtype`; nothing is copied where it has as many bytes."""
    is_viewed = token_ids.dtype.itemsize == dtype.itemsize
    return token_ids.view(dtype) if is_viewed else token_ids.astype(dtype)


def in_lists(
    read: Iterator[Arrays], names: Sequence[str], num: int, sizes: Any, *, dtype: np.dtype[Any]
) -> dict[str, pa.Array]:
    """Return each field of the first `num` sequences, all of one size, or of the first documents of
    a stream, which have these numbers of tokens."""
    is_fixed = np.ndim(sizes) == 0
    offsets = np.array([0, num * sizes]) if is_fixed else offsets_of(sizes)
    num_positions = left = int(offsets[-1])
    dtypes = {"token_ids": dtype, "loss_mask": np.dtype(bool)}
    found: dict[str, list[Any]] = {
        name: [np.zeros(0, dtypes.get(name, np.dtype(np.int32)))] for name in names
    }
    while names and left > 0 and (fields := next(read, None)) is not None:
        left -= fields["token_ids"].size
        for name in names:
            found[name].append(fields[name].reshape(-1))
    flat = {name: to_arrow(np.concatenate(of)[:num_positions]) for name, of in found.items()}
    if is_fixed:
        return {name: pa.FixedSizeListArray.from_arrays(of, sizes) for name, of in flat.items()}
    starts = to_arrow(offsets)
    return {name: pa.LargeListArray.from_arrays(starts, of) for name, of in flat.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceNames:
    """Names of what the tokens of a dataset come from, for the formats that write them down.

    Paths are those of the YAML, from the folder that its relative ones start at, so that they are
    found from there and a project gives the same bytes wherever it lies; of a path outside that is
    absolute, the last name alone. A URL is whole but for its secrets."""

    source: str
    """The raw files."""
    columns: tuple[str, ...]
    """The columns of a record that were read."""
    tokenizer: str
    """An encoding, an id on the hub or a file; `bytes`; of one that was trained, for what."""
    config_name: str | None = None
    """The config of a dataset of the hub, where one is named."""
    drawn_fraction: float = 0.0
    """Share of the documents that was drawn for validation; 0: none was drawn."""
    is_drawn: bool = False
    """Documents were drawn for validation, and not taken in order."""
    seed: int = 42
    """Seed of the draw; of none, 42."""

    def fields(self) -> dict[str, Any]:
        """Return the names that there are and, where documents were drawn for validation, how."""
        lacking = set() if self.is_drawn else {"drawn_fraction", "is_drawn", "seed"}
        if self.config_name is None:
            lacking.add("config_name")
        return {name: of for name, of in asdict(self).items() if name not in lacking}


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """An optional package, which only some formats need."""

    name: str
    """The name in brackets: `pip install "dagster-tokflow[name]"`."""
    module: str
    """The module of it that is imported."""

    def load(self) -> Any:
        """Return the module.

        Raises: ConfigError that says what to install, where it is not there. One that is there and
        lacks what it needs itself raises as any import does.
        """
        self.check(where=self.name)
        return importlib.import_module(self.module)

    def check(self, *, where: str) -> None:
        """Make sure that `load` finds the module, which is looked for and not imported.

        Raises: ConfigError.
        """
        if importlib.util.find_spec(self.module) is None:
            raise ConfigError(
                where=where,
                expected=f"the package {self.module}, which comes with the extra {self.name}",
                found="none",
                remedy=f'run `pip install "dagster-tokflow[{self.name}]"`',
            )


@dataclass(frozen=True, slots=True)
class Format:
    """One export format."""

    options: type[Config]
    """The fields a user can set beside `format`. Its docstring is the format's `description`."""
    layout: Callable[[Any], Layout]
    """The content of the files, given the options."""
    write: Callable[[Part, Any, Path], Iterator[FileFacts]]
    """Write the files of one part, which has tokens or of sequences one at least, into the folder;
    yield for each that is whole what `finish` must know of it. Of sequences those `part.within`."""
    name: Callable[..., str]
    """The name of a file of a part, given the part's `file_name`, its number, the options, how many
    there are (of sequences; 0 where it counts for nothing), and the name of the dataset. Files of
    whole raw files have the same bytes under any name."""
    _: KW_ONLY
    beside: Callable[[str], Sequence[str]] = lambda name: ()
    """The names of the files that a file can have beside it, read with it."""
    load: Callable[[Any, str], Arrays] | None = None
    """Return the fields of a file of an `Export`, of which each is a portion; see `portions`."""
    is_mapped: Callable[[Any], bool] = lambda options: True
    """Whether `load` decodes nothing, given the options."""
    lengths: Callable[[Any, str], Sequence[int]] | None = None
    """Return the tokens of each file of a part of an `Export` of a stream. None: what it has room
    for behind `header_bytes`."""
    header_bytes: int = 0
    portions: Callable[[Any, str], Sequence[Portion]] | None = None
    """Return what one part of an `Export` is read in, in order, where that are no files that are
    loaded whole: what is decoded at once; none of a part without a file. Nothing is decoded yet.
    Without it and `load` the format is never read.

    A document lies whole in a portion if the format keeps offsets. loss_mask is in it where the
    format keeps it, and of a stream only of chats."""
    finish: Callable[[Sequence[Part], Any, Path], object] = lambda parts, options, folder: None
    """Write what is about several files, such as an index, given all parts that have some, and with
    each its `files`; there is one part at least."""
    file_names: Callable[[Any, Sequence[str]], Mapping[str, str]] = lambda options, parts: {
        part: part for part in parts
    }
    """The name of each part in file names: `Part.file_name`. Refuses, by a ConfigError, options
    that do not go with the parts."""
    sizes: Callable[[PartRows, Any], list[int] | None] = lambda rows, options: None
    """Number of sequences in each file of a part, where no file depends on another, so that several
    processes can write them. None: one process writes all."""
    token_bytes: int | None = None
    """Bytes that `shard_size` counts for a token of a stream; None: those of its dtype."""
    extra: Extra | None = None
    """The optional package that `write` and `portions` need, looked for when a dataset is
    declared."""
    part_names: tuple[str, ...] | None = None
    """The parts that the format has a file for, whatever the dataset has; None: any."""
    check: Callable[[Any, Collection[int]], object] = lambda options, lengths: None
    """Refuse, by a ConfigError, options that cannot go with sequences of these lengths, as the
    parts of the dataset have them."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Options that are names of the dataset's where the user sets none: the option, and the field
    of SourceNames."""
    version: int = 1
    """Raised when the same input would give other bytes of the format's files."""
    has_time: Callable[[str], bool] = lambda name: False
    """Whether a file of this name has the time of its writing, so that its bytes are never the same
    again."""

    @property
    def is_read(self) -> bool:
        """True where its files can be read back; pickle is written and never read."""
        return self.load is not None or self.portions is not None

    @property
    def description(self) -> str:
        """One line for people: whose format it is and what the files are called."""
        return " ".join(str(self.options.__doc__).split()).removesuffix(".")
