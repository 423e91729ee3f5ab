"""Reports of outputs to Dagster: their data version and metadata, in the vocabulary's words.

On a page of the web UI come first the numbers that people ask for, then a look at the text, then
the rest in one table. After them stand the numbers that differ from file to file, or from build to
build, once more, as numbers: those Dagster draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
import numpy.typing as npt

from tokflow.audit.inspection import visible
from tokflow.components.markdown import (
    code_block,
    columns_table,
    details_table,
    numbers_table,
    rows_table,
    shortened_to,
    viewer_link,
)
from tokflow.exports import Part
from tokflow.pipeline.lines import described, described_parts
from tokflow.pipeline.output import Output
from tokflow.pipeline.results import StageResult, Totals
from tokflow.pipeline.statistics import (
    export_statistics,
    full,
    part_statistics,
    ratio,
    rows_of_mixture,
    text_statistics,
)
from tokflow.pipeline.writers import parts_of
from tokflow.store.arrow import read_first
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard, open_token_shard
from tokflow.tokens.writer import DOCUMENTS_NAME


@dataclass(frozen=True, slots=True)
class Report:
    """Data version and metadata of one output."""

    data_version: str
    """The output's fingerprint."""
    metadata: Mapping[str, Any]
    description: str = ""
    """A line of the run's log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What the page of an asset shows, in the order of the fields."""

    summary: Mapping[str, Any]
    """Ten numbers at most, in the order in which people ask for them."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Previews, tables and links: values of Dagster's."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The rest, for one table."""
    plots: Sequence[str] = ()
    """The numbers of `summary` that vary."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Values that Dagster knows by their keys."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of an event."""
        return {
            "summary": numbers_table(self.summary),
            **self.shown,
            **({"details": details_table(self.details)} if self.details else {}),
            **{name: self.summary[name] for name in self.plots if name in self.summary},
            **self.own,
        }


def report(made: StageResult) -> Report:
    """Return the report of an output in the store."""
    output = made.output
    page = PAGES[output.stage](made)
    said = {**page.summary, **page.details}
    counts = {name: num for name, num in made.manifest.counts.items() if name not in said}
    parts = tuple(f"{part}." for part in made.manifest.details.get("parts", ()))
    rest = {name: num for name, num in counts.items() if not name.startswith((*parts, "no_part."))}
    details = {
        **page.details,
        **rest,
        **{name: value for name, value in made.run.items() if name not in said},
        "is_new": made.is_new,
        "fingerprint": output.fingerprint[:16],
    }
    own = {
        **page.own,
        "dagster/uri": made.store.uri(made.folder),
        "folder": dg.MetadataValue.path(made.stored.shown),
    }
    metadata = replace(page, details=details, own=own).metadata
    is_of_parts = output.stage in ("split", "sequences")
    line = f"{output.name}: {described_parts([made])}" if is_of_parts else described(made)
    there = "" if made.is_new else ", there already"
    return Report(data_version(output), metadata, f"{line}{there}")


def data_version(output: Output) -> str:
    """Return the version of an output that Dagster compares: its fingerprint.

    That of the tokenizer is of its content: tokens depend on nothing else, so a tokenizer that
    was trained again and came out the same makes nothing stale.
    """
    if output.stage == "tokenizer":
        return str(output.manifest().details["tokenizer_fingerprint"])
    return output.fingerprint


def _tokenizer(made: StageResult) -> Page:
    tokenizer = made.graph.tokenizer
    asked = made.manifest.config.get("vocab_size")
    rebuilt = describe_rebuilt(made.folder)
    return Page(
        summary={
            "vocab_size": tokenizer.vocab_size,
            **({} if asked is None else {"vocab_size_asked": asked}),
            "eos": _token(tokenizer.eos_token, tokenizer.eos_id),
            "bos": _token(tokenizer.bos_token, tokenizer.bos_id),
            "kind": tokenizer.kind,
            "dtype": tokenizer.dtype.name,
        },
        shown={"files": _files(made)},
        details={
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "special_tokens": dict(tokenizer.special_tokens),
            "origin": dict(made.manifest.details.get("origin", {})),
            **({"auto_tokenizer": rebuilt} if rebuilt else {}),
        },
    )


def _token(name: str | None, token_id: int | None) -> str:
    return "none" if token_id is None else f"{name!r} = {token_id}"


def _tokens(made: StageResult) -> Page:
    counts = made.manifest.counts
    shard = open_token_shard(made.stored)
    pace = made.run.get("megabytes_per_second")
    optional = ("num_loss_tokens", "num_left_out")
    summary = {
        "num_documents": counts["num_documents"],
        "num_tokens": counts["num_tokens"],
        "bytes_per_token": ratio(counts["num_bytes"], counts["num_tokens"]),
        "num_rejects": counts["num_rejects"],
        **{name: counts[name] for name in optional if name in counts},
        "num_bytes": counts["num_bytes"],
        **({} if pace is None else {"megabytes_per_second": pace}),
    }
    return Page(
        summary=summary,
        shown=preview_of_shard(shard, made.graph.tokenizer),
        details={"dtype": shard.dtype.name},
        plots=tuple(summary),
        own={"dagster/partition_row_count": counts["num_documents"]},
    )


def _split(made: StageResult) -> Page:
    rows = _parts(made, "no_part")
    num_chars = sum(row["num_chars"] for row in rows)
    shares = [{**row, "chars_fraction": ratio(row["num_chars"], num_chars)} for row in rows]
    tokens = {f"{row['part']}.num_tokens": row["num_tokens"] for row in rows[:MAX_PARTS]}
    return Page(
        summary={
            "num_documents": sum(row["num_documents"] for row in rows),
            "num_tokens": sum(row["num_tokens"] for row in rows),
            "num_cut_pieces": sum(row["num_cut_pieces"] for row in rows),
            **tokens,
        },
        shown={"parts": columns_table(shares)},
        plots=("num_documents", "num_tokens", "num_cut_pieces", *tokens),
    )


MAX_PARTS = 5
"""Parts whose tokens are plotted."""


def _sequences(made: StageResult) -> Page:
    rows = _parts(made)
    for row in rows:
        row["fill_fraction"] = full(row["num_tokens"], row["num_tokens"] + row["num_padding"])
    summary = {"num_sequences": _sum(rows, "num_sequences"), **_packed(rows)}
    return Page(
        summary=summary,
        shown={"parts": columns_table(rows)},
        details={"sequence_length": made.manifest.details["sequence_length"]},
        plots=tuple(summary),
        own={"dagster/partition_row_count": summary["num_sequences"]},
    )


def _packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how full sequences are, of all parts together."""
    num_tokens = _sum(rows, "num_tokens")
    return {
        "num_tokens": num_tokens,
        "fill_fraction": full(num_tokens, num_tokens + _sum(rows, "num_padding")),
        "num_dropped_tokens": _sum(rows, "num_dropped_tokens"),
    }


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(row.get(name, 0) for row in rows)


def _parts(made: StageResult, *others: str) -> list[dict[str, Any]]:
    """Return a row of counts for each part."""
    counts = made.manifest.counts
    return [
        {
            "part": part,
            **{
                name.removeprefix(f"{part}."): num
                for name, num in counts.items()
                if name.startswith(f"{part}.")
            },
        }
        for part in (*made.manifest.details["parts"], *others)
    ]


def _export(made: StageResult) -> Page:
    manifest, graph = made.manifest, made.graph
    exported = parts_of(graph, graph.dataset.export_config(made.output.name))
    splits = exported[0].splits
    text = text_statistics(split.shard.manifest.counts for split in splits)
    of_parts = part_statistics(manifest.details["parts"], [of.manifest.counts for of in splits])
    counts = _parts(made)
    rows = [row | export_statistics(manifest, row["part"]) for row in of_parts]
    num_sequences = _sum(counts, "num_sequences")
    packed = _packed(counts)
    summary = {
        "num_documents": _sum(rows, "num_documents"),
        "num_tokens": packed.pop("num_tokens"),
        "bytes_per_token": text.get("bytes_per_token", 0.0),
        **({"num_sequences": num_sequences, **packed} if num_sequences else {}),
        "num_dropped_tokens": packed["num_dropped_tokens"],
        "num_rejects": text.get("num_rejects", 0),
        "num_bytes": manifest.num_bytes,
    }
    mixture = manifest.details.get("mixture")
    totals = Totals().add(manifest, made.output.name)
    for split in splits:
        totals.add(split.shard.manifest, made.output.name)
    notices = [{"notice": notice.text} for notice in totals.notices()]
    return Page(
        summary=summary,
        shown={
            **({"notices": rows_table(notices)} if notices else {}),
            "viewer": viewer_link(graph.dataset, made.output.name),
            **preview_of_part(exported[0], graph.tokenizer),
            "parts": columns_table(rows),
            **({"mixture": rows_table(rows_of_mixture(mixture))} if mixture else {}),
            "files": _files(made),
        },
        details={"format": manifest.details["format"], "dtype": graph.tokenizer.dtype.name},
        plots=tuple(summary),
        own={"dagster/row_count": num_sequences} if num_sequences else {},
    )


PAGES: Mapping[str, Callable[[StageResult], Page]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "sequences": _sequences,
    "export": _export,
}
"""Stage to what the page of its asset shows besides what all have."""


def _files(made: StageResult) -> dg.MetadataValue[Any]:
    return rows_table(
        [
            {"file": name, "num_bytes": entry.num_bytes, "sha256": entry.sha256[:16]}
            for name, entry in made.manifest.files.items()
        ]
    )


PREVIEW_TOKENS = 256
"""Tokens of a file, or of a part, that are decoded for a person to see what a model will."""

PREVIEW_ROWS = 5
"""Documents of a file, or sequences of a part, that a table shows."""

TEXT_TOKENS, TEXT_WIDTH = 16, 24
"""Tokens of a row that are decoded, and characters of them that are shown."""

Metadata = Mapping[str, dg.MetadataValue[Any]]


def preview_of_shard(shard: TokenShard, tokenizer: Tokenizer) -> Metadata:
    """Return the first tokens of a file as text, and its first documents as a table."""
    tokens, table = shard.tokens(is_lazy=True), shard.stored.file(shard.names(DOCUMENTS_NAME)[0])
    first = read_first(table, ["row", "token_offset", "num_tokens"], PREVIEW_ROWS)
    rows = []
    for of in first.to_pylist():
        start, num_tokens = of["token_offset"], of["num_tokens"]
        few = tokens.read(start, start + min(num_tokens, TEXT_TOKENS))
        rows.append({"row": of["row"], "num_tokens": num_tokens, "text": _start(few, tokenizer)})
    text = _decoded(tokens.read(0, PREVIEW_TOKENS), tokenizer)
    return {"preview": _as_code(text), **({"documents": rows_table(rows)} if rows else {})}


def preview_of_part(part: Part, tokenizer: Tokenizer) -> Metadata:
    """Return the beginning of the part's first sequence and a table of its first sequences or, of a
    stream, its first tokens."""
    if not part.packed.files:
        batch = next((batch for batch in part.stream() if len(batch)), None)
        return {"preview": _as_code(_decoded(batch, tokenizer))}
    sequences = next(part.sequences(PREVIEW_ROWS), None)
    if sequences is None or len(sequences) == 0:
        return {"preview": _as_code("")}
    rows: list[dict[str, Any]] = []
    shown = zip(sequences.token_ids, sequences.segment_ids, strict=True)
    for number, (token_ids, segment_ids) in enumerate(shown):
        rows.append(
            {
                "sequence": number,
                "num_segments": int(segment_ids.max()),
                "text": _start(token_ids[segment_ids > 0][:TEXT_TOKENS], tokenizer),
            }
        )
    first = sequences.token_ids[0][sequences.segment_ids[0] > 0]
    return {"preview": _as_code(_decoded(first, tokenizer)), "sequences": rows_table(rows)}


def _start(token_ids: npt.NDArray[Any], tokenizer: Tokenizer) -> str:
    """Return how a text begins, on one line."""
    text = visible(" ".join(_decoded(token_ids, tokenizer).split()))
    return shortened_to(text, TEXT_WIDTH)


def _decoded(token_ids: npt.NDArray[Any] | None, tokenizer: Tokenizer) -> str:
    """Return the text of the first tokens, in which BOS and EOS show where documents meet."""
    first = [] if token_ids is None else token_ids[:PREVIEW_TOKENS].tolist()
    if first and max(first) >= tokenizer.vocab_size:
        return "(damaged: an id is not below vocab_size)"  # a check says where
    return open_reference(tokenizer).decode(first) if first else ""


def _as_code(text: str) -> dg.MarkdownMetadataValue:
    return code_block(text) if text else dg.MetadataValue.md("*no text*")
