"""The page of a viewer: one file that makes no request and shows an export token by token."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokflow.audit.ancestry import Ancestry, open_tokenizer
from tokflow.audit.characters import Characters
from tokflow.audit.step_trace import SampleTrace, Training, positions_of_row, sources_in
from tokflow.audit.texts import ExportTexts
from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import ConfigError, UntrustedCodeError, shortened
from tokflow.exports import Export
from tokflow.exports.reading import find_export
from tokflow.loaders.row_sources import PackedRows
from tokflow.pipeline.describe import describe, phrase_of_part
from tokflow.sequences import described
from tokflow.split.permutation import shuffled_by
from tokflow.store.store import StoredOutput
from tokflow.views.viewer_content import Content, PartWindows, Places, as_json

LIMIT = 2_000_000
"""Bytes of a page."""

NOTES_BYTES = 2_048
"""Kept for the notes on what is left out."""

MOST_SPLITS = 256
"""Splits whose tables are read for one page: some 5 ms each of a small raw file."""

RAW_BYTES = 2**30
"""Bytes of raw files that are read again for one page."""

FIELDS_BYTES = 32
"""Bytes kept for a part beside its windows and fields."""


def make_viewer(
    path: str | Path | StoredOutput,
    *,
    part: str | None = None,
    first: int = 0,
    num_sequences: int | None = None,
    trust_remote_code: bool = False,
) -> bytes:
    """Return a page that shows the sequences of the export at `path`, or that was found there, or
    windows of a stream.

    Of each part, or of `part` alone, those from the sequence `first` on: at most `num_sequences`,
    and no more than fit into LIMIT bytes, which parts share; the page says how many those are. It
    is whole in itself: it makes no request, and its texts are data, which no browser runs. The
    same export gives the same bytes. What the export's store does not have any more, such as the
    tokenizer, is left out, and said. A tokenizer that is Python code runs only with
    `trust_remote_code`. No checksum of tokens is compared: `tokflow verify` does that.

    Raises: MissingOutputError where there is no export; CorruptOutputError where a file of it is
    damaged; ConfigError for a part or a sequence that it does not have.
    """
    found = find_export(path)
    export = Export(found)
    if part is not None:
        export.check_part(part)
    of_parts = [PartWindows(found, name) for name in ([part] if part else export.parts)]
    _check_asked(of_parts, first, num_sequences)
    return _page(of_parts, first, num_sequences, trust_remote_code=trust_remote_code)


def make_step_viewer(training: Training, samples: Sequence[SampleTrace], **how: Any) -> bytes:
    """Return a page, as `make_viewer` does, that shows samples of a training, each a window, in the
    order of their rows. `how`: trust_remote_code."""
    of_parts = []
    for source in {of.name: of for of in sources_in(training.samples)}.values():
        length = positions_of_row(training.samples, source)
        is_packed = isinstance(source, PackedRows)
        spans = {
            (of.positions[0], of.positions[0] + length if is_packed else of.positions[1])
            for of in samples
            if of.source == source.name
        }
        chosen = [range(*span) for span in sorted(spans)]
        if chosen:
            found = find_export(source.stored)
            part = source.opening.part or ""
            of_parts.append(PartWindows(found, part, chosen=chosen, name=source.name))
    return _page(of_parts, 0, None, **how)


def _page(
    of_parts: list[PartWindows], first: int, num: int | None, *, trust_remote_code: bool
) -> bytes:
    """Return the page of some parts, of one export or several with one tokenizer."""
    outputs = {of.output.folder: of.output for of in of_parts}
    found = of_parts[0].output
    for output in outputs.values():
        output.store.check(output)
    export = Export(found)
    notes = list(dict.fromkeys(note for of in outputs.values() for note in _notes(Export(of))))
    content = _open_content([*outputs.values()], notes, trust_remote_code=trust_remote_code)
    before, after = _shell(f"{found.manifest.dataset} · {found.name}")
    facts = {**_facts(found, export), **content.facts}
    of_shell = len(before) + len(after) + len(as_json({**facts, "notes": notes}))
    content.room = LIMIT - of_shell - NOTES_BYTES
    parts = _add_parts(content, of_parts, first, num)
    is_empty = {name: of.endswith(b'"windows":[]}') for name, of in parts.items()}
    left_out = [of.name for of in of_parts if of.num_sequences > first and is_empty[of.name]]
    notes += _notes_on_room(content, left_out)
    head = as_json({**facts, "notes": notes})[:-1]
    lists = [b",".join(of.values()) for of in (parts, content.files, content.tokens)]
    data = b'"parts":[%b],"files":[%b],"vocabulary":{%b}' % (lists[0], lists[1], lists[2])
    return b"%b%b,%b}%b" % (before, head, data, after)


def _add_parts(
    content: Content, of_parts: list[PartWindows], first: int, num: int | None
) -> dict[str, bytes]:
    """Return the JSON of each part. The smallest is added first, so that what room it leaves of its
    share is that of larger ones."""
    for of_part in of_parts:
        whole = content.fields_of(of_part, first, of_part.num_sequences * of_part.length)
        content.room -= len(as_json(whole)) + FIELDS_BYTES
    if content.room < 0:
        raise ConfigError(
            where="--part",
            expected=f"parts whose names and numbers fit into a page of {LIMIT:,} bytes",
            found=f"{len(of_parts):,}",
            remedy="name one, and the page shows that alone",
        )
    by_size = sorted(of_parts, key=lambda of: of.num_sequences * of.length)
    made: dict[str, bytes] = {}
    for number, of_part in enumerate(by_size):
        room = max(0, content.room // (len(by_size) - number))
        made[of_part.name] = content.add(of_part, first, num, room)
    return {of.name: made[of.name] for of in of_parts}


def _notes_on_room(content: Content, left_out: Sequence[str]) -> Iterator[str]:
    """Yield what a page leaves out of what it could show: some parts, and some characters."""
    if left_out:
        names = ", ".join(shortened([name[:80] for name in left_out]))
        yield f"There is no room for anything of {names}: --part shows a part alone."
    if any(of.texts.has_left_out for of in content.places.values()):
        yield (
            f"Characters are known of the tokens of {MOST_SPLITS:,} raw files alone, "
            "the first that the page met; `tokflow trace` finds those of others."
        )


def _check_asked(of_parts: list[PartWindows], first: int, num: int | None) -> None:
    if num is not None and num < 1:
        raise ConfigError(
            where="--sequences",
            expected="at least one sequence to show in a page",
            found=f"{num:,}",
            remedy="name more, or leave it out for all that fit",
        )
    most = max(1, *(of_part.num_sequences for of_part in of_parts))
    if not 0 <= first < most:
        raise ConfigError(
            where="--first",
            expected=f"a sequence from 0 to {most - 1:,}",
            found=f"{first:,}",
            remedy="name an earlier one",
        )


def _notes(export: Export) -> Iterator[str]:
    """Yield what the files of an export do not contain."""
    if not export.is_read:
        yield (
            f"{export.format_name} files are never read: shown are the tokens that they were made "
            "from."
        )
        return
    told_by = "segment_ids" if export.layout.is_packed else "offsets"
    if told_by not in export.layout.keeps:
        seen = "no end of one" if export.eos_id is None else "EOS alone"
        yield (
            f"{export.format_name} does not keep where documents begin: here the index tells it, "
            f"and a trainer sees {seen}."
        )
    if "loss_mask" in export.manifest.details.get("lost", ()):
        yield (
            f"{export.format_name} does not keep which labels count: every token is a loss token "
            "to a trainer, and here."
        )


def _open_content(
    outputs: Sequence[StoredOutput], notes: list[str], *, trust_remote_code: bool
) -> Content:
    """Return the content without windows; add to `notes` what cannot be shown, and why."""
    found, ancestry = outputs[0], Ancestry()
    details = found.manifest.details
    special = sorted({details["eos_id"], details["bos_id"]} - {None})
    tokenizer = open_tokenizer(found, ancestry)
    if tokenizer is None:
        notes.append(
            "The store that it was made in is not here: tokens are shown as ids, and characters "
            "are not known."
        )
        return Content(special)
    special = sorted({*special, *tokenizer.special_tokens.values()})
    texts = TokenTexts(replace(tokenizer, trust_remote_code=trust_remote_code))
    try:
        engine = texts.engine
    except UntrustedCodeError:
        notes.append(
            "Its tokenizer is Python code, so tokens are shown as ids: read that code, and give "
            "--trust-remote-code to run it."
        )
        return Content(special)
    if texts.bytes_by_id is None:
        notes.append(
            "Its tokens are no pieces of the text, so each is decoded alone and characters are not "
            "known; `tokflow trace` finds them."
        )
        return Content(special, texts)
    characters = Characters(tokenizer, engine, texts.bytes_by_id, max_bytes=RAW_BYTES)
    places = {
        of.folder: Places(characters, ExportTexts(of, ancestry, max_splits=MOST_SPLITS))
        for of in outputs
    }
    return Content(special, texts, places)


def _facts(found: StoredOutput, export: Export) -> dict[str, Any]:
    """Return what the head of the page says of the export."""
    details = found.manifest.details
    facts = {
        "format": export.format_name,
        "fields": ", ".join(details.get("keeps", export.layout.keeps)),
        "dtype": export.dtype.name,
        "vocabulary": f"{export.vocab_size:,} ids",
        "EOS": _id(details["eos_id"]),
        "BOS": _id(details["bos_id"]),
        "padding": _id(details.get("pad_id")),
        "shuffled": ", ".join(
            f"{of} (seed {seed})" for of, seed in shuffled_by(found.manifest).items()
        ),
        "fingerprint": found.manifest.recipe.fingerprint[:16],
    }
    parts = describe(found.manifest).parts.items()
    facts |= {part: phrase_of_part(values) for part, values in parts}
    return {
        "dataset": found.manifest.dataset,
        "export": found.name,
        "description": export.format.description,
        "facts": [[name, str(value)] for name, value in facts.items() if value not in (None, "")],
    }


def _id(value: Any) -> str | None:
    """Return a token id as people read it, or those of parts that differ."""
    if value is None:
        return None
    return described(value) if isinstance(value, dict) else f"id {value:,}"


def _shell(title: str) -> tuple[bytes, bytes]:
    """Return the page before and after its data; of all scripts only its own may run."""
    folder = files("tokflow.views")
    names = ("viewer.html", "viewer.css", "tokens.js", "search.js", "viewer.js")
    page, style, *scripts = (folder.joinpath(name).read_text("utf-8") for name in names)
    script = "\n".join(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {"digest": digest, "style": style, "script": script, "title": escape(title)}
    for name, value in values.items():
        page = page.replace(f"{{{{ {name} }}}}", value)
    before, after = page.split("{{ data }}", 1)
    return before.encode(), after.encode()
