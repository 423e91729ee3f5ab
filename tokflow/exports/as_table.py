"""A part of an export as a table, for a look or a count: `Export.to_arrow` and `to_pandas`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tokflow.errors import ConfigError, first_five, nearest
from tokflow.exports.index import read_segments
from tokflow.store.tables import to_arrow, to_numpy

if TYPE_CHECKING:
    from tokflow.exports.reading import Export


def table_of(
    export: "Export", part: str, columns: Sequence[str] | None, limit: int | None
) -> pa.Table:
    """Return the first `limit` rows of a part, all by default, with these columns, by default all:
    what `Export.to_arrow` promises."""
    export = export.of_part(part)
    if limit is not None and limit < 0:
        raise _wrong(export, "limit", "rows to return, or None", f"{limit:,}", None)
    fields = _fields(export, part)
    documents = None if export.layout.is_packed else _documents(export, part, limit)
    known = [*(documents.column_names if documents is not None else ()), *fields]
    names = known if columns is None else list(columns)
    for name in names:
        if name not in known:
            remedy = nearest(name, known)
            raise _wrong(export, "columns", f"names among {first_five(known)}", repr(name), remedy)
    wanted = [name for name in names if name in fields]
    if documents is None:
        own = _sequences(export, part, wanted, limit)
    else:
        own = _streamed(export, part, wanted, to_numpy(documents["num_tokens"]))
    places = {} if documents is None else dict(zip(documents.column_names, documents, strict=True))
    return pa.table({name: {**places, **own}[name] for name in names})


def _documents(export: "Export", part: str, limit: int | None) -> pa.Table:
    """Return the documents of a part of a stream, one row each.

    Where the EOS of a document is moved before it, the index has a row of its own for it, in front
    of that of the rest.
    """
    segments = read_segments(export.stored, part, None if limit is None else 2 * limit)
    is_first = np.ones(len(segments), dtype=bool)
    is_first[1:] = to_numpy(segments["token_in_piece"])[:-1] == 0
    first = np.flatnonzero(is_first)
    num_tokens = to_numpy(segments["num_tokens"])
    sums = np.add.reduceat(num_tokens, first) if len(first) else num_tokens
    found = segments.take(to_arrow(first)).drop_columns("token_in_piece")
    number = found.schema.get_field_index("num_tokens")
    return found.set_column(number, found.schema.field(number), to_arrow(sums))[:limit]


def _fields(export: "Export", part: str) -> list[str]:
    keeps = [name for name in export.layout.keeps if name not in ("offsets", "token_ids")]
    is_kept = export.layout.is_packed or export.has_loss_mask(part)
    return ["token_ids", *(name for name in keeps if name != "loss_mask" or is_kept)]


def _sequences(
    export: "Export", part: str, names: Sequence[str], limit: int | None
) -> dict[str, pa.FixedSizeListArray]:
    length = int(export.sequence_length or 0)
    num = export.counts[f"{part}.num_sequences"]
    num = num if limit is None else min(num, limit)
    flat = _first(export, part, names, num, in_each=length)
    return {name: pa.FixedSizeListArray.from_arrays(flat[name], length) for name in names}


def _streamed(
    export: "Export", part: str, names: Sequence[str], num_tokens: Any
) -> dict[str, pa.LargeListArray]:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_tokens)])
    flat = _first(export, part, names, int(offsets[-1]), in_each=1)
    return {name: pa.LargeListArray.from_arrays(to_arrow(offsets), flat[name]) for name in names}


def _first(
    export: "Export", part: str, names: Sequence[str], num: int, *, in_each: int
) -> dict[str, pa.Array]:
    """Return the first `num` sequences or tokens of each field, end to end."""
    dtypes = {"token_ids": export.dtype, "loss_mask": np.dtype(bool)}
    found: dict[str, list[Any]] = {
        name: [np.zeros(0, dtypes.get(name, np.dtype(np.int32)))] for name in names
    }
    pieces = export.with_fields([*names, "token_ids", "segment_ids"]).read(part)
    for fields in _until(pieces, num if names else 0):
        for name in names:
            found[name].append(fields[name].reshape(-1))
    return {name: to_arrow(np.concatenate(some)[: num * in_each]) for name, some in found.items()}


def _until(pieces: Iterator[Any], num: int) -> Iterator[Any]:
    while num > 0 and (fields := next(pieces, None)) is not None:
        num -= len(fields["token_ids"])
        yield fields


def _wrong(
    export: "Export", field: str, expected: str, found: str, remedy: str | None
) -> ConfigError:
    return ConfigError(
        where=f"{export.folder}: {field}",
        expected=expected,
        found=found,
        remedy=remedy or "name the columns that it has",
    )
