"""Opening of exports and token stores: the arguments that rows are opened with, and the portions of
a part, each read when it is needed; those used last are kept."""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports import FORMATS, Arrays, Export, Portion, damaged_file
from tokflow.exports.options import ShardOptions
from tokflow.exports.reading import is_export
from tokflow.loaders.samples import Numbers, StoredFile, fetch
from tokflow.pools.machine import free_bytes, renew_in_forks
from tokflow.store.integrity import Stored
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import find_output
from tokflow.store.tables import offsets_of, read_table, to_numpy
from tokflow.tokens import read_ahead
from tokflow.tokens.shard import TokenShard, is_shard
from tokflow.tokens.shard_files import DOCUMENTS_NAME, LOSS_MASK_NAME, TOKENS_NAME

KEPT_BYTES = 2**28
"""Decoded fields that a source keeps."""

MAX_MAPPED = 10_000
"""Memory-mapped portions that a source keeps: a process has some 65,000 maps, and a portion some
files."""


LOOK_SECONDS = 1
"""Seconds from one look for files that are gone to the next; it takes 20 ms for 10,000."""


class KeptPortions:
    """The portions of a part by their number. Those used last are kept: of what is decoded, the
    offsets of memory-mapped ones too, KEPT_BYTES; MAX_MAPPED in all; and in any case the last.

    Any thread may ask; who asks for a portion that another reads waits for it.
    """

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self.edges: Numbers = offsets_of([portion.num for portion in portions])
        """The position, or the row, at which each portion begins, and the end of the last."""
        self._keep_none()
        renew_in_forks(self, KeptPortions._keep_none)  # which would wait for its parent's threads

    def _keep_none(self) -> None:
        self._kept: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self._costs: dict[int, int] = {}
        """Bytes by number, of portions that are read."""
        self._total = 0
        self._look_again = 0.0
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Arrays:
        """Return the fields of a portion."""
        with self._lock:
            kept = self._kept.get(number)
            if is_new := kept is None:
                kept = self._kept[number] = Future()
            else:
                self._kept.move_to_end(number)
        if is_new:
            self._read(number, kept)
        return kept.result()

    def of(self, places: Numbers) -> Numbers:
        """Return the number of the portion that each position, or row, is in."""
        return np.searchsorted(self.edges, places, side="right") - 1

    @cached_property
    def is_remote(self) -> bool:
        """Whether files come from a URL when they are read."""
        return bool(self._portions) and self._portions[0].stored.store.is_cached

    @cached_property
    def exceeds_memory(self) -> bool:
        """Whether its files are larger than the memory that is free when this is first asked."""
        files = {name: portion.stored for portion in self._portions for name in portion.files}
        return sum(of.manifest.files[name].num_bytes for name, of in files.items()) > free_bytes()

    def expect(self, number: int, values: npt.NDArray[Any], starts: Numbers, num: int) -> None:
        """Ask the system to read `num` values of a field of a portion from each of these on, and
        nothing beside them. Does nothing where the files may come into memory whole."""
        if self._portions[number].is_mapped and self.exceeds_memory:
            read_ahead(values, starts, np.full_like(starts, num))

    def files_of(self, places: Numbers) -> Iterator[StoredFile]:
        """Yield the files of positions, or rows, that are in portions which are not kept."""
        numbers = np.unique(np.minimum(self.of(places), len(self._portions) - 1)).tolist()
        unread = [self._portions[number] for number in numbers if number not in self._kept]
        for name in dict.fromkeys(name for portion in unread for name in portion.files):
            yield unread[0].stored, name

    def fetch(self, places: Numbers) -> None:
        """Bring the files of positions, or rows, to this disk, several at once, where `[]` would
        bring one after another; does nothing where all are here."""
        if self.is_remote:
            fetch(self.files_of(places))

    def _read(self, number: int, kept: Future[Arrays]) -> None:
        try:
            portion = self._portions[number]
            fields = portion.read()
        except BaseException as error:
            with self._lock:
                del self._kept[number]
            kept.set_exception(error)
            return
        # Plain arrays over maps: their slices cost a fifth of a memmap's.
        kept.set_result({name: np.asarray(values) for name, values in fields.items()})
        is_mapped = portion.is_mapped
        decoded = [of for of in fields.values() if of.flags.owndata or not is_mapped]
        cost = KEPT_BYTES // MAX_MAPPED + sum(values.nbytes for values in decoded)
        with self._lock:
            self._costs[number], self._total = cost, self._total + cost
            # Maps of files that the limit of the cache took away: the disk has their room again.
            if self.is_remote and is_mapped and time.monotonic() >= self._look_again:
                self._look_again = time.monotonic() + LOOK_SECONDS
                for kept_number in list(self._costs):
                    if not self._portions[kept_number].path.exists():
                        self._forget(kept_number)
            while self._total > KEPT_BYTES and len(self._costs) > 1:
                self._forget(next(each for each in self._kept if each in self._costs))

    def _forget(self, number: int) -> None:
        self._total -= self._costs.pop(number)
        del self._kept[number]


ROWS_VERSION = 1
"""Raised when the same tokens would give other rows."""

Tail: TypeAlias = Literal["pad", "drop"]
"""The last row of a stream, where it is not full: padded, or left out."""

MADE_FROM = {
    "input_ids": ("token_ids",),
    "labels": ("token_ids",),
    "segment_ids": ("offsets", "segment_ids"),
    "position_ids": ("offsets", "segment_ids", "position_ids"),
    "loss_mask": ("loss_mask",),
    "index": ("token_ids",),
}
"""Fields of rows in their order, and the fields of an export of which each needs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of `open_rows`. A source of rows is pickled as these: without its tokens."""

    output: StoredOutput = field(repr=False, hash=False)
    part: str | None
    """The part; None of a token store, which has none."""
    sequence_length: int | None = None
    fields: tuple[str, ...] | None = None
    tail: Tail = "pad"
    across_documents: bool | None = None

    def fields_of(self, stored: Stored, keeps: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of the rows: those asked for and the index, or all that there are.

        Raises: ConfigError for one that the output does not keep.
        """
        known = {name for name, needed in MADE_FROM.items() if {*needed} & {*keeps}}
        if "loss_mask" not in stored.manifest.details.get("lost", ()):
            known.add("loss_mask")  # every token is a loss token
        for name in self.fields or ():
            if name not in MADE_FROM:
                raise ConfigError(
                    where="fields",
                    expected=f"some of {', '.join(MADE_FROM)}",
                    found=repr(name),
                    remedy="name some of them",
                )
            if name not in known:
                raise lost(f"fields: {name}", stored, MADE_FROM[name])
        chosen = known if self.fields is None else {*self.fields, "index"}
        return tuple(name for name in MADE_FROM if name in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRows:
    """The rows of one part of an export or a token store, in the order of their files.

    `gather(numbers)` returns rows in the order asked for, in arrays of their own, which the caller
    may change; several threads may ask at once.
    """

    opening: Opening
    stored: StoredOutput = field(repr=False, compare=False)
    fields: tuple[str, ...]
    """The names of what `gather` returns."""
    sequence_length: int
    """Inputs of a row."""
    across_documents: bool
    """The first token of a document is the label of the last of the document before it."""
    portions: KeptPortions = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The export and the part, for people: `demo/exports/bin/train`."""
        manifest = self.stored.manifest
        if self.opening.part is None:
            return f"{manifest.dataset}/{manifest.recipe.stage}/{manifest.partition}"
        return f"{manifest.dataset}/exports/{self.stored.export_name}/{self.opening.part}"

    @property
    def fingerprint(self) -> str:
        """sha256 of what decides its rows: another content, part or length is another one; another
        division of an export into files, and other names of bad files, are not."""
        recipe = self.stored.manifest.recipe
        config = {name: of for name, of in recipe.config.items() if name != "bad_files"}
        if options := config.get("options", {}).items():
            divide = ShardOptions.model_fields
            config["options"] = {name: of for name, of in options if name not in divide}
        output, decides = replace(recipe, config=config).fingerprint, [self.across_documents]
        if "tail" in self.cut:  # of a stream
            decides = [*self.cut.values()]
        own = json.dumps([ROWS_VERSION, output, self.opening.part, *decides])
        return hashlib.sha256(own.encode()).hexdigest()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The source as the identity of samples has it, as JSON: its fingerprint, the place of its
        output, which decides nothing, and how it is cut."""
        return {
            "name": self.name,
            "path": self.stored.shown,
            "part": self.opening.part,
            "fingerprint": self.fingerprint,
            "output": self.stored.manifest.recipe.fingerprint[:16],  # its folder in the store
            **self.cut,
        }

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the tokenizer that made its tokens; empty where it is not known."""
        details, parents = self.stored.manifest.details, self.stored.manifest.recipe.parents
        return str(details.get("tokenizer_fingerprint") or parents.get("tokenizer", ""))

    @property
    def cut(self) -> Mapping[str, Any]:
        """The arguments of `open_rows` that decide how rows are cut from the tokens, as JSON. The
        fingerprint has them too; these are for people."""
        return {"sequence_length": self.sequence_length, "across_documents": self.across_documents}


def find_part(
    path: str | Path | StoredOutput, part: str | None
) -> tuple[StoredOutput, str | None, bool]:
    """Return the output at a path or URL, the part of it that is named or the only one, None of a
    token store, and whether it holds packed rows.

    Raises: ConfigError, as `find_output`.
    """
    output = path if isinstance(path, StoredOutput) else find_output(path)
    if is_export(output.manifest):
        export = Export(output)
        is_only = part is None and len(export.parts) == 1
        export.check_part(name := export.parts[0] if is_only else part)
        return output, name, export.layout.is_packed
    if not is_shard(output.manifest):
        raise MissingOutputError(
            where=output.folder,
            expected="an export, or the tokens of a raw file",
            found=output.name,
            remedy="name the folder of one of them",
        )
    if part is not None:
        raise ConfigError(
            where=output.folder,
            expected="no part, for the tokens of a raw file are not split",
            found=repr(part),
            remedy="leave `part` out, or open an export",
        )
    return output, None, False


def portions_of(export: Export, part: str, count: str) -> Sequence[Portion]:
    """Return the portions of a part. Raises: CorruptOutputError where they have not together as
    many `tokens`, or `sequences`, as the manifest counts."""
    portions = export.portions(part)
    num, num_found = export.counts[f"{part}.num_{count}"], sum(of.num for of in portions)
    if num_found != num:
        expected = f"{num:,} {count} of {part}"
        raise damaged_file(export.folder, expected=expected, found=f"{num_found:,}")
    return portions


def packed_portions(export: Export, part: str) -> list[Portion]:
    """Return the portions of a part; what is decoded in the smallest types that hold it, for more
    of them are kept so."""
    small = np.uint16 if export.manifest.details["sequence_length"] < 2**16 else np.int32
    types = {"token_ids": export.dtype, "segment_ids": small, "position_ids": small}

    def narrowed(load: Callable[[], Arrays]) -> Arrays:
        return {
            name: values.astype(types.get(name, values.dtype), copy=False)
            for name, values in load().items()
        }

    return [
        of if of.is_mapped else replace(of, load=partial(narrowed, of.load))
        for of in portions_of(export, part, "sequences")
    ]


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of a part, documents end to end."""

    output: StoredOutput
    portions: Sequence[Portion]
    keeps: tuple[str, ...]
    """The fields that portions have: token_ids and, if it is kept, offsets."""
    has_loss_mask: bool
    """Whether portions have loss_mask: of chats."""


def open_stream(output: StoredOutput, part: str | None) -> Stream:
    """Return the tokens of a part of a stream export, or those of a token store, where part is
    None. No token is read.

    Raises: ConfigError, MissingOutputError, CorruptOutputError, ForeignOutputError.
    """
    output.store.look_for([output.folder])  # this may be another process than opened it first
    output.store.check(output)
    if part is None:
        return _of_shard(TokenShard(output))
    export = Export(output)
    portions = portions_of(export, part, "tokens")
    return Stream(export.stored, portions, export.layout.keeps, export.has_loss_mask(part))


def _of_shard(shard: TokenShard) -> Stream:
    stored = shard.stored

    def load(tokens: str, documents: str, mask: str | None) -> Arrays:  # mapped but for the offsets
        token_ids = stored.numbers(tokens, shard.dtype)
        table = read_table(stored.file(documents), ["token_offset"])
        offsets = np.append(to_numpy(table["token_offset"]), len(token_ids))
        fields = {"token_ids": token_ids, "offsets": offsets}
        return fields | ({"loss_mask": stored.numbers(mask, np.bool_)} if mask else {})

    shard.check_tokens()
    names = [shard.names(name) for name in (TOKENS_NAME, DOCUMENTS_NAME)]
    masks = shard.names(LOSS_MASK_NAME) if shard.has_loss_mask else [None] * len(shard.segments)
    portions = []
    for counts, *of in zip(shard.segments, *names, masks, strict=True):
        files = tuple(name for name in of if name)
        portions.append(Portion(stored, files, counts["num_tokens"], partial(load, *of), True))
    return Stream(stored, portions, ("token_ids", "offsets"), shard.has_loss_mask)


def lost(where: str, output: Stored, needed: Sequence[str]) -> ConfigError:
    """Return the error of an export that keeps no field of those needed: which formats do."""
    details = output.manifest.details
    is_packed = "sequence_length" in details
    formats = [
        name
        for name, of in FORMATS.items()
        if (layout := of.layout(of.options())).is_packed == is_packed
        and {*needed} & {*layout.keeps}
    ]
    return ConfigError(
        where=where,
        expected=f"an export that keeps {' or '.join(needed)}",
        found=f"{details['format']}, which loses that",
        remedy=f"leave it out, or open one of the formats {', '.join(formats)}, which keep it",
    )
