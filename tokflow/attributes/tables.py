"""Tables from outside, and values of a function of the user, aligned with the documents of a token
shard."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.config import MAX_INTEGER, OWN_KEYS, AttributeConfig, Kind
from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.user_function import UserFunction, described, printing_on_stderr
from tokflow.errors import ConfigError
from tokflow.raw import RawFile, RawPartition
from tokflow.store.tables import one_array, to_arrow, to_numpy
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import ROWS_OF_PASS, TokenShard, places_of, with_tokens_of

TYPES: Mapping[Kind, pa.DataType] = {
    "number": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}

Columns = tuple[tuple[str, Kind], ...]
"""Names of columns and what they are."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """Columns in the order of the documents of a shard."""

    columns: pa.Table
    num_without: int
    """Documents without a row; their values are null."""
    num_unused: int | None = None
    """Rows without a document; None where the tables are those of other raw files, too."""
    matches: pa.Table | None = None
    """Of evaluation texts: which documents have a part of which."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of the manifest besides, and its details."""
    details: Mapping[str, Any] = field(default_factory=dict)


def align(
    shard: TokenShard,
    config: AttributeConfig,
    files: Mapping[str, RawFile],
    name: str,
    *,
    are_own: bool,
) -> Aligned:
    """Return the columns of tables for each document of a shard.

    `are_own`: the tables have rows of its raw files alone, and `files` has them by the keys of
    these.

    Raises: ConfigError for a table without the key or a column, a key that is null or there twice,
    values that are not what the config says, and own tables without a row of any document;
    ChangedFileError for one that changed after it was hashed.
    """
    own, columns = keys_of(shard, config.key), tuple(config.columns.items())
    if config.key == "row":  # it counts in each raw file
        each = {key: _keyed((file,), "row", own.type, columns) for key, file in files.items()}
        before = {key: number * ROWS_OF_PASS for number, key in enumerate(shard.origins.raw_files)}
        moved = [to_numpy(keys) + before[of] for of, (_, keys) in each.items()]
        keys = to_arrow(np.concatenate([np.zeros(0, dtype=np.int64), *moved]))
        own = to_arrow(shard.origins.keys_of(to_numpy(own)))
        table = pa.concat_tables([empty_table(config), *(of for of, _ in each.values())])
    elif files:
        table, keys = _keyed(tuple(files.values()), config.key, own.type, columns)
    else:
        table, keys = empty_table(config), pa.array([], own.type)
    # The keys of the shard are the table of hashes: there may be many shards and one huge table.
    own = own.dictionary_encode()
    number = pc.index_in(keys, value_set=own.dictionary)
    is_used = to_numpy(number.is_valid())
    rows = np.full(len(own.dictionary), -1)
    rows[to_numpy(number.drop_null())] = np.flatnonzero(is_used)
    at = pa.array(rows, mask=rows < 0).take(own.indices)
    num_used = int(np.count_nonzero(is_used))
    if are_own and len(table) and len(own) and not num_used:
        raise ConfigError(
            where=f"attributes.{name}: {next(iter(files.values())).path}",
            expected=f"a row for some document of {shard.manifest.partition} by its {config.key}",
            found=f"{len(table):,} rows, none of a document",
            remedy=f"correct attributes.{name}.key, or the file",
        )
    num_unused = len(table) - num_used if are_own else None
    return Aligned(table.take(at), at.null_count, num_unused)


def empty_table(config: AttributeConfig) -> pa.Table:
    """Return the columns without a row."""
    schema = pa.schema({column: TYPES[kind] for column, kind in config.columns.items()})
    table: pa.Table = schema.empty_table()
    return table


def as_declared(table: pa.Table, columns: Columns, where: str) -> pa.Table:
    """Return the columns as what they are said to be. Raises: ConfigError."""
    found = {
        column: _of_kind(one_array(table[column]), kind, f"{where}: {column}")
        for column, kind in columns
    }
    return pa.table(found, schema=pa.schema({column: TYPES[kind] for column, kind in columns}))


def keys_of(shard: TokenShard, key: str) -> pa.Array:
    """Return the key of each document of a shard."""
    if key in OWN_KEYS:
        return one_array(shard.documents([key])[key])
    return one_array(shard.kept_columns()[key])


@lru_cache(maxsize=4)
def _keyed(
    files: tuple[RawFile, ...], key: str, key_type: pa.DataType, columns: Columns
) -> tuple[pa.Table, pa.Array]:
    """Return the columns of tables, one after another, and the key of each row.

    Raises: ConfigError, also for a key that is null or there twice; ChangedFileError.
    """
    tables, keys = [], []
    for file in files:
        table = read_columns(file.path, key, key_type, columns)
        file.check_unchanged()
        keys.append(as_keys(one_array(table[key]), key_type, str(file.path)))
        tables.append(as_declared(table, columns, str(file.path)))
    all_keys = one_array(pa.chunked_array(keys))
    encoded = all_keys.dictionary_encode()
    if len(encoded.dictionary) < len(all_keys):
        counts = np.bincount(to_numpy(encoded.indices))
        twice = encoded.dictionary.take(to_arrow(np.flatnonzero(counts > 1)[:1]))[0].as_py()
        shown = twice.hex() if isinstance(twice, bytes) else repr(twice)
        raise ConfigError(
            where=f"{files[0].path}" + f" and {len(files) - 1:,} more" * (len(files) > 1),
            expected="each key once",
            found=f"{np.count_nonzero(counts > 1):,} several times, such as {shown}",
            remedy="leave one row of each",
        )
    return pa.concat_tables(tables), all_keys


def as_keys(found: pa.Array, wanted: pa.DataType, where: str) -> pa.Array:
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
    """Return values as what they are said to be. Raises: ConfigError."""
    found = values.type
    is_kind = {
        "number": pa.types.is_integer(found) or pa.types.is_floating(found),
        "text": pa.types.is_string(found) or pa.types.is_large_string(found),
        "bool": pa.types.is_boolean(found),
    }[kind]
    is_coded = pa.types.is_dictionary(found) and kind == "text"
    problem = None if is_kind or is_coded or pa.types.is_null(found) else str(found)
    if pa.types.is_integer(found) and len(values) > values.null_count:
        least, most = (of.as_py() for of in pc.min_max(values).values())
        problem = f"{max(most, -least):,}" if max(most, -least) >= MAX_INTEGER else problem
    if problem:
        raise ConfigError(
            where=where,
            expected=f"a column of {kind}" + f" below {MAX_INTEGER:,}" * (kind == "number"),
            found=problem,
            remedy=f"correct `columns`, or write {kind} into the table",
        )
    cast = values.cast(TYPES[kind], safe=False)
    return pc.if_else(pc.is_finite(cast), cast, None) if kind == "number" else cast


def read_columns(path: Path, key: str, key_type: pa.DataType, columns: Columns) -> pa.Table:
    """Return the key and the columns of one table. Raises: ConfigError."""
    kinds = ", ".join([key, *(f"{column} ({kind})" for column, kind in columns)])
    key_type = pa.int64() if key_type == pa.int64() else pa.string()
    types = {key: key_type, **{column: TYPES[kind] for column, kind in columns}}
    try:
        table = _table(path, types)
        missing = [name for name in types if name not in table.column_names]
        found = f"{', '.join(table.column_names) or 'columns'}, without {', '.join(missing)}"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, KeyError) as error:
        missing, found = [key], str(error).splitlines()[0]
    if missing:
        raise ConfigError(
            where=str(path),
            expected=f"a table of parquet, jsonl or csv with {kinds}",
            found=found,
            remedy="correct the file, or the names that the YAML has for its columns",
        )
    return table


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a table. Raises: as `_table`."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    kind = _kind(path)
    if kind == "parquet":
        return [*pyarrow.parquet.read_schema(path).names]
    if kind == "jsonl":
        return [*pyarrow.json.read_json(path).column_names]
    with pyarrow.csv.open_csv(path) as reader:
        return [*reader.schema.names]


def _kind(path: Path) -> str:
    kinds = (kind for kind in ("parquet", "csv") if f".{kind}" in path.suffixes)
    return next(kinds, "jsonl")


def _table(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return columns of a table; of csv and jsonl, which have no types, in these."""
    import pyarrow.csv
    import pyarrow.parquet

    if path.stat().st_size == 0:
        return pa.schema(types).empty_table()
    kind = _kind(path)
    if kind == "parquet":
        return pyarrow.parquet.read_table(path, columns=list(types), partitioning=None)
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            strings_can_be_null=True,
            null_values=[""],
        )
        return pyarrow.csv.read_csv(path, convert_options=options)
    try:
        table = _json(path, types)
    except pa.ArrowInvalid:  # keys that are whole numbers
        table = _json(path, {**types, next(iter(types)): pa.int64()})
    if empty := [name for name in types if table[name].null_count == len(table)]:
        there = column_names(path)
        return table.drop_columns([name for name in empty if name not in there])
    return table


def _json(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    import pyarrow.json

    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"
    )
    return pyarrow.json.read_json(path, parse_options=options)


def compute(
    shard: TokenShard,
    config: AttributeConfig,
    function: UserFunction,
    raw: RawPartition,
    documents: DocumentsConfig,
    tokenizer: Tokenizer,
) -> Aligned:
    """Return the columns of a function for each document of a shard, whose raw files are read
    again.

    Raises: ConfigError where the function raises, or returns something else than the config says;
    RawFileError.
    """
    table = shard.documents(["row", "num_tokens"])
    render = open_renderer(documents, tokenizer) if documents.is_rendered else None
    source = DocumentSource(raw.paths, documents)
    batches = source.batches(on_reject=lambda *_: None, render=render, encode=with_tokens_of(table))
    rows, found = to_numpy(table["row"]), [empty_table(config)]
    for batch in batches:
        _, is_there = places_of(batch.rows, rows)
        texts = batch.texts.filter(to_arrow(is_there)).to_pylist()
        for first in range(0, len(texts), config.batch):
            some = texts[first : first + config.batch]
            place = f"{function.where}: {raw.key}, rows {batch.rows[0]:,} to {batch.rows[-1]:,}"
            called = _called(function, some, config, place)
            found.append(as_declared(called, tuple(config.columns.items()), place))
    raw.check_unchanged()
    columns = pa.concat_tables(found)
    if len(columns) != len(table):
        raise ConfigError(
            where=f"{function.where}: {raw.key}",
            expected=f"the {len(table):,} documents that were tokenized",
            found=f"{len(columns):,} when they were read again",
            remedy="make documents.transform pure, or build the tokens again",
        )
    without = np.ones(len(columns), dtype=bool)
    for name in config.columns:
        without &= columns[name].is_null().to_numpy()
    return Aligned(columns, int(np.count_nonzero(without)))


def _called(
    function: UserFunction, texts: list[str], config: AttributeConfig, place: str
) -> pa.Table:
    """Return what the function says of some texts."""

    def refused(expected: str, found: str) -> ConfigError:
        return ConfigError(
            where=place, expected=expected, found=found, remedy="correct the function"
        )

    try:
        with printing_on_stderr():
            result: Any = function.load()(texts)
    except ConfigError:
        raise
    except Exception as error:
        found = described(error, function.path)
        raise refused("values of each text", found) from error
    if not isinstance(result, Mapping) or not config.columns.keys() <= result.keys():
        shown = (
            ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        )
        raise refused(f"a mapping with {', '.join(config.columns)}", shown)
    for name in config.columns:
        values = result[name]
        if isinstance(values, str) or not isinstance(values, Sized):
            raise refused(f"a list of values of {name}", type(values).__name__)
        if len(values) != len(texts):
            raise refused(f"{len(texts):,} values of {name}", f"{len(values):,}")
    try:
        return pa.table({name: pa.array(result[name]) for name in config.columns})
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise refused("numbers, texts or truth values", str(error).splitlines()[0]) from error
