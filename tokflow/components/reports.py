"""Reports of outputs to Dagster: their data version and metadata, in the vocabulary's words."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.inspection import visible
from tokflow.build.output import Output
from tokflow.build.results import StageResult
from tokflow.build.statistics import export_statistics, part_statistics, ratio, rows_of_mixture
from tokflow.errors import counted
from tokflow.exports import Part
from tokflow.raw import LeftOut, RawFile, RawPartition, RawSource, redact
from tokflow.store.remote.places import place_of, shown
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer, vocab_size_asked
from tokflow.tokens.shard import open_token_shard

MAX_ROWS = 1_000
"""Rows of a table in metadata; the whole list is in the output's manifest."""

PREVIEW_TOKENS = 256
"""Tokens of a file, or of a part, that are decoded for a person to see what a model will."""


@dataclass(frozen=True, slots=True)
class Report:
    """Data version and metadata of one output."""

    data_version: str
    """The output's fingerprint."""
    metadata: Mapping[str, Any]
    description: str = ""
    """A line of the run's log."""


def report_raw(raw: RawPartition, sources: Sequence[RawSource]) -> Report:
    """Return the report of the raw files of a partition, which are on this disk, or are fetched as
    they are read."""
    version = None if raw.is_group else raw.files[0].version
    metadata: dict[str, Any] = {"num_bytes": raw.num_bytes}
    metadata |= {"version": version} if version else {"sha256": raw.sha256}
    if raw.is_group:
        metadata |= {"num_files": len(raw.files), "files": _files_listed(raw.files)}
    else:
        metadata |= {
            "dagster/uri": redact(sources[0].url),
            "path": dg.MetadataValue.path(str(raw.paths[0])),
            **({} if (hub := sources[0].hub) is None else {"commit": hub.commit}),
        }
    return Report(raw.sha256, metadata, f"{raw.key}: {counted(raw.num_bytes, 'byte')}")


def report_files(
    raw_files: Mapping[str, RawFile | None], left_out: Sequence[LeftOut] = ()
) -> Report:
    """Return the report of the list of raw files; None for one that has not been fetched.

    `left_out`: what is no raw file though a pattern matches it; it decides nothing.
    """
    versions = [[key, raw.sha256 if raw else None] for key, raw in raw_files.items()]
    listed = [_listed(key, raw) for key, raw in raw_files.items()]
    return Report(
        hashlib.sha256(json.dumps(versions).encode()).hexdigest(),
        {
            "num_files": len(listed),
            "num_bytes": sum(raw.num_bytes for raw in raw_files.values() if raw),
            "dagster/row_count": len(listed),
            "files": _table(listed),
            **({"left_out": _table([asdict(left) for left in left_out])} if left_out else {}),
        },
        counted(len(listed), "file"),
    )


def _files_listed(files: Sequence[RawFile]) -> dg.MetadataValue:
    return _table([_listed(file.key, file) for file in files])


def _sha256(raw: RawFile | None) -> str:
    if raw is None:
        return "not fetched yet"
    return raw.sha256[:16] if raw.version is None else "fetched as it is read"


def _listed(key: str, raw: RawFile | None) -> dict[str, Any]:
    return {
        "raw_file": key,
        "num_bytes": raw.num_bytes if raw else 0,
        "sha256": _sha256(raw),
    }


def report(made: StageResult) -> Report:
    """Return the report of an output in the store."""
    output = made.output
    return Report(
        data_version(output),
        {
            **made.manifest.counts,
            **made.run,
            **DETAILS[output.stage](made),
            "fingerprint": output.fingerprint,
            "is_new": made.is_new,
            "dagster/uri": _uri_of(output.folder),
            "folder": dg.MetadataValue.path(shown(output.folder)),
        },
        f"{output.name}: {_described(made)}{'' if made.is_new else ', there already'}",
    )


def _uri_of(folder: Path) -> str:
    place = place_of(folder)
    return folder.absolute().as_uri() if place is None else place.url_of(folder)


def _described(made: StageResult) -> str:
    """Return what is in an output on a line, such as `100 documents, 18,204 tokens, 31 MB/s`."""
    counts, stage = made.manifest.counts, made.output.stage
    if stage == "tokenizer":
        return counted(counts["vocab_size"], "id")
    if stage == "tokens":
        documents, tokens, rejects = (
            counted(counts[f"num_{noun}s"], noun) for noun in ("document", "token", "reject")
        )
        speed = made.run.get("megabytes_per_second", 0)
        num = counts.get("num_left_out")
        left_out = "" if num is None else f", {counted(num, 'record')} left out"
        return f"{documents}, {tokens}, {speed:,.0f} MB/s, {rejects}{left_out}"
    noun = {"split": "document", "sequences": "sequence", "export": "token"}[stage]
    parts = made.manifest.details["parts"]
    return ", ".join(f"{part} {counted(counts[f'{part}.num_{noun}s'], noun)}" for part in parts)


def data_version(output: Output) -> str:
    """Return the version of an output that Dagster compares: its fingerprint.

    That of the tokenizer is of its content: tokens depend on nothing else, so a tokenizer that
    was trained again and came out the same makes nothing stale.
    """
    is_tokenizer = output.stage == "tokenizer"
    return output.graph.tokenizer.fingerprint if is_tokenizer else output.fingerprint


def _tokenizer(made: StageResult) -> dict[str, Any]:
    tokenizer = made.output.graph.tokenizer
    asked = vocab_size_asked(made.manifest)
    rebuilt = describe_rebuilt(made.folder)
    return {
        "kind": tokenizer.kind,
        "dtype": tokenizer.dtype.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "eos": _token(tokenizer.eos_token, tokenizer.eos_id),
        "bos": _token(tokenizer.bos_token, tokenizer.bos_id),
        **({} if asked is None else {"vocab_size_asked": asked}),
        "special_tokens": dg.MetadataValue.json(dict(tokenizer.special_tokens)),
        "origin": dg.MetadataValue.json(dict(made.manifest.details.get("origin", {}))),
        **({"auto_tokenizer": rebuilt} if rebuilt else {}),
        "files": _files(made),
    }


def _token(name: str | None, token_id: int | None) -> str:
    return "none" if token_id is None else f"{name!r} = {token_id}"


def _tokens(made: StageResult) -> dict[str, Any]:
    counts = made.manifest.counts
    shard = open_token_shard(made)
    return {
        "dtype": shard.dtype.name,
        "bytes_per_token": ratio(counts["num_bytes"], counts["num_tokens"]),
        "dagster/partition_row_count": counts["num_documents"],
        "preview": dg.MetadataValue.md(
            _preview(shard.tokens().read(0, PREVIEW_TOKENS), made.output.graph.tokenizer)
        ),
    }


def _split(made: StageResult) -> dict[str, Any]:
    rows = _parts(made, "no_part")
    num_chars = sum(row["num_chars"] for row in rows)
    return {
        "parts": _table(
            [{**row, "chars_fraction": ratio(row["num_chars"], num_chars)} for row in rows]
        )
    }


def _sequences(made: StageResult) -> dict[str, Any]:
    rows = _parts(made)
    for row in rows:
        num_slots = row["num_tokens"] + row["num_padding"]
        row["fill_fraction"] = ratio(row["num_tokens"], num_slots)
    num_sequences = sum(row["num_sequences"] for row in rows)
    return {
        "num_sequences": num_sequences,
        "sequence_length": made.manifest.details["sequence_length"],
        "parts": _table(rows),
        "dagster/partition_row_count": num_sequences,
    }


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


def _export(made: StageResult) -> dict[str, Any]:
    manifest, graph = made.manifest, made.output.graph
    counts, parts = manifest.counts, manifest.details["parts"]
    is_packed = f"{parts[0]}.num_sequences" in counts
    num_tokens, num_rows = (
        sum(counts[f"{part}.{name}"] for part in parts)
        for name in ("num_tokens", "num_sequences" if is_packed else "num_tokens")
    )
    exported = graph.parts(graph.export_config(made.output.name))
    splits = [split.manifest.counts for split in exported[0].splits]
    rows, mixture = part_statistics(parts, splits), manifest.details.get("mixture")
    return {
        "format": manifest.details["format"],
        "dtype": graph.tokenizer.dtype.name,
        "num_tokens": num_tokens,
        "num_bytes": manifest.num_bytes,
        "parts": _table([row | export_statistics(manifest, row["part"]) for row in rows]),
        "dagster/row_count": num_rows,
        **({"mixture": _table(rows_of_mixture(mixture))} if mixture else {}),
        "files": _files(made),
        "preview": dg.MetadataValue.md(_preview_of_part(exported[0], graph.tokenizer)),
    }


DETAILS: Mapping[str, Callable[[StageResult], dict[str, Any]]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "sequences": _sequences,
    "export": _export,
}
"""Stage to what is to be said of its outputs besides their counts."""


def column_schema(columns: pa.Schema, descriptions: Mapping[str, str]) -> dg.TableSchema:
    """Return columns as the web UI shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(of.name, type=str(of.type), description=descriptions.get(of.name))
            for of in columns
        ]
    )


def _files(made: StageResult) -> dg.TableMetadataValue:
    return _table(
        [
            {"file": name, "num_bytes": entry.num_bytes, "sha256": entry.sha256[:16]}
            for name, entry in made.manifest.files.items()
        ]
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    types = {str: "string", int: "int", float: "float", bool: "bool", type(None): "string"}
    first = rows[0] if rows else {}
    columns = [dg.TableColumn(name, type=types[type(value)]) for name, value in first.items()]
    records = [dg.TableRecord(row) for row in rows[:MAX_ROWS]]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _preview_of_part(part: Part, tokenizer: Tokenizer) -> str:
    """Return the beginning of the part's first sequence or, of a stream, of its first tokens."""
    if not part.packed.files:
        return _preview(next((batch for batch in part.stream() if len(batch)), None), tokenizer)
    sequences = next(part.sequences(1), None)
    if sequences is None or len(sequences) == 0:
        return _preview(None, tokenizer)
    return _preview(sequences.token_ids[0][sequences.segment_ids[0] > 0], tokenizer)


def _preview(token_ids: npt.NDArray[Any] | None, tokenizer: Tokenizer) -> str:
    """Return the text of the first tokens, in which BOS and EOS show where documents meet."""
    first = [] if token_ids is None else token_ids[:PREVIEW_TOKENS].tolist()
    if not first:
        return "*no text*"
    if max(first) >= tokenizer.vocab_size:
        return "(damaged: an id is not below vocab_size)"  # a check says where
    return _as_code(open_reference(tokenizer).decode(first))


def _as_code(text: str) -> str:
    """Return `text` as a block of markdown that shows it letter by letter, whatever is in it."""
    shown = visible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"
