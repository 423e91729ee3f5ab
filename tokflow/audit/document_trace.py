"""Trace documents to all that holds them, or to the reasons why nothing does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tokflow.attributes.config import DeclaredAttributes
from tokflow.audit.ancestry import Ancestry
from tokflow.audit.found_documents import FoundDocument, dataset_named, find_documents, find_row
from tokflow.audit.step_trace import Sighting, Span, Training, sources_in
from tokflow.audit.verify.excluded import exports_with, has_documents_of
from tokflow.audit.whereabouts import Holder, Holders
from tokflow.errors import ConfigError, MissingOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.selection.expression import Expression
from tokflow.selection.left_out import documents_of
from tokflow.selection.stage import SELECTION, columns_over, why_left_out
from tokflow.sequences.stage import SEQUENCES
from tokflow.store.tables import to_numpy
from tokflow.strata.stage import NO_STRATUM, STRATA, together

LIMIT = 20
"""Documents that are traced of many, unless it is said."""

OF_PIECE = ("part", "char_start", "num_chars", "num_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentTrace:
    """The outputs that hold a document, and the samples that had it, or why none does."""

    dataset: str
    raw_file: str
    row: int
    """Ordinal of the document in the raw file."""
    record: int | None = None
    """Ordinal in the raw file of the record that a transform made it of."""
    rows_of_record: Sequence[int] = ()
    """The rows of all documents that were made of that record."""
    num_chars: int | None = None
    """Code points; None, as is all else, where no document was made of the row."""
    num_tokens: int | None = None
    """Tokens with BOS and EOS."""
    token_start: int | None = None
    """Position of the first of them in the tokens of its raw file, or group of files."""
    text_hash: str | None = None
    """The xxh3-128 of its text, as lists of `exclude` may name it."""
    kept: Mapping[str, str | None] = field(default_factory=dict)
    """The columns of the raw file that `documents.keep_columns` names."""
    pieces: Sequence[Mapping[str, Any]] = ()
    """Its pieces: part, char_start, num_chars, num_tokens; one, unless the split cuts it."""
    why_not: str | None = None
    """Reason why it is in no part: what is wrong with it, the list that excludes it or the rule
    of `select` that leaves it out, or that it is in no stratum; None where it is in a part."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the columns that `select` and `strata` name."""
    sequences: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Finished sequences of its raw file that have tokens of it, by part; those of a packing that
    only some exports have, by `train (name of the packing)`."""
    exports: Sequence[Holder] = ()
    """All exports of the dataset in the store, and of mixtures with it, older builds too."""
    seen: Sequence[Sighting] | None = None
    """The samples in which a training has seen it; None where no training is asked."""
    num_steps: int | None = None
    """The steps up to the state of the training, which may have seen it."""


@dataclass(frozen=True, slots=True)
class DocumentTraces:
    """The documents that were asked for."""

    num_documents: int
    """All that were found."""
    documents: Sequence[DocumentTrace]
    """The first of them, in the order of raw files and rows."""


def trace_document(
    dataset: Dataset | str, raw_file: str, row: int, **of_training: Any
) -> DocumentTrace:
    """Return what holds a row of a raw file; of a mixture one of a source, `web/a.jsonl`.

    `dataset`: one, or the name of one that the project declares. `of_training`: `state`, that of a
    loader, for the samples up to it that had the document; `world_size`, the ranks of the training,
    1 unless it is given; `batch_size`, where the state tells none.

    Raises: ConfigError where the dataset has no such raw file, or that no such row, or the training
    read no export of it; MissingOutputError where the dataset is not built.
    """
    graph, of_source = graph_of(dataset_named(dataset), offline=True).at(raw_file)
    found = find_row(graph, of_source, row)
    if isinstance(found, str):
        name = graph.dataset.name
        return DocumentTrace(dataset=name, raw_file=of_source, row=row, why_not=found)
    [trace] = _traces([found], [found.dataset], **of_training)
    return trace


def trace_documents(
    dataset: Dataset | str,
    *,
    where: str | None = None,
    text: bytes | None = None,
    limit: int | None = LIMIT,
    **of_training: Any,
) -> DocumentTraces:
    """Return what holds the documents that an expression is true of, or that have a text, of the
    first `limit`, None of all; of a mixture, documents of all its sources. Exactly one of `where`
    and `text` is given.

    `where`: in the grammar of `select`, over its columns, `row` and, with a transform, `record`.
    `text`: as it was tokenized, in UTF-8; a line end behind it does not count. Else as
    `trace_document`; the training may have read one source of a mixture alone. Raises: ConfigError
    where there is none, or the expression is wrong.
    """
    if (where is None) == (text is None):
        raise ConfigError(
            where="trace_documents",
            expected="either where or text",
            found="neither" if where is None else "both",
            remedy="give one of them",
        )
    graph = graph_of(dataset_named(dataset), offline=True)
    found = find_documents(graph, where=where, text=text)
    of_datasets: dict[str, list[FoundDocument]] = {}
    for each in found[:limit]:
        of_datasets.setdefault(each.dataset, []).append(each)
    asked = [of.dataset.name for of in graph.of_sources.values()] or [graph.dataset.name]
    traces = (_traces(some, asked, **of_training) for some in of_datasets.values())
    return DocumentTraces(len(found), [trace for some in traces for trace in some])


def _traces(
    documents: Sequence[FoundDocument],
    asked: Sequence[str],
    state: Mapping[str, Any] | None = None,
    world_size: int = 1,
    batch_size: int | None = None,
) -> Iterator[DocumentTrace]:
    """Yield what holds each of some documents of one dataset. Raises: ConfigError where a training
    has read none of the datasets that are asked for."""
    dataset = documents[0].graph.dataset
    holders = Holders(Ancestry(dataset.known_stages), documents)
    of_exports = [*map(holders.in_export, exports_with(dataset))]
    seen: Sequence[Any] = [None] * len(documents)
    num_steps = None
    if state is not None:
        try:
            training = Training.of(state, None, batch_size)
        except MissingOutputError:  # its exports are not any more where it read them
            training = Training.of(state, dataset.store.name, batch_size)
        _check_has_read(training, asked)
        spans: list[list[Span]] = [[] for _ in documents]
        for of, source in enumerate(sources_in(training.samples)):
            for own, held in zip(spans, holders.held(source.stored), strict=True):
                here = (each for each in held if each.part == (source.opening.part or ""))
                own += [Span(of, each.position, each.position + each.num_tokens) for each in here]
        seen = training.sightings(spans, world_size=world_size)
        num_steps = training.steps.num_done
    for number, document in enumerate(documents):
        yield replace(
            _fate(document, holders),
            exports=[of_documents[number] for of_documents in of_exports],
            seen=seen[number],
            num_steps=num_steps,
        )


def _check_has_read(training: Training, asked: Sequence[str]) -> None:
    sources = sources_in(training.samples)
    if not any(has_documents_of(of.stored.manifest, name) for of in sources for name in asked):
        raise ConfigError(
            where="--state",
            expected=f"a training on {' or '.join(asked)}, or on a mixture with it",
            found=f"one on {', '.join(of.name for of in sources)}",
            remedy="name the dataset that it read, or the state of another training",
        )


def _fate(found: FoundDocument, holders: Holders) -> DocumentTrace:
    """Return what became of a document up to the sequences of its raw file."""
    graph, shard, table = found.graph, found.shard, holders.documents(found.shard)
    facts = {name: table[name][found.document].as_py() for name in table.column_names}
    pieces = holders.pieces_of_rows(graph.open_split(found.key), {found.raw_file}, [found.row])
    why_not, values = _decided(found)
    if why_not is None and not any(piece["part"] for piece in pieces):
        why_not = "in no part of the split"
    rows_of_record: list[int] = []
    if (record := facts.get("record")) is not None:
        of_record = to_numpy(table["row"])[to_numpy(table["record"]) == record]
        files, rows = shard.origins.of_rows(of_record)
        is_own = pc.equal(files, found.raw_file)
        rows_of_record = rows[to_numpy(is_own)].tolist()
    return DocumentTrace(
        dataset=found.dataset,
        raw_file=found.raw_file,
        row=found.row,
        record=record,
        rows_of_record=rows_of_record,
        num_chars=facts["num_chars"],
        num_tokens=facts["num_tokens"],
        token_start=facts["token_offset"],
        text_hash=found.text_hash.hex(),
        kept={name: pieces[0][name] for name in shard.keep_columns},
        pieces=[{name: piece[name] for name in OF_PIECE} for piece in pieces],
        why_not=why_not,
        values=values,
        sequences=_sequences(found),
    )


def _decided(found: FoundDocument) -> tuple[str | None, dict[str, Any]]:
    """Return why strata or a selection leave a document out of every part, if they do, and the
    values of the columns that they name."""
    graph, key, document = found.graph, found.key, found.document
    dataset, why_not, values = graph.dataset, None, dict[str, Any]()
    if STRATA in graph.stages and STRATA.variants(dataset):
        strata = graph.output(STRATA.name, key)
        is_in_none = graph.open(strata).codes[document] == NO_STRATUM
        why_not = "in no stratum" if is_in_none else None
        values |= _values(found, strata, together(dataset.strata.over(dataset)))
    if SELECTION in graph.stages and SELECTION.variants(dataset):
        selection = graph.output(SELECTION.name, key)
        why_not = why_left_out(selection, selection.open(), document) or why_not
        values |= _values(found, selection, dataset.select.over(dataset))
    return why_not, values


def _values(found: FoundDocument, output: Output, expression: Expression) -> dict[str, Any]:
    """Return what an expression knows of a document, by its columns."""
    names = output.graph.dataset.of(DeclaredAttributes).explaining(expression.names)
    table = documents_of(found.shard, names, columns_over(output, expression)).columns
    values = {name: table[name][found.document].as_py() for name in names}
    return {
        name: int(of) if isinstance(of, float) and of.is_integer() else of
        for name, of in values.items()
    }


def _sequences(found: FoundDocument) -> dict[str, list[int]]:
    """Return the finished sequences of a document's partition that have tokens of it."""
    numbers: dict[str, list[int]] = {}
    outputs = found.graph.outputs_of(SEQUENCES.name, [found.key])
    for output in (of for of in outputs if of.is_made):  # a source of a mixture needs none
        sequences = found.graph.open(output)
        for part in sequences.split.parts:
            of = sequences.segments(part, ("document", "sequence"))
            if own := np.unique(of["sequence"][of["document"] == found.document]).tolist():
                numbers[f"{part} ({output.packing})" if output.packing else part] = own
    return numbers
