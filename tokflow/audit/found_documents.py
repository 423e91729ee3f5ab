"""Documents of a dataset found by file and row, by an expression or by their text; documents of an
export, and raw files of a dataset, as tables for pandas."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.config import Kind
from tokflow.attributes.tables import keys_of
from tokflow.audit.ancestry import Ancestry
from tokflow.errors import ConfigError, nearest
from tokflow.exports.reading import find_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared, load_declared
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.selection.expression import Expression, KnownValues
from tokflow.selection.left_out import documents_of, says_no_of
from tokflow.selection.stage import OWN_COLUMNS, columns_over, expression_over
from tokflow.split import SPANS_NAME, SPANS_SCHEMA, Split
from tokflow.store.config import relocated
from tokflow.store.store import StoredOutput
from tokflow.store.tables import (
    Columns,
    one_array,
    read_parts,
    repeated,
    texts_of,
    to_arrow,
    to_numpy,
)
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import REJECTS_NAME, rejects_in, text_hashes

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


PLACES: Mapping[str, Kind] = {"row": "number", "record": "number"}
"""Columns that an expression may name beside those of `select`."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document of a dataset, as its tokens have it now."""

    graph: BuildGraph
    """The dataset; of a mixture, that of the source."""
    key: str
    """Its partition."""
    shard: TokenShard
    document: int
    """Its index in the shard."""
    raw_file: str
    row: int
    text_hash: bytes

    @property
    def dataset(self) -> str:
        """The name of its dataset."""
        return self.graph.dataset.name


def find_row(graph: BuildGraph, raw_file: str, row: int) -> FoundDocument | str:
    """Return the document at a row of a raw file, or why there is none. Raises: ConfigError where
    there is no such file, or it has no such row; MissingOutputError where its tokens are not made.
    """
    if (bad := graph.bad_files.get(raw_file)) is not None:
        return f"of a bad file, left out: {bad}"
    keys = (key for key, of in graph.listed.items() if raw_file in [each.key for each in of])
    if (key := next(keys, None)) is None:
        raise ConfigError(
            where="--file",
            expected=f"a raw file of {graph.dataset.name}, by its key",
            found=repr(raw_file),
            remedy=nearest(raw_file, [*graph.sources])
            or "name one that `tokflow plan` and the report list",
        )
    if key not in graph.partitions:
        return "not read: files before it reach documents.limit"
    shard = graph.open_tokens(key)
    counts, files = shard.manifest.counts, shard.manifest.details.get("files", ())
    num_rows = counts["num_documents"] + counts["num_rejects"] + counts.get("num_left_out", 0)
    num_rows = next((of["num_rows"] for of in files if of["raw_file"] == raw_file), num_rows)
    if not 0 <= row < num_rows:
        limit = graph.documents(key).limit
        if row >= 0 and limit.ends_early and (files or limit.after(counts) is None):
            return f"not read: {raw_file} has {num_rows:,} rows up to documents.limit"
        raise ConfigError(
            where="--row",
            expected=f"a row of {raw_file}, which has {num_rows:,}, counted from 0",
            found=f"{row:,}",
            remedy=f"name one of 0 to {num_rows - 1:,}; blank lines are no rows"
            if num_rows
            else "name another file",
        )
    rows, at = to_numpy(shard.documents(["row"])["row"]), shard.origins.row_of(raw_file, row)
    document = int(np.searchsorted(rows, at))
    if at in rows[document : document + 1]:
        return next(_found_in(graph, key, shard, np.array([document])))
    return _why_no_document(shard, raw_file, row, document)


def _why_no_document(shard: TokenShard, raw_file: str, row: int, before: int) -> str:
    """Return why a row that a raw file has is no document; `before`: how many documents of the
    shard are before it."""
    if shard.manifest.counts["num_rejects"]:
        for reject in rejects_in(shard.stored.file(REJECTS_NAME).read_bytes(), raw_file):
            if (reject["raw_file"], reject["row"]) == (raw_file, row):
                return f"rejected: {reject['reason']}"
    table, record = shard.documents(["row", "record"]), row
    if before:  # each record between two documents takes one row
        files, rows = shard.origins.of_rows(to_numpy(table["row"])[before - 1 : before])
        if files[0].as_py() == raw_file:
            record += table["record"][before - 1].as_py() - int(rows[0])
    return f"documents.transform made no document of it, record {record:,}"


def find_documents(
    graph: BuildGraph, *, where: str | None = None, text: bytes | None = None
) -> list[FoundDocument]:
    """Return the documents that an expression is true of, or that have a text; of a mixture, those
    of all its sources.

    `where`: in the grammar of `select`, over its columns, `row` and, with a transform, `record`.
    `text`: as it was tokenized, in UTF-8; a line end behind it does not count. Of each raw file,
    one table is read, or two. Raises: ConfigError where there is none, or the expression is wrong;
    MissingOutputError where tokens are not made.
    """
    found: list[FoundDocument] = []
    num_searched, is_text = 0, text is not None
    spelt = (text or b""), (text or b"").removesuffix(b"\n").removesuffix(b"\r")
    hashes = text_hashes(texts_of([*dict.fromkeys(spelt)]))
    for of in [*graph.of_sources.values()] or [graph]:
        expression = None if where is None else _expression(of.dataset, where)
        of.read_raw_files([*of.partitions])
        shards = {key: of.open_tokens(key) for key in of.partitions}
        stored = [shard.stored for shard in shards.values()]
        num_searched += sum(each.manifest.counts["num_documents"] for each in stored)
        with of.store.fetching(stored, has_numbers=False):
            for key, shard in shards.items():
                if expression is None:
                    is_one = to_numpy(pc.is_in(keys_of(shard, "text_hash"), value_set=hashes))
                else:
                    is_one = _are_true(expression, of, key, shard)
                found += _found_in(of, key, shard, np.flatnonzero(is_one))
    if not found:
        of_text = f" has the xxh3-128 {hashes[-1].as_py().hex()}" * is_text
        raise ConfigError(
            where="--text" if is_text else "--where",
            expected="the text of a document" if is_text else "a document that it is true of",
            found=f"none of {num_searched:,} of {graph.dataset.name}{of_text}",
            remedy="every character counts: find it by --where, or by --file and --row"
            if is_text
            else "correct it; what `tokflow rejects` lists is no document",
        )
    return found


def _expression(dataset: Dataset, where: str) -> Expression:
    """Return an expression about each document by itself. Raises: ConfigError."""
    places = {of: PLACES[of] for of in PLACES if of == "row" or dataset.documents.transform}
    try:
        found = expression_over(dataset, where, {**OWN_COLUMNS, **places})
    except ConfigError as error:
        raise relocated(error, ": ".join(filter(None, ["--where", error.where]))) from None
    for of in (*found.copies, *(quantile.name for quantile in found.quantiles)):
        raise ConfigError(
            where="--where",
            expected="what is known of a document by itself",
            found=of,
            remedy="leave it out; the trace of a copy names the document that stays",
        )
    return found


def _are_true(
    expression: Expression, graph: BuildGraph, key: str, shard: TokenShard
) -> npt.NDArray[np.bool_]:
    """Return whether an expression is true of each document of a shard."""
    others = [name for name in expression.names if name not in PLACES]
    if others == [name for name in expression.names if name in shard.keep_columns] != []:
        kept = shard.kept_columns()  # one table alone, which takes half the time
        columns = {name: one_array(kept[name]) for name in others}
    else:
        attributes = columns_over(graph.tokens(key), expression)
        columns = {**documents_of(shard, others, attributes).columns}
    if places := [name for name in PLACES if name in expression.names]:
        table = shard.documents([*dict.fromkeys(["row", *places])])
        values = {name: to_numpy(table[name]) for name in table.column_names}
        values["row"] = shard.origins.of_rows(values["row"])[1]
        columns |= {of: to_arrow(values[of].astype(np.float64)) for of in places}
    answers = [rule(KnownValues(columns)) for rule in expression.rules]
    return np.logical_not(says_no_of(answers, shard).any(axis=0))


def documents_with(shard: TokenShard, texts: Iterable[bytes]) -> dict[bytes, list[tuple[str, int]]]:
    """Return raw file and row of each document of a shard that has one of some texts, by the hash
    of its text."""
    table = shard.documents(["row", "text_hash"])
    is_one = pc.is_in(one_array(table["text_hash"]), value_set=pa.array([*texts], pa.binary(16)))
    some = table.take(to_arrow(np.flatnonzero(to_numpy(is_one))))
    files, rows = shard.origins.of_rows(to_numpy(some["row"]))
    found: dict[bytes, list[tuple[str, int]]] = {}
    each = zip(some["text_hash"].to_pylist(), files.to_pylist(), rows.tolist(), strict=True)
    for text, file, row in each:
        found.setdefault(text, []).append((file, row))
    return found


def _found_in(
    graph: BuildGraph, key: str, shard: TokenShard, documents: npt.NDArray[np.int64]
) -> Iterator[FoundDocument]:
    if len(documents):
        own: pa.Table = shard.documents(["row", "text_hash"]).take(to_arrow(documents))
        files, rows = shard.origins.of_rows(to_numpy(own["row"]))
        facts = files.to_pylist(), rows.tolist(), own["text_hash"].to_pylist()
        for document, *of in zip(documents.tolist(), *facts, strict=True):
            yield FoundDocument(graph, key, shard, document, *of)
