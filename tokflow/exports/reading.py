"""An export on disk: what it is, and the tokens in its files."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError, MissingOutputError, first_five, nearest
from tokflow.exports.format import Arrays, Format, Layout, Portion, fetched_ahead, in_lists, pieces
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import damage_named, damaged_file, documents_of_stream
from tokflow.exports.options import PartRows
from tokflow.exports.part import FileFacts
from tokflow.store.listed_files import LATEST
from tokflow.store.manifest import Manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.stored_outputs import opened, output_in
from tokflow.store.tables import to_numpy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Export(InStore):
    """A finished export, as `tokflow.open_export` opens it; its files are read when asked for."""

    stored: StoredOutput

    @property
    def format_name(self) -> str:
        """The name of its format: `bin`, `parquet` and so on."""
        return str(self.manifest.details["format"])

    @property
    def format(self) -> Format:
        """Its format, with its description, writer and reader."""
        return FORMATS[self.format_name]

    @property
    def is_read(self) -> bool:
        """True where its format can be read back; pickle is written and never read."""
        return self.format.is_read

    @property
    def options(self) -> Any:
        """The options of the format that it was written with."""
        return self.format.options(**self.manifest.recipe.config["options"])

    @property
    def layout(self) -> Layout:
        """The fields in its files: `layout.made_of` is `stream` or `sequences`."""
        return self.format.layout(self.options)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its parts: `train`, `validation` and so on."""
        return tuple(self.manifest.details["parts"])

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts by part, such as `train.num_tokens` and `train.num_sequences`; `train.num_padding`
        is the padding in the files, less than `read` yields where `padding` leaves some out."""
        return self.manifest.counts

    def facts(self, part: str) -> list[FileFacts]:
        """Return the facts of the files of a part, where files are of whole raw files."""
        shards = self.manifest.details.get("shards", {}).get(part, [])
        return [facts for shard in shards for facts in shard.get("files", [])]

    def has_loss_mask(self, part: str) -> bool:
        """Return whether the files of a part have a loss mask: that of chats, if the format keeps
        it."""
        return f"{part}.num_loss_tokens" in self.counts

    def rows(self, part: str) -> PartRows:
        """Return what decides how the sequences of a part are divided into files."""
        details, num = self.manifest.details, self.counts[f"{part}.num_sequences"]
        shards = details.get("shards", {}).get(part)
        facts = num, details["sequence_length"], self.has_loss_mask(part), self.dtype
        return PartRows(*facts, [("", num)], shards and [of["num_sequences"] for of in shards])

    def num_positions(self, part: str) -> int:
        """Return how many positions of a part `read` yields, and index and `trace` count: those of
        its tokens and, of sequences, all padding up to sequence_length, in the files or not."""
        length = self.of_part(part).sequence_length
        if length is None:
            return self.counts[f"{part}.num_tokens"]
        return self.counts[f"{part}.num_sequences"] * length

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The dtype of token ids as they are read: uint16 or uint32."""
        dtype: np.dtype[np.unsignedinteger] = np.dtype(self.manifest.details["dtype"])
        return dtype

    @property
    def vocab_size(self) -> int:
        """One more than the largest id of the tokenizer."""
        return int(self.manifest.details["vocab_size"])

    @property
    def eos_id(self) -> int | None:
        """The id that ends each document; None where none does."""
        eos_id: int | None = self.manifest.details["eos_id"]
        return eos_id

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sequence; None of a stream.

        Raises: ConfigError where the parts differ.
        """
        length: int | dict[str, int] | None = self.manifest.details.get("sequence_length")
        if isinstance(length, dict):
            found = ", ".join(f"{of:,} in {part}" for part, of in length.items())
            remedy = "ask for that of a part: `of_part(name).sequence_length`"
            raise self._error("", "sequences of one length", found, remedy)
        return length

    def of_part(self, part: str) -> "Export":
        """Return it with the sequence_length, pad_id and padding_side of a part, which can differ
        from those of other parts. Raises: ConfigError."""
        self.check_part(part)
        own = {
            name: value[part]
            for name, value in self.manifest.details.items()
            if name in ("sequence_length", "pad_id", "padding_side") and isinstance(value, dict)
        }
        details = {**self.manifest.details, **own}
        return self._with(details) if own else self

    def with_fields(self, names: Collection[str]) -> "Export":
        """Return it as one that keeps no fields but these: what they do not need is not decoded by
        formats that have columns."""
        keeps = [name for name in self.manifest.details["keeps"] if name in names]
        details = {**self.manifest.details, "keeps": keeps}
        return self._with(details)

    def _with(self, details: Mapping[str, Any]) -> "Export":
        manifest = replace(self.manifest, details=details)
        return replace(self, stored=replace(self.stored, manifest=manifest))

    def names_below(self, folder: str) -> list[str]:
        """Return its files that are in a folder of its own, or in one below that."""
        return [name for name in self.manifest.files if name.startswith(f"{folder}/")]

    def numbered(self, part: str) -> list[str]:
        """Return the files of a part that are numbered, in order; at most one where all have the
        same name."""
        own, options, dataset = self.file_name(part), self.options, self.manifest.dataset
        name_of, found = self.format.name, list[str]()
        while (name := name_of(own, len(found), options, 0, dataset)) in self.manifest.files:
            if name in found[-1:]:
                break
            found.append(name)
        return found

    def _file_portions(self, part: str) -> list[Portion]:
        """Return the files of a part, each a portion that the format loads, with those beside it
        that there are."""
        format_, files, names = self.format, self.manifest.files, self.numbered(part)
        is_packed, is_mapped = self.layout.is_packed, format_.is_mapped(self.options)
        sizes: Sequence[int] = [self.counts[f"{part}.num_{'sequences' if is_packed else 'tokens'}"]]
        if len(names) != 1 and is_packed:
            sizes = format_.sizes(self.rows(part), self.options) or ()
        elif len(names) != 1 and format_.lengths is not None:
            sizes = format_.lengths(self, part)
        elif len(names) != 1:
            of_files = [files[name].num_bytes - format_.header_bytes for name in names]
            sizes = [num_bytes // self.dtype.itemsize for num_bytes in of_files]
        found = []
        for name, num in zip(names, sizes, strict=True):
            own = (name, *(of for of in format_.beside(name) if of in files))
            load = partial(cast(Any, format_.load), self, name)
            found.append(Portion(self.stored, own, num, load, is_mapped))
        return found

    def batch_portions(
        self,
        load: Callable[[str, int, slice], Arrays],
        names: Sequence[str],
        sizes: Iterable[int],
        at_once: int,
        *,
        is_mapped: bool = False,
    ) -> list[Portion]:
        """Return the batches of files with these numbers of sequences; `load` is given a batch's
        file, its number there and its rows there. The last of a file has no end, so that surplus
        rows are found. Of 5 sequences in the file a and 3 in b, 3 at once: 3 and 2 of a, 1 and 2 of
        b; `shards: by_file` 3 of b.
        """
        found, first = [], 0
        for name, size in zip(names, sizes, strict=True):
            stop = first + size
            start = first if self.options.is_by_file else first - first % at_once
            edges = [first, *range(start + at_once, stop, at_once), stop]
            for number, (start, end) in enumerate(pairwise(edges)):
                rows = slice(start - first, None if end == stop else end - first)
                of_batch = partial(load, name, number, rows)
                found.append(Portion(self.stored, (name,), end - start, of_batch, is_mapped))
            first = stop
        return found

    def file_name(self, part: str) -> str:
        """Return what the names of its files call a part."""
        return self.format.file_names(self.options, self.parts)[part]

    def check_part(self, part: str | None) -> None:
        """Make sure that it has a part, and that one is named. Raises: ConfigError."""
        if part not in self.parts:
            expected = f"one of the parts {', '.join(self.parts)}"
            found = "none named" if part is None else repr(part)
            raise self._error("", expected, found, "name one of them")

    def read(self, part: str) -> Iterator[Arrays]:
        """Yield the fields of a part in order, some millions of tokens or a file at a time: those
        of each of its `portions`, in the same types for every format.

        Of a stream: token_ids, `dtype`, (num_tokens,); if the format keeps them, offsets, int64
        (num_documents + 1,), of whole documents and from 0 each time; and of chats loss_mask, bool
        (num_tokens,). Of sequences, (num_sequences, sequence_length) each: token_ids, and what of
        segment_ids, position_ids (int32, 0 is padding) and loss_mask (bool) the format keeps; rows
        that `padding: none` or `longest` wrote shorter are filled again, on their padding_side.
        Arrays are memory-mapped where the format can be. Nothing is yielded for an empty part.

        Raises: ConfigError for a part that it does not have, and for a format that is never read
        (pickle); CorruptOutputError where a file is not what the format says.
        """
        fields = (portion.read() for portion in fetched_ahead(self.portions(part)))
        return (piece for some in fields for piece in pieces(some, self.layout, self.dtype))

    def between(self, part: str, start: int, stop: int) -> Iterator[Arrays]:
        """Yield the token_ids at positions of a part and, where there is one, their loss_mask,
        (num,) each, together stop - start; of other files nothing is read. Raises: as `read`, and
        CorruptOutputError where an id is neither of the vocabulary nor padding."""
        layout, length, end = self.layout, self.of_part(part).sequence_length or 1, 0
        for portion in self.portions(part):
            begin, end = end, end + portion.num * length
            first, last = max(start - begin, 0), min(stop, end) - begin
            if first >= last:
                continue
            rows, fields = slice(first // length, -(-last // length)), portion.read_lazily()
            some = {name: of[rows] for name, of in fields.items() if name != "offsets"}
            skipped, left = first % length, last - first
            for piece in pieces(some, layout, self.dtype):
                self.check_ids(piece["token_ids"], portion.path)
                flat = {name: piece[name].ravel() for name in {"token_ids", "loss_mask"} & {*piece}}
                own = slice(skipped, skipped + left)
                yield (found := {name: values[own] for name, values in flat.items()})
                skipped, left = 0, left - len(found["token_ids"])

    def check_ids(self, token_ids: npt.NDArray[Any], path: Path) -> None:
        """Raise CorruptOutputError, which names `path`, where an id is neither of the vocabulary
        nor padding."""
        pad_ids = self.manifest.details.get("pad_id") or 0
        pad_id = max(pad_ids.values()) if isinstance(pad_ids, dict) else pad_ids
        most = max(self.vocab_size - 1, pad_id)
        if token_ids.size and (largest := int(token_ids.max())) > most:
            raise damaged_file(path, expected=f"token ids up to {most:,}", found=f"{largest:,}")

    def portions(self, part: str) -> Sequence[Portion]:
        """Return what a part is read in, each known by its size and read alone, in any order.

        Raises: as `read`.
        """
        of_part = self.of_part(part)
        if not self.is_read:
            found = f"{self.format_name}, which is written and never read"
            remedy = (
                "name another export of the dataset, or declare a format in its YAML and run "
                "`tokflow run`, which tokenizes nothing again"
            )
            raise self._error("", "an export whose tokens tokflow reads", found, remedy)
        with damage_named(self.folder):
            portions = self.format.portions
            return portions(of_part, part) if portions else of_part._file_portions(part)

    def to_arrow(
        self, part: str, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.Table:
        """Return a part as a table, with all columns and rows or `columns` and the first `limit`.

        Of sequences a row is a sequence: token_ids and what the format keeps of segment_ids,
        position_ids and loss_mask, lists of sequence_length. Of a stream a row is a document, or
        the piece of one that the part has: its place as in the index (position, num_tokens,
        raw_file, row, char_start), the columns kept of raw files, then token_ids and, of chats,
        loss_mask; documents without a token are not there.

        All of it is in memory. Raises: ConfigError for a column that is not there; as `read`.
        """
        export, layout = self.of_part(part), self.layout
        if limit is not None and limit < 0:
            raise self._error(": limit", "rows to return, or None", f"{limit:,}", "correct it")
        documents = (
            pa.table({}) if layout.is_packed else documents_of_stream(export.stored, part, limit)
        )
        is_masked = layout.is_packed or export.has_loss_mask(part)
        left_out = {"offsets"} if is_masked else {"offsets", "loss_mask"}
        fields = [name for name in layout.keeps if name not in left_out]
        known = [*documents.column_names, *fields]
        names = known if columns is None else columns
        for name in set(names).difference(known):
            remedy = nearest(name, known) or "name columns that it has"
            raise self._error(": columns", f"names among {', '.join(known)}", repr(name), remedy)
        wanted = [name for name in names if name in fields]
        read = export.with_fields([*wanted, "token_ids", "segment_ids"]).read(part)
        if layout.is_packed:
            num = export.counts[f"{part}.num_sequences"]
            num = num if limit is None else min(num, limit)
            sizes: Any = export.sequence_length
        else:
            num, sizes = len(documents), to_numpy(documents["num_tokens"])
        lists = in_lists(read, wanted, num, sizes, dtype=self.dtype)
        return pa.table({name: lists[name] if name in lists else documents[name] for name in names})

    def to_pandas(
        self, part: str, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> "pd.DataFrame":
        """Return a part as a DataFrame: `to_arrow`, with an array of numpy where it has a list."""
        return self.to_arrow(part, columns, limit).to_pandas()

    def _error(self, where: str, expected: str, found: str, remedy: str) -> ConfigError:
        place = f"{self.folder}{where}"
        return ConfigError(where=place, expected=expected, found=found, remedy=remedy)


def is_export(manifest: Manifest) -> bool:
    """Return whether an output is an export."""
    return manifest.recipe.stage == "export"


def find_export(path: str | Path | StoredOutput) -> StoredOutput:
    """Return the export at `path`, or the one that it is; see `find_output`. Raises:
    MissingOutputError also where another output is there."""
    if isinstance(path, StoredOutput):
        return path
    store, path = opened(path, is_alone=True)
    try:
        output = output_in(store, path)
        if is_export(output.manifest):
            return output
        found = output.name
    except MissingOutputError as error:
        found = error.found
    store.refresh_dataset(path)
    above = (path.resolve(), *path.resolve().parents)
    exports = (sorted(of.glob(f"exports/*/{LATEST}")) for of in above)
    near = [store.shown(link.parent) for link in next(filter(None, exports), [])]
    folder = "the folder of one, <store>/<dataset>/exports/<name>, which `tokflow run` makes"
    remedy = f"name {f'one of {first_five(near)}' if near else folder}"
    expected = "the folder of an export"
    raise MissingOutputError(where=path, expected=expected, found=found, remedy=remedy)


def open_export(path: str | Path) -> Export:
    """Open an export: its folder, the `latest` link to it, a file in it, a folder with no other
    output, or the URL of one.

    Its manifest is read and the size of every file compared with it; no content is. `tokflow
    verify` compares checksums. Sequences are read as full rows, with their padding, also where
    `padding: none` or `longest` leaves it out of the files.

    Raises: MissingOutputError where there is no export; CorruptOutputError where a file is
    missing or cut short; ForeignOutputError where a newer tokflow made it.
    """
    found = find_export(path)
    found.store.check(found)
    return Export(found)
