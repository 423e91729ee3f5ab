"""Documents of an export and raw files of a dataset as tables, for pandas."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import ConfigError, nearest
from tokflow.exports.reading import find_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.split.spans import SPANS_NAME, SPANS_SCHEMA, Split
from tokflow.store.store import StoredOutput
from tokflow.store.tables import Columns, read_parts, repeated, to_arrow, to_numpy

if TYPE_CHECKING:
    import pandas as pd

_OF_DOCUMENT = ("row", "num_chars", "token_offset", "num_tokens")


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents behind an export, as `tokflow.open_documents` opens them."""

    export: StoredOutput

    def tables(self) -> Iterator[pa.Table]:
        """Yield the documents of one raw file, or group of them, at a time, in order."""
        ancestry = Ancestry()
        for output in ancestry.parents(self.export).values():
            yield pieces_of(ancestry.split(output))

    def to_arrow(self) -> pa.Table:
        """Return one row for each piece of a document that a part has, and for each document that
        is in no part, in the order of raw files and rows.

        raw_file, row: the document; part: null where it is in none; char_start, num_chars: of the
        piece, in code points, 0 and all unless the split cuts the document; num_tokens: with BOS
        and EOS; then the columns kept of raw files, null where a source of a mixture keeps another.
        What packing leaves out is there, too.

        Raises: MissingOutputError where the store has the tokens no more.
        """
        return pa.concat_tables(self.tables(), promote_options="default")

    def to_pandas(self) -> "pd.DataFrame":
        """Return `to_arrow` as a DataFrame."""
        return self.to_arrow().to_pandas()


def open_documents(path: str | Path) -> Documents:
    """Open the documents that an export was made of: their places, lengths and parts.

    `path`: as for `open_export`; the export has to be in its store, beside its tokens. Raises:
    MissingOutputError.
    """
    return Documents(find_export(path))


def pieces_of(split: Split) -> pa.Table:
    """Return the documents of a split in the columns of `Documents.to_arrow`."""
    shard = split.shard
    documents = shard.documents(list(_OF_DOCUMENT))
    rows = read_parts(split.stored.file(SPANS_NAME), split.parts, SPANS_SCHEMA.names[1:])
    of_parts = [_spans(split, part, documents, rows[part]) for part in split.parts]
    num_documents = len(documents)
    in_none = np.ones(num_documents, dtype=bool)
    for spans in of_parts:
        in_none[to_numpy(spans["document"])] = False
    left = np.flatnonzero(in_none)
    of_none = pa.table(
        {
            "document": to_arrow(left),
            "part": pa.nulls(len(left), pa.string()),
            "char_start": to_arrow(np.zeros(len(left), dtype=np.int64)),
            "num_chars": documents["num_chars"].take(to_arrow(left)),
            "num_tokens": documents["num_tokens"].take(to_arrow(left)),
        }
    )
    table = pa.concat_tables([*of_parts, of_none])
    table = table.sort_by([("document", "ascending"), ("char_start", "ascending")])
    number = table["document"]
    raw_file, row = shard.origins.of_rows(to_numpy(documents["row"])[to_numpy(number)])
    kept = shard.kept_columns().take(number) if shard.keep_columns else pa.table({})
    return pa.table(
        {
            "raw_file": raw_file,
            "row": to_arrow(row),
            **{name: table[name] for name in table.column_names if name != "document"},
            **{name: kept[name] for name in kept.column_names},
        }
    )


def _spans(split: Split, part: str, documents: pa.Table, rows: Columns) -> pa.Table:
    """Return the pieces of documents that a part has."""
    spans = split.spans(part, documents, rows)
    num_chars = to_numpy(documents["num_chars"])[spans.document]
    is_cut = rows["is_cut"]
    first = np.cumsum(rows["num_documents"]) - rows["num_documents"]
    num_chars[first[is_cut]] = rows["num_chars"][is_cut]
    return pa.table(
        {
            "document": to_arrow(spans.document),
            "part": repeated(part, len(spans.document)),
            "char_start": to_arrow(spans.char_start),
            "num_chars": to_arrow(num_chars),
            "num_tokens": to_arrow(spans.num_tokens),
        }
    )


@dataclass(frozen=True, slots=True)
class Files:
    """The raw files of a dataset with their states, as `tokflow.files` looks at them."""

    statuses: Sequence[FileStatus]

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row for each partition in the order of keys: key, state (failed, stale, new or
        built), reason, and of its tokens num_documents, num_tokens, bytes_per_token and built_at,
        which are missing where there are none."""
        import pandas as pd

        names = [field.name for field in fields(FileStatus)]
        frame = pd.DataFrame([asdict(status) for status in self.statuses], columns=names)
        counts = {"num_documents": "Int64", "num_tokens": "Int64", "bytes_per_token": "Float64"}
        return frame.astype(counts).assign(built_at=pd.to_datetime(frame["built_at"], utc=True))


def files(name: str) -> Files:
    """Look at the raw files of a declared dataset, as `tokflow plan` does, and build nothing.

    Raises: ConfigError where the project declares no such dataset, or its YAML is wrong.
    """
    return Files(file_statuses(make_plan(dataset_named(name))))


def dataset_named(name: str | Dataset) -> Dataset:
    """Return a dataset that the project declares, and one as it is. Raises: ConfigError where it
    declares none of that name, or its YAML is wrong."""
    if isinstance(name, Dataset):
        return name
    declared = list_declared()
    if name not in declared:
        raise ConfigError(
            where=f"dataset {name!r}",
            expected="the name of a dataset that the project declares",
            found=f"only {', '.join(declared) or 'none'}",
            remedy=nearest(name, list(declared)) or "name one of them, or call it in the project",
        )
    return load_declared(declared[name])
