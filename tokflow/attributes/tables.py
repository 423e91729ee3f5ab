"""Tables from outside, read and aligned with the documents of a token shard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.config import OWN_KEYS, AttributeConfig, Kind
from tokflow.errors import ConfigError
from tokflow.raw import RawFile
from tokflow.raw.files import check_unchanged
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

TYPES: Mapping[Kind, pa.DataType] = {
    "number": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class Aligned:
    """Columns in the order of the documents of a shard."""

    columns: pa.Table
    num_without: int
    """Documents that no row is of; their values are null."""
    num_unused: int
    """Rows that are of no document."""


def align(
    shard: TokenShard, config: AttributeConfig, files: Sequence[RawFile], name: str
) -> Aligned:
    """Return the columns of tables for each document of a shard.

    Raises: ConfigError for a table without the key or a column, a key that is null or there twice,
    values that are not what the config says, and tables of which no row is of a document.
    """
    more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
    where = f"attributes.{name}: {files[0].path}{more}"
    names, own = (config.key, *config.columns), _keys_of(shard, config.key)
    if config.key == "row":  # of each raw file, in the order of its files
        tables = [_read((file,), names) for file in files]
        rows = [_as_keys(of["row"].combine_chunks(), own.type, where) for of in tables]
        moved = [to_numpy(of) + at for of, at in zip(rows, shard.origins.first_rows, strict=True)]
        table, keys = pa.concat_tables(tables), to_arrow(np.concatenate(moved))
    else:
        table = _read(tuple(files), names)
        keys = _as_keys(table[config.key].combine_chunks(), own.type, where)
    at = _places(own, keys, where)
    num_found = len(own) - at.null_count
    if len(own) and not num_found:
        raise ConfigError(
            where=where,
            expected=f"a row for some document of {shard.manifest.partition} by its {config.key}",
            found=f"{len(table):,} rows, none of a document",
            remedy=f"correct attributes.{name}.key, or the files",
        )
    taken = table.select(list(config.columns)).take(at)
    used = np.unique(to_numpy(at.drop_null()))
    return Aligned(as_declared(taken, config, where), at.null_count, len(table) - len(used))


def as_declared(table: pa.Table, config: AttributeConfig, where: str) -> pa.Table:
    """Return the columns as what the config says that they are. Raises: ConfigError."""
    return pa.table(
        {
            column: _of_kind(table[column].combine_chunks(), kind, f"{where}: {column}")
            for column, kind in config.columns.items()
        }
    )


def _places(own: pa.Array, keys: pa.Array, where: str) -> pa.Array:
    """Return the row of a table for each key of a document, null where there is none.

    Raises: ConfigError for a key of the table that is there twice.
    """
    if len(own) == len(keys) and own.equals(keys) and keys.type == pa.int64():
        return to_arrow(np.arange(len(own)))  # the usual case: a table made in our order
    encoded = keys.dictionary_encode()
    if len(encoded.dictionary) < len(keys):
        counts = np.bincount(to_numpy(encoded.indices))
        twice = encoded.dictionary.take(to_arrow(np.flatnonzero(counts > 1)[:1]))[0].as_py()
        shown = twice.hex() if isinstance(twice, bytes) else repr(twice)
        raise ConfigError(
            where=where,
            expected="each key once",
            found=f"{np.count_nonzero(counts > 1):,} several times, such as {shown}",
            remedy="leave one row of each",
        )
    return pc.index_in(own, value_set=encoded.dictionary).cast(pa.int64())


def _keys_of(shard: TokenShard, key: str) -> pa.Array:
    """Return the key of each document of a shard."""
    if key in OWN_KEYS:
        return shard.documents([key])[key].combine_chunks()
    return shard.kept_columns()[key].combine_chunks()


def _as_keys(found: pa.Array, wanted: pa.DataType, where: str) -> pa.Array:
    """Return the keys of a table in the type of those of documents. Raises: ConfigError."""
    if found.null_count:
        raise ConfigError(
            where=where,
            expected="a key in each row",
            found=f"{found.null_count:,} of {len(found):,} rows without",
            remedy="leave these rows out",
        )
    try:
        if wanted == pa.binary(16) and found.type != wanted:
            values = [bytes.fromhex(of) for of in found.cast(pa.string()).to_pylist()]
            return pa.array(values, wanted)
        return found.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ConfigError(
            where=where,
            expected="keys of 32 hex digits" if wanted == pa.binary(16) else f"keys as {wanted}",
            found=str(error).splitlines()[0],
            remedy="correct the column, or `key`",
        ) from None


def _of_kind(values: pa.Array, kind: Kind, where: str) -> pa.Array:
    """Return values as what the config says that they are. Raises: ConfigError."""
    found = values.type
    is_kind = {
        "number": pa.types.is_integer(found) or pa.types.is_floating(found),
        "text": pa.types.is_string(found) or pa.types.is_large_string(found),
        "bool": pa.types.is_boolean(found),
    }[kind]
    is_coded = pa.types.is_dictionary(found) and kind == "text"
    if not (is_kind or is_coded or pa.types.is_null(found)):
        raise ConfigError(
            where=where,
            expected=f"a column of {kind}",
            found=str(found),
            remedy=f"correct `columns`, or write {kind} into the table",
        )
    numbers = values.cast(TYPES[kind], safe=False)
    if kind == "number":  # a value that is none is missing
        return pc.if_else(pc.is_finite(numbers), numbers, None)
    return numbers


@lru_cache(maxsize=2)
def _read(files: tuple[RawFile, ...], columns: tuple[str, ...]) -> pa.Table:
    """Return the columns of tables, one after another.

    Raises: ConfigError; ChangedFileError where one is another than was hashed.
    """
    tables = []
    for file in files:
        path = file.path
        try:
            table = _table(path)
        except (pa.ArrowInvalid, OSError) as error:
            found = str(error).splitlines()[0]
            raise _unreadable(path, "a table of parquet, jsonl or csv", found) from error
        if missing := [of for of in columns if of not in table.column_names]:
            there = f"{', '.join(table.column_names)}, without {', '.join(missing)}"
            raise _unreadable(path, f"columns {', '.join(columns)}", there)
        check_unchanged(file)
        tables.append(table.select(columns))
    return pa.concat_tables(tables, promote_options="permissive")


def _table(path: Path) -> pa.Table:
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    match path.suffixes:
        case [*_, ".parquet"]:
            return pyarrow.parquet.read_table(path, partitioning=None)
        case [*_, ".csv"] | [*_, ".csv", ".gz"]:
            return pyarrow.csv.read_csv(path)
    return pyarrow.json.read_json(path)


def _unreadable(path: Path, expected: str, found: str) -> ConfigError:
    return ConfigError(
        where=str(path), expected=expected, found=found, remedy="correct the file, or `attributes`"
    )
