"""`tokflow inspect`: an output as people want to see it."""

import dataclasses
from pathlib import Path
from typing import Any

from tokflow.audit.inspection import Inspection, Segment, inspect_output
from tokflow.cli.output import (
    DONE,
    UsageError,
    counted,
    print_json,
    print_table,
    shown_ids,
    size,
    styled,
)
from tokflow.errors import MissingOutputError
from tokflow.store.manifest import read_run

FILES_SHOWN = 20


def print_inspection(
    path: Path, *, num_sequences: int, trust_remote_code: bool, as_json: bool
) -> int:
    """Print what the output at `path` holds; return the exit status."""
    try:
        inspection = inspect_output(
            path, num_sequences=num_sequences, trust_remote_code=trust_remote_code
        )
    except MissingOutputError as error:
        if path.exists():
            raise
        raise UsageError(**error.fields()) from error
    if as_json:
        print_json(_as_document(inspection))
    else:
        _print(inspection)
    return DONE


def _print(inspection: Inspection) -> None:
    found = inspection.found
    manifest = found.manifest
    print(f"{styled(found.name, 'bold')} of dataset {manifest.dataset}")
    print(f"folder       {found.folder}")
    print(f"fingerprint  {manifest.fingerprint}")
    print(f"size         {size(inspection.num_bytes)} in {counted(len(manifest.files), 'file')}")
    for name in ("format", "dtype", "vocab_size", "sequence_length", "pad_id"):
        if manifest.details.get(name) is not None:
            print(f"{name:<11}  {manifest.details[name]}")
    for role in ("eos", "bos"):
        if (token_id := manifest.details.get(f"{role}_id")) is not None:
            token = manifest.details.get(f"{role}_token")
            if token is None and inspection.tokenizer is not None:
                token = getattr(inspection.tokenizer, f"{role}_token")
            print(f"{role:<11}  {token_id:,}" + (f" {token!r}" if token else ""))
    for name, parent in list(manifest.parents.items())[:FILES_SHOWN]:
        print(f"made from    {name} {parent[:16]}")
    if len(manifest.parents) > FILES_SHOWN:
        print(f"made from    {len(manifest.parents) - FILES_SHOWN:,} more")
    print()
    print_table(("count", ""), [(name, f"{num:,}") for name, num in manifest.counts.items()])
    print()
    _print_files(inspection)
    for note in inspection.notes:
        print(f"\nnote: {note}")
    for stretch in inspection.stretches:
        num_tokens = sum(len(s.token_ids) for s in stretch.segments if not s.is_padding)
        num_segments = sum(not segment.is_padding for segment in stretch.segments)
        tokens, segments = counted(num_tokens, "token"), counted(num_segments, "segment")
        print(f"\n{styled(stretch.name, 'bold')}: {tokens} of {segments}")
        for number, segment in enumerate(stretch.segments):
            _print_segment(segment, number)


def _print_files(inspection: Inspection) -> None:
    files = list(inspection.found.manifest.files.items())
    rows = [(name, size(entry.num_bytes), entry.sha256[:16]) for name, entry in files[:FILES_SHOWN]]
    print_table(("file", "size", "sha256"), rows)
    if len(files) > FILES_SHOWN:
        print(f"... and {len(files) - FILES_SHOWN:,} more")


def _print_segment(segment: Segment, number: int) -> None:
    """Print a document's tokens behind a bar that shows where it begins and ends."""
    if segment.is_padding:
        print(styled(f"  {counted(len(segment.token_ids), 'token')} of padding", "dim"))
        return
    print(styled(f"  {segment.document or 'document'}", "dim"))
    if segment.text is None:
        print(f"  │ {shown_ids(segment.token_ids)}")
        return
    color = ("cyan", "yellow")[number % 2]
    for line in _lines(segment.text):
        print(f"  │ {styled(line, color)}")


def _lines(text: str) -> list[str]:
    """Return the text's lines, ⏎ where one ends; what a terminal would obey is spelt out."""
    lines = text.split("\n")
    shown = [f"{line}⏎" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    return ["".join(c if c.isprintable() else _spelt(c) for c in line) for line in shown]


def _spelt(character: str) -> str:
    return "\t" if character == "\t" else character.encode("unicode_escape").decode()


def _as_document(inspection: Inspection) -> dict[str, Any]:
    found = inspection.found
    return {
        "folder": str(found.folder),
        "manifest": found.manifest.fields(),
        "run": read_run(found.folder),
        "num_bytes": inspection.num_bytes,
        "tokenizer": None if inspection.tokenizer is None else str(inspection.tokenizer.folder),
        "notes": list(inspection.notes),
        "stretches": [dataclasses.asdict(stretch) for stretch in inspection.stretches],
    }
