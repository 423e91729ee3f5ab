"""Lists of documents to be excluded, and the documents of token shards that they name."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes import tables
from tokflow.attributes.config import OWN_KEYS
from tokflow.errors import ConfigError
from tokflow.formatting import counted
from tokflow.raw import RawFile
from tokflow.store.tables import make_table, one_array, repeated, to_arrow, to_numpy
from tokflow.tokens.shard import ROWS_OF_PASS, TokenShard

KEY_TYPES = {"row": pa.int64(), "text_hash": pa.binary(16)}
"""Types of keys; those of columns that are kept are text."""

EXCLUDED_SCHEMA = pa.schema(
    [
        pa.field("raw_file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("text_hash", pa.binary(16), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("list", pa.string(), nullable=False),
        pa.field("list_row", pa.int64(), nullable=False),
        pa.field("is_copy", pa.bool_(), nullable=False),
    ]
)
"""One row per document that is excluded. raw_file, row: the document; list, list_row: the first row
that names it or, with is_copy, a document of the same text."""

NOTHING = pa.Table.from_batches([], EXCLUDED_SCHEMA)  # `empty_table` imports pandas


@dataclass(frozen=True, slots=True)
class ExclusionList:
    """A list, read."""

    name: str
    file: RawFile
    by: str
    keys: pa.Array
    """What each row names documents by."""
    rows_of_files: Mapping[str, npt.NDArray[np.int64]] | None
    """With `by: row`, in which a key counts in its raw file, the rows of the list by raw file."""
    reasons: pa.Array

    def look_up(self, shard: TokenShard) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
        """Return for each document of a shard the first row that names it, or null, and all rows
        that name one; None where no row can."""
        rows, keys = np.arange(len(self.keys)), self.keys
        if self.rows_of_files is not None:
            of_files = [self.rows_of_files.get(of, rows[:0]) for of in shard.origins.raw_files]
            rows = np.concatenate(of_files)
            number = np.repeat(np.arange(len(of_files)), [len(of) for of in of_files])
            keys = pc.add(keys.take(to_arrow(rows)), to_arrow(number * ROWS_OF_PASS))
        if not len(rows):
            return None
        own = tables.keys_of(shard, self.by)
        if self.rows_of_files is not None:
            own = to_arrow(shard.origins.keys_of(to_numpy(own)))
        first = to_arrow(rows).take(pc.index_in(own, value_set=keys))
        return first, rows[to_numpy(pc.is_in(keys, value_set=own)).astype(bool)]


def read_lists(
    files: Mapping[str, RawFile], by: str | None, kept: Sequence[str]
) -> list[ExclusionList]:
    """Return lists by their names. `by`: the key that the config names, if it does; `kept`: the
    columns that documents have.

    Raises: ConfigError for a list without a key that documents have, with several where the config
    names none, and with a null or malformed key; ChangedFileError.
    """
    return [_read_list(name, file, by, kept) for name, file in files.items()]


def _read_list(name: str, file: RawFile, by: str | None, kept: Sequence[str]) -> ExclusionList:
    where = str(file.path)
    try:
        there = tables.column_names(file.path)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            where=where,
            expected="a list of documents, as parquet, jsonl or csv",
            found=str(error).splitlines()[0],
            remedy="correct the file, or `exclude`",
        ) from None
    by = by or _found_key(where, there, kept)
    columns: tables.Columns = (("row", "number"),) * (by == "row")
    columns += (("reason", "text"),) * ("reason" in there and by != "reason")
    first = "file" if by == "row" else by
    table = tables.read_columns(file.path, first, KEY_TYPES.get(first, pa.string()), columns)
    file.check_unchanged()
    keys = tables.as_keys(one_array(table[by]), KEY_TYPES.get(by, pa.string()), where)
    rows_of_files = None
    if by == "row":
        files = tables.as_keys(one_array(table["file"]), pa.string(), where).dictionary_encode()
        codes, names = to_numpy(files.indices), files.dictionary.to_pylist()
        rows_of_files = {of: np.flatnonzero(codes == code) for code, of in enumerate(names)}
    reasons = pa.nulls(len(table), pa.string())
    if "reason" in there and by != "reason":
        reasons = one_array(tables.as_declared(table, (("reason", "text"),), where)["reason"])
    reasons = pc.coalesce(reasons, repeated(name, len(table)))  # fill_null imports pandas
    return ExclusionList(name, file, by, keys, rows_of_files, reasons)


def _found_key(where: str, there: Sequence[str], kept: Sequence[str]) -> str:
    """Return the key that a list has. Raises: ConfigError where it has none, or several."""
    found = [of for of in (*OWN_KEYS, *kept) if of in there and (of != "row" or "file" in there)]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        where=where,
        expected=f"one of `file` and `row`, {', '.join(['text_hash', *kept])}",
        found=f"{', '.join(found)}" if found else f"columns {', '.join(there)}",
        remedy="say which by `exclude: {path: ..., by: ...}`" if found else "correct the list",
    )


@dataclass(frozen=True, slots=True)
class Excluded:
    """The documents that lists name."""

    documents: pa.Table
    """In EXCLUDED_SCHEMA."""
    unused: Mapping[str, npt.NDArray[np.int64]]
    """Rows of each list that name no document, by its name."""


def find_excluded(
    shards: Sequence[TokenShard], lists: Sequence[ExclusionList], *, copies: bool
) -> Excluded:
    """Return the documents of some shards that lists name; of a document that several rows name the
    first. `copies`: documents of the same text, too. One shard is read at a time."""
    are_used = [np.zeros(len(of.keys), dtype=bool) for of in lists]
    found = [_named_in(shard, lists, are_used) for shard in shards]
    named = pa.concat_tables([NOTHING, *(table for _, table in found)])
    if copies:
        each = zip(shards, found, strict=True)
        of_shards = [
            table for shard, of in each for table in (of[1], _copies_in(shard, of[0], named))
        ]
        named = pa.concat_tables([NOTHING, *of_shards])
    unused = zip(lists, are_used, strict=True)
    return Excluded(named, {of.name: np.flatnonzero(~used) for of, used in unused})


def check_used(
    lists: Sequence[ExclusionList], unused: Mapping[str, Sized], where: str, dataset: str
) -> None:
    """Make sure that a row of each list names a document. Raises: ConfigError."""
    for of in lists:
        if len(unused[of.name]) == len(of.keys):
            raise ConfigError(
                where=f"{where}: {of.file.path}",
                expected=f"documents of {dataset} by their {of.by}",
                found=f"none, by {counted(len(of.keys), 'row')}",
                remedy=f"correct the list, or take it out of `{where}`",
            )


def _named_in(
    shard: TokenShard, lists: Sequence[ExclusionList], are_used: Sequence[npt.NDArray[np.bool_]]
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Return the documents of a shard that lists name, and mark the rows that do."""
    named = []
    is_named = np.zeros(shard.manifest.counts["num_documents"], dtype=bool)
    for of, used in zip(lists, are_used, strict=True):
        if (found := of.look_up(shard)) is None:
            continue
        first, rows = found
        used[rows] = True
        documents = np.flatnonzero(to_numpy(first.is_valid()).astype(bool) & ~is_named)
        is_named[documents] = True
        at = first.take(to_arrow(documents))
        names = {"reason": of.reasons.take(at), "list": repeated(of.name, len(documents))}
        named.append(_table(shard, documents, {**names, "list_row": at}, is_copy=False))
    return np.flatnonzero(is_named), pa.concat_tables([NOTHING, *named])


def _copies_in(shard: TokenShard, documents: npt.NDArray[np.int64], named: pa.Table) -> pa.Table:
    """Return the documents of a shard with the text of one that is `named`, but for `documents`."""
    hashes = one_array(named["text_hash"])
    at = pc.index_in(tables.keys_of(shard, "text_hash"), value_set=hashes)
    is_copy = to_numpy(at.is_valid()).astype(bool)
    is_copy[documents] = False
    copies = np.flatnonzero(is_copy)
    of_named = named.select(["reason", "list", "list_row"]).take(at.take(to_arrow(copies)))
    columns = {name: one_array(of_named[name]) for name in of_named.column_names}
    return _table(shard, copies, columns, is_copy=True)


def _table(
    shard: TokenShard,
    documents: npt.NDArray[np.int64],
    columns: Mapping[str, pa.Array],
    *,
    is_copy: bool,
) -> pa.Table:
    own = shard.documents(["row", "text_hash"]).take(to_arrow(documents))
    file, row = shard.origins.of_rows(to_numpy(own["row"]))
    is_copies = np.full(len(documents), is_copy)
    of_shard = {"raw_file": file, "row": row, "text_hash": one_array(own["text_hash"])}
    return make_table({**of_shard, **columns, "is_copy": is_copies}, EXCLUDED_SCHEMA)
