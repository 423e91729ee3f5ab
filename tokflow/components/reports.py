"""Reports of outputs to Dagster: their data version and metadata, in the vocabulary's words.

On a page of the web UI come first the numbers that people ask for, then a look at the text, then
the rest in one table. After them stand the numbers that differ from file to file, or from build to
build, once more, as numbers: those Dagster draws.

The web UI shows metadata in a column of 267 px where the window has 1,280: short lines, narrow
tables. Dagster shows a number without separators, cuts what is wide, and drops HTML.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import dagster as dg
import numpy as np
import numpy.typing as npt

from tokflow.audit.token_texts import TokenTexts, drawn
from tokflow.exports import Part
from tokflow.exports.stage import parts_of
from tokflow.formatting import clipped, printable, viewer_command
from tokflow.pipeline import describe as numbers
from tokflow.pipeline.mixture import mixture_rows
from tokflow.pipeline.output import Output
from tokflow.pipeline.results import StageResult, Totals
from tokflow.pipeline.run_log import line_of
from tokflow.split.rule import NOT_TAKEN
from tokflow.stage import Graph
from tokflow.store.tables import read_first
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import DOCUMENTS_NAME

WIDTH = 30
"""Characters of a line that is not cut where the window has 1,280 px."""

WORD_WIDTH = 8
"""Characters of a word that stand on one line of a narrow table; a longer one may go on below."""

MAX_CHARACTERS = 999
"""Characters of markdown that Dagster 1.13 shows; it puts longer markdown behind a link."""

MAX_REASON = 400
"""Characters that are shown of why a file is not built."""

MAX_LINES = 16
"""Lines of a text that is shown."""

MANY_FILES = 100
"""Files above which the event of each is a brief one."""

MAX_ROWS = 1_000
"""Rows of a table in metadata; the whole list is in the output's manifest."""


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
    """Contents of an asset's page, in the order of the fields."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    """The numbers of the output, and a few words."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Previews, tables and links: values of Dagster's."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Everything else, for one table."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Values that Dagster knows by their keys."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of an event; numbers that may differ stand there once more, for Dagster to
        draw."""
        return {
            "summary": numbers_table(self.summary),
            **self.shown,
            **({"details": numbers_table(self.details, rule=":--")} if self.details else {}),
            **{name: of for name, of in self.summary.items() if _is_drawn(name, of)},
            **self.own,
        }

    def of_file(self, graph: Graph) -> dict[str, Any]:
        """Return the metadata of a file's event: of one of many its numbers, by part where it has
        parts, how its text begins, and where it is. Its folder has everything else, and every
        event is stored twice."""
        if len(graph.partitions) <= MANY_FILES:
            return self.metadata
        brief = replace(
            self,
            summary={} if "parts" in self.shown else self.summary,
            shown={name: of for name, of in self.shown.items() if name != "documents"},
            details={},
            own={name: of for name, of in self.own.items() if name.startswith("dagster/")},
        )
        found = brief.metadata
        if len(brief.summary) < 2:  # a number that is drawn, if any
            del found["summary"]
        return found


def _is_drawn(name: str, value: Any) -> bool:
    """Return whether a number is drawn: not the size of a vocabulary, nor what is nothing or full
    as nearly always; of a file of which nothing is kept that it is."""
    is_number = isinstance(value, int | float) and not name.startswith("vocab_size")
    is_drawn = bool(value) or name == "kept_fraction"
    return is_number and is_drawn and (name, value) != ("fill_fraction", 1)


def report(made: StageResult) -> Report:
    """Return the report of an output in the store."""
    output, manifest = made.output, made.manifest
    described = numbers.describe(manifest, made.run)
    whole, parts = described.whole, described.rows
    own_page = PAGES[output.stage](made, described) if output.stage in PAGES else Page()
    summary = {**whole, **own_page.summary, **whole}
    counts = {name: num for name, num in manifest.counts.items() if "." not in name}
    known = {name: manifest.details[name] for name in DETAILS if name in manifest.details}
    known |= {name: np.dtype(of).name for name, of in known.items() if name == "dtype"}
    facts = {**own_page.details, **known, **counts, **made.run}
    num_rows = whole.get("num_sequences", whole.get("num_documents"))
    has_rows = num_rows is not None and not output.step.is_of_file
    page = Page(
        summary=summary,
        shown={**({"parts": numbers_table(*parts)} if parts else {}), **own_page.shown},
        details={
            **{name: value for name, value in facts.items() if name not in summary},
            "is_new": made.is_new,
            "fingerprint": output.fingerprint[:16],
        },
        own={
            **({"dagster/row_count": num_rows} if has_rows else {}),
            "dagster/uri": made.store.uri(made.folder),
            "folder": for_shell(made.stored.shown),
        },
    )
    there = "" if made.is_new else ", there already"
    metadata = page.of_file(made.output.graph) if output.step.is_of_file else page.metadata
    return Report(data_version(output), metadata, f"{line_of(made)}{there}")


DETAILS = ("format", "dtype", "sequence_length", "tokenizer_fingerprint")
"""Details of a manifest that a page has, where they are there."""


def data_version(output: Output) -> str:
    """Return the version of an output that Dagster compares: its fingerprint.

    That of the tokenizer is of its content: tokens depend on nothing else, so a tokenizer that
    was trained again and came out the same makes nothing stale.
    """
    if output.step.decides_all:
        return str(output.manifest().details["tokenizer_fingerprint"])
    return output.fingerprint


def _tokenizer(made: StageResult, described: numbers.Description) -> Page:
    tokenizer, rebuilt = made.output.graph.tokenizer, describe_rebuilt(made.folder)
    return Page(
        summary={
            "eos": _token(tokenizer.eos_token, tokenizer.eos_id),
            "bos": _token(tokenizer.bos_token, tokenizer.bos_id),
            "kind": tokenizer.kind,
        },
        shown={"files": _files(made)},
        details={
            "special_tokens": dict(tokenizer.special_tokens),
            "origin": dict(made.manifest.details.get("origin", {})),
            **({"auto_tokenizer": rebuilt} if rebuilt else {}),
        },
    )


def _token(name: str | None, token_id: int | None) -> str:
    return "none" if token_id is None else f"{name!r} = {token_id}"


def _tokens(made: StageResult, described: numbers.Description) -> Page:
    if made.manifest.dropped:
        return Page()
    texts, shard = TokenTexts(made.output.graph.tokenizer), TokenShard(made.stored)
    tokens, table = shard.tokens(is_lazy=True), shard.stored.file(shard.names(DOCUMENTS_NAME)[0])
    first = read_first(table, ["row", "token_offset", "num_tokens"], PREVIEW_ROWS)
    rows = []
    for of in first.to_pylist():
        start, num_tokens = of["token_offset"], of["num_tokens"]
        few = tokens.read(start, start + min(num_tokens, TEXT_CHARS))
        rows.append({"row": of["row"], "num_tokens": num_tokens, "text": _start(few, texts)})
    preview = _preview(tokens.read(0, PREVIEW_TOKENS), texts)
    return Page(shown={**preview, **({"documents": rows_table(rows)} if rows else {})})


def _split(made: StageResult, described: numbers.Description) -> Page:
    details = made.manifest.details
    parts = {**details, "parts": [*details["parts"], NOT_TAKEN]}
    rows = numbers.describe(replace(made.manifest, details=parts)).rows
    return Page(shown={"parts": numbers_table(*(of for of in rows if of["num_documents"]))})


def _export(made: StageResult, described: numbers.Description) -> Page:
    manifest, graph = made.manifest, made.output.graph
    exported = parts_of(made.output)
    shards = [split.shard.manifest for split in exported[0].splits]
    is_dropped = any(of.dropped for of in shards)
    text = numbers.describe_all(shards)
    split = numbers.describe_all(split.manifest for split in exported[0].splits)
    rows = [row | described.parts[row["part"]] for row in split.rows] if split else []
    mixture = manifest.details.get("mixture")
    totals = Totals().add(manifest, made.output.name)
    for shard in shards:
        totals.add(shard, made.output.name)
    notices = [{"notice": notice.text} for notice in totals.notices()]
    return Page(
        summary={**(text.whole if text else {}), **(split.whole if split else {})},
        shown={
            **({"notices": rows_table(notices)} if notices else {}),
            "viewer": for_shell(viewer_command(made.store.shown(made.folder.parent))),
            **({} if is_dropped else preview_of_part(exported[0], TokenTexts(graph.tokenizer))),
            "parts": numbers_table(*rows),
            **({"mixture": numbers_table(*mixture_rows(mixture))} if mixture else {}),
            "files": _files(made),
        },
    )


PAGES: Mapping[str, Callable[[StageResult, numbers.Description], Page]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "export": _export,
}
"""Stage to what the page of its outputs has besides what all have."""


def _files(made: StageResult) -> dg.MetadataValue[Any]:
    return rows_table(
        [
            {"file": name, "num_bytes": entry.num_bytes, "sha256": entry.sha256[:7]}
            for name, entry in made.manifest.files.items()
        ]
    )


PREVIEW_TOKENS = 256
"""Tokens of a file, or of a part, that are decoded for a person to see what a model will."""

PREVIEW_ROWS = 5
"""Documents of a file, or sequences of a part, that a table shows."""

TEXT_CHARS = 100
"""Characters of a row that a table shows, of at most as many tokens."""

Metadata = Mapping[str, dg.MetadataValue[Any]]


def preview_of_part(part: Part, texts: TokenTexts) -> Metadata:
    """Return the beginning of the part's first sequence and a table of its first sequences or, of a
    stream, its first tokens."""
    if not part.packed.files:
        return _preview(next((batch for batch in part.stream() if len(batch)), ()), texts)
    sequences = next(part.sequences(PREVIEW_ROWS), None)
    if sequences is None or len(sequences) == 0:
        return _preview((), texts)
    rows = [
        {
            "num_segments": int(segment_ids.max()),
            "text": _start(token_ids[segment_ids > 0][:TEXT_CHARS], texts),
        }
        for token_ids, segment_ids in zip(sequences.token_ids, sequences.segment_ids, strict=True)
    ]
    first = sequences.token_ids[0][sequences.segment_ids[0] > 0]
    return {**_preview(first, texts), "sequences": rows_table(rows)}


def _start(token_ids: npt.NDArray[Any], texts: TokenTexts) -> str:
    """Return how a text begins, on one line."""
    return clipped(drawn(" ".join(texts.decoded(token_ids.tolist()).split())), TEXT_CHARS)


def _preview(token_ids: Sequence[int] | npt.NDArray[Any], texts: TokenTexts) -> Metadata:
    """Return the text of the first tokens, in which BOS and EOS show where documents meet."""
    text = texts.decoded([*map(int, token_ids[:PREVIEW_TOKENS])])
    return {"preview": code_block(drawn(text)) if text else dg.MetadataValue.md("*no text*")}


def numbers_table(*rows: Mapping[str, Any], rule: str = "--:") -> dg.MarkdownMetadataValue:
    """Return values below each other, numbers with separators and by names in plain words, without
    optional ones that are 0; several rows below each other, too, for beside each other they would
    be cut."""
    below = ("\n".join(_lines(row)) for row in rows)
    return dg.MetadataValue.md(f"| | |\n|:--|{rule}|\n" + "\n| | |\n".join(below))


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    for name in numbers.shown_columns([row]):
        if shown := escaped(_shown(name, row[name])):
            is_number = isinstance(row[name], int | float)
            yield f"| {escaped(numbers.label(name))} | {shown if is_number else breakable(shown)} |"


def _shown(name: str, value: Any) -> str:
    """Return a value as people read it: nothing of a rate that is not known, for no tokens."""
    is_unknown = value == 0 and name.endswith("_per_token")
    return "" if is_unknown else numbers.formatted(name, value)


def rows_table(
    rows: Sequence[Mapping[str, Any]], max_rows: int = MAX_ROWS
) -> dg.TableMetadataValue:
    """Return a table with a line for each of the first rows, and one that counts the rest."""
    names = numbers.shown_columns(rows[:max_rows])
    headings = [*map(numbers.label, names)]
    lines = [
        [breakable(_shown(of, row.get(of)), 14 if of == "text" else WORD_WIDTH) for of in names]
        for row in rows[:max_rows]
    ]
    if len(rows) > max_rows:
        lines.append([f"and {len(rows) - max_rows:,} more", *[""] * (len(headings) - 1)])
    schema = dg.TableSchema([dg.TableColumn(of) for of in headings])
    records = [dg.TableRecord(dict(zip(headings, line, strict=True))) for line in lines]
    return dg.MetadataValue.table(records, schema=schema)


def breakable(text: str, width: int = WORD_WIDTH) -> str:
    """Return a text, or markdown, whose long words may go on in the next line, at best after a
    sign."""

    def broken(word: re.Match[str]) -> str:
        return re.sub(rf"(\\?[^\w\s\\]|_|\w{{{width}}})(?=.)", "\\1\u200b", word[0])

    return re.sub(rf"\S{{{width + 2},}}", broken, text)


def code_block(text: str) -> dg.MarkdownMetadataValue:
    """Return `text` as it is, letter by letter whatever is in it, in lines that are not cut, and as
    much of it as Dagster shows."""
    lines = [*chain.from_iterable(map(_wrapped, printable(text, keep="\n\t").split("\n")))]
    few = lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]
    return _fenced(clipped("\n".join(few), MAX_CHARACTERS - 40), "text")


def _wrapped(line: str, width: int = WIDTH) -> list[str]:
    wrapper = textwrap.TextWrapper(width, break_on_hyphens=False, drop_whitespace=False)
    wrapper.expand_tabs = wrapper.replace_whitespace = False
    return wrapper.wrap(line) or [""]


def _fenced(text: str, language: str) -> dg.MarkdownMetadataValue:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return dg.MetadataValue.md(f"{fence}{language}\n{text}\n{fence}")


def for_shell(*commands: str) -> dg.MarkdownMetadataValue:
    """Return commands or paths to copy into a shell, in lines that are not cut unless they have
    quotes: a backslash at the end of a line is no part of them."""
    lines = ([of] if "'" in of else _wrapped(of, WIDTH - 1) for of in commands)
    return _fenced("\n".join("\\\n".join(of) for of in lines), "sh")


def escaped(text: str) -> str:
    """Return `text` as markdown that shows just it on one line, wherever it comes from."""
    line = " ".join(printable(text, keep="\n\t").split())
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)
