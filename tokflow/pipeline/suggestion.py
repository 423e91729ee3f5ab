"""Suggestion of a dataset for raw files, from their contents: texts, chats, or prompts with
completions."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from tokflow.documents import DocumentsConfig, DocumentSource, Limit, Reject, format_of
from tokflow.documents.decoding import read_blocks
from tokflow.documents.formats import RECORDS, columns_of, first_records, likely_fields
from tokflow.errors import BadDocumentError, ConfigError, first_five
from tokflow.raw import (
    GroupProposal,
    LeftOut,
    RawConfig,
    escaped,
    list_raw,
    read_raw_files,
)

ENOUGH_DOCUMENTS = 100
"""Least documents for parts by share; with fewer, a small share could be empty."""
ENOUGH_CHARACTERS = 10_000_000
"""Characters after which reading stops as soon as there are enough documents."""
COLUMN_CHARACTERS = 4_000_000
"""Most characters read of a column to measure its texts."""
LARGE_TXT_BYTES = 100_000_000
"""Size above which a txt file is read by lines: it is hardly a single document."""
TRAINING_CHARACTERS = 200_000_000
"""Most characters of all raw files to train a tokenizer on; more only take longer."""
CHARACTERS_PER_ID = 1_000
"""Characters of text, about 250 tokens, per id of a trained tokenizer."""
MIN_VOCAB_SIZE, MAX_VOCAB_SIZE = 512, 32_768
"""Bounds for trained tokenizers; both are powers of two."""
TEXT_NAMES = ("text", "content", "body", "raw_content", "document")
"""Usual names of the text column, the likeliest first."""
OTHER_NAMES = re.compile(
    r"(.*_)?(url|uri|link|id|uuid|path|file_?name|hash|md5|sha\d*|digest|date|time|timestamp)"
)
"""Pattern of column names that hold no text, however long their values."""
NO_UTF8 = "expected valid UTF-8"
"""Start of the reason of a reject with invalid UTF-8."""
USUAL_SPLITS = ("train", "validation", "test")
"""Usual splits of a source, in the order of parts."""
END_OF_TEXT = "<|endoftext|>"
"""Separator of documents in many txt files."""

Layout: TypeAlias = Literal["messages", "sharegpt", "text"]

USUAL_CHATS = ("messages", "conversations", "conversation", "chat")
"""Usual names of the column of chats, the likeliest first."""
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "response"),
    ("question", "answer"),
)
"""Names of columns with a prompt and its completion."""
PREFERENCE = ("chosen", "rejected")
"""Columns of two answers to one prompt."""
_KEYS: dict[Layout, set[str]] = {"messages": {"role"}, "sharegpt": {"from", "value"}}
_BESIDE = {"tools": "tools", "chat_template_kwargs": "chat_template_kwargs_column"}
"""Columns beside a chat, and the fields that name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Fields of a YAML that fit the raw files."""

    documents: Mapping[str, Any]
    split: Mapping[str, Any] = field(default_factory=dict)
    max_characters: int | None = None
    """`tokenizer.max_characters`; None if all text is trained on."""
    vocab_size: int = 8_192
    """`tokenizer.vocab_size` of a tokenizer trained on the raw files."""
    formats: tuple[str, ...] = ()
    num_files: int = 0
    num_bytes: int = 0
    """Size of the files on disk."""
    others: tuple[str, ...] = ()
    """Other columns with text, those with most first."""
    chats: tuple[str, ...] = ()
    """Columns with chats that are not read."""
    first_reject: str | None = None
    """First record that is not a document, with the reason; None if there is none."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def proposed_group(self) -> GroupProposal | None:
        """The value of `raw.group`; None for a partition of each file."""
        return GroupProposal.of(self.num_files, self.num_bytes)

    @property
    def config(self) -> DocumentsConfig:
        """The config that `documents` is."""
        return DocumentsConfig(**self.documents)


_NAME_ANOTHER = "name a field by --text, or other files"

UNSEEN = Suggestion(
    documents={"text": "text"},
    split={"parts": {"train": {"hash_fraction": 0.99}, "validation": {"hash_fraction": 0.01}}},
)
"""Suggestion for raw files that do not exist yet."""


@dataclass(slots=True)
class _Count:
    """Counts of the documents read so far."""

    num_documents: int = 0
    num_characters: int = 0
    is_all: bool = True
    first_reject: str | None = None
    has_bad_utf8: bool = False
    """True if a record was rejected for it."""


def suggest(patterns: Sequence[str], *, text: str | None = None) -> Suggestion:
    """Return a suggestion for the raw files that absolute patterns match; `text` names a column of
    text in them, also where there are chats.

    The beginning of the first file that has documents is read for its columns, and of all files
    as much as it takes to know how many documents there are; see `ENOUGH_DOCUMENTS`.

    Of a dataset of the hub the smallest file is fetched and looked at. Its splits become parts, as
    those of a folder that `save_to_disk` wrote.

    Raises: ConfigError where no column holds text or chats, and for pairs of a chosen and a
    rejected answer; RawFileError; BadDocumentError.
    """
    try:
        listed = list_raw(RawConfig(files=tuple(patterns)), base=Path("/"))
    except ConfigError as error:
        if not error.where.endswith(": raw.config"):
            raise
        remedy = f"write a YAML with `raw: {{files: {patterns[0]}, config: ...}}` and one of them"
        raise ConfigError(**{**error.fields(), "remedy": remedy}) from None
    sizes = {
        key: of.hub.num_bytes if of.hub is not None else Path(of.url).stat().st_size
        for key, of in listed.sources.items()
    }
    num_bytes = sum(sizes.values())
    if listed.commits:
        smallest = listed.sources[min(sizes, key=sizes.__getitem__)]
        with TemporaryDirectory() as folder:
            [raw] = read_raw_files([smallest], store=Path(folder)).values()
            found = suggest([escaped(str(raw.path))], text=text)
        found = replace(found, vocab_size=_vocab_size(num_bytes))  # of all files
    else:
        found = _of_files([Path(of.url) for of in listed.sources.values()], text, num_bytes)
    known = {of.source_split for of in listed.sources.values() if of.source_split}
    splits = [*(each for each in USUAL_SPLITS if each in known), *sorted(known - set(USUAL_SPLITS))]
    parts = {split: {"source_split": split} for split in splits}
    most = max(100_000, TRAINING_CHARACTERS // len(sizes))
    return replace(
        found,
        split={"parts": parts} if len(splits) > 1 else found.split,
        max_characters=most if num_bytes > TRAINING_CHARACTERS else None,
        num_files=len(sizes),
        num_bytes=num_bytes,
        left_out=listed.left_out,
    )


def _of_files(paths: Sequence[Path], text: str | None, num_bytes: int) -> Suggestion:
    """Return a suggestion for local files of some size together."""
    found = next(filter(None, (_look(path, text) for path in paths)), None)
    count = _count(paths, found.config) if found else _Count()
    if found is None or not count.num_characters:
        raise _no_text_error(paths, text)
    rejects = {} if count.first_reject is None else {"on_bad_document": "reject"}
    return replace(
        found,
        documents={**found.documents, **rejects},
        split=_split(count, num_bytes, is_chat=found.config.is_chat),
        vocab_size=_vocab_size(max(count.num_characters, num_bytes)),
        formats=tuple(sorted({format_of(path, DocumentsConfig()) for path in paths})),
        first_reject=count.first_reject,
    )


def _vocab_size(num_characters: int) -> int:
    """Return the vocabulary size for a tokenizer trained on that much text."""
    fitting = 1 << max(1, num_characters // CHARACTERS_PER_ID).bit_length() - 1
    return min(max(fitting, MIN_VOCAB_SIZE), MAX_VOCAB_SIZE)


def _look(path: Path, text: str | None) -> Suggestion | None:
    """Return how to read a file, and its columns with other text or chats; None if no column has
    text."""
    likely = likely_fields(path, DocumentsConfig())
    if format_of(path, DocumentsConfig()) == "txt":
        start = next(read_blocks(path, block_bytes=1_000_000), b"")
        of_txt = {"document_per": "line" if path.stat().st_size > LARGE_TXT_BYTES else "file"}
        if len(texts_between := start.split(END_OF_TEXT.encode())) > 1:
            has_line = all(after[:1] in (b"\n", b"") for after in texts_between[1:])
            separator = f"{END_OF_TEXT}\n" if has_line else END_OF_TEXT
            of_txt = {"document_per": "separator", "separator": separator}
        return Suggestion(documents=of_txt | likely)
    _, texts, chats = columns_of(path, DocumentsConfig(**likely))
    records = first_records(path, DocumentsConfig(**likely)) if text is None else []
    if (of_chats := chat_fields(records, path)) is not None:
        read = DocumentsConfig(**of_chats).columns
        others, unread = (tuple(of for of in each if of not in read) for each in (texts, chats))
        return Suggestion(documents={**of_chats, **likely}, others=others, chats=unread)
    sizes = {name: _characters(path, name, likely) for name in texts}
    longest = sorted(filter(sizes.__getitem__, sizes), key=lambda name: -sizes[name])
    last_words = {name: name.rpartition(".")[2].lower() for name in longest}
    named = [name for name in longest if last_words[name] in TEXT_NAMES]
    named.sort(key=lambda name: TEXT_NAMES.index(last_words[name]))
    rest = (name for name in longest if not OTHER_NAMES.fullmatch(last_words[name]))
    text = text or next(iter([*named, *rest]), None)  # by name, then by length
    if text is None:
        return None
    others = tuple(name for name in longest if name != text)
    return Suggestion(documents={"text": text, **likely}, others=others, chats=tuple(chats))


def chat_fields(records: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Any] | None:
    """Return the `documents` fields of records that are chats, or prompts with completions; None
    of other records.

    Raises: ConfigError for pairs of a chosen and a rejected answer.
    """
    layouts: dict[str, Layout] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        kinds = {_layout(value) for record in records if (value := record[name]) is not None}
        if len(kinds) == 1 and (layout := kinds.pop()) is not None:  # all alike, null aside
            layouts[name] = layout
    if layouts.keys() >= {*PREFERENCE}:
        chosen = f"messages: {PREFERENCE[0]}"
        if layouts[PREFERENCE[0]] == "text":
            chosen = f"prompt: prompt, completion: {PREFERENCE[0]}"
        raise ConfigError(
            where=path,
            expected="texts, chats, or prompts with one completion each",
            found="preference pairs, in 'chosen' and 'rejected', which no export holds",
            remedy=f"write `documents: {{{chosen}}}` in a YAML of yours to train on the chosen "
            "answers alone, give the file itself to a trainer of preferences (DPO), or name a "
            "column of text by --text",
        )
    prompt, chats = layouts.get("prompt"), [of for of in layouts if layouts[of] in _KEYS]
    texts = {name for name, layout in layouts.items() if layout == "text"}
    found: dict[str, Any] | None = None
    if prompt in _KEYS and layouts.get("completion") == prompt:
        found = {"prompt": "prompt", "completion": "completion", "chat_format": prompt}
    elif chats:
        name = next((name for name in USUAL_CHATS if name in chats), chats[0])
        of_format = {"chat_format": "sharegpt"} if layouts[name] == "sharegpt" else {}
        found = {"messages": name, **of_format}
    elif texts >= {"instruction", "output"}:
        found = {"chat_format": "alpaca"}
    elif pair := next((pair for pair in PAIRS if texts.issuperset(pair)), None):
        found = dict(zip(("prompt", "completion"), pair, strict=True))
    if found is None or not DocumentsConfig(**found).is_rendered:
        return found
    if layouts.get("system") == "text" and "system" not in DocumentsConfig(**found).columns:
        found["system"] = "system"
    values = {name: [of for record in records if (of := record.get(name))] for name in _BESIDE}
    beside = {field: name for name, field in _BESIDE.items() if values[name]}
    return {**found, **beside}


def _layout(value: Any) -> Layout | None:
    messages = value
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            messages = json.loads(value)
        except (ValueError, RecursionError):
            return "text"
    if isinstance(messages, list) and messages and all(isinstance(of, dict) for of in messages):
        for layout, keys in _KEYS.items():
            if all(keys <= of.keys() for of in messages):
                return layout
    return "text" if isinstance(value, str) else None


def _no_text_error(paths: Sequence[Path], text: str | None) -> ConfigError:
    """Return the error for raw files without text.

    Raises: what the reader says of the files, if it meets a record that is no document.
    """
    likely = [likely_fields(path, DocumentsConfig()) for path in paths]
    pairs = zip(paths, likely, strict=True)
    columns = [columns_of(path, DocumentsConfig(**of)) for path, of in pairs]
    names = list(dict.fromkeys(repr(name) for of in columns for name in of.texts))
    chats = [chat for of in columns for chat in of.chats]
    found, remedy = "none", "name other files"
    if chats:
        found = f"chats alone, in {first_five(list(dict.fromkeys(map(repr, chats))))}"
        remedy = (
            f"declare `documents: {{messages: {chats[0]}}}`, and a tokenizer with a chat template, "
            "or `chat_template:` beside it, in a YAML of yours"
        )
    elif any(format_of(path, DocumentsConfig()) != "txt" for path in paths):
        named = text or "text"
        try:
            _read_all(paths, DocumentsConfig(text=named))
        except (ConfigError, BadDocumentError) as error:
            if repr(named) not in error.expected:
                raise
            found = f"none in the field {text!r}" if text else "no field that holds text"
            found += f"; fields: {first_five(names)}" if names else ""
            remedy = _NAME_ANOTHER
    return ConfigError(
        where=first_five(list(map(str, paths))),
        expected="raw files with text",
        found=found,
        remedy=remedy,
    )


def _characters(path: Path, text: str, likely: Mapping[str, Any]) -> int:
    """Count the characters of a column in the first records; 0 if it cannot be read.

    Raises: BadDocumentError where a text file has no UTF-8 there, so that it may be the column.
    """
    limit = Limit(documents=RECORDS, characters=COLUMN_CHARACTERS)
    first: dict[str, Any] = {"on_bad_document": "reject", "max_rejects": RECORDS, "limit": limit}
    try:
        count = _counted([path], DocumentsConfig(text=text, **first, **likely))
    except (ConfigError, BadDocumentError):
        return 0  # a name that no config can have, or hardly ever text
    is_text = format_of(path, DocumentsConfig()) in ("jsonl", "csv", "tsv")
    if is_text and not count.num_characters and count.has_bad_utf8:
        _read_all([path], DocumentsConfig(text=text, **likely))
    return count.num_characters


def _read_all(paths: Sequence[Path], config: DocumentsConfig) -> None:
    """Raise the error of the first record that is not a document, if any."""
    try:
        for _ in DocumentSource(paths, config).batches():
            pass
    except BadDocumentError as error:
        remedy = error.remedy.partition(", or set documents.")[0]  # of a YAML that is not there yet
        place = {name: getattr(error, name) for name in ("path", "row", "line", "byte_offset")}
        fields: dict[str, Any] = {**error.fields(), "remedy": f"{remedy}, or name other files"}
        raise BadDocumentError(**place, **fields) from None


def _count(paths: Sequence[Path], config: DocumentsConfig) -> _Count:
    """Count the documents of the files, stopping when there are enough."""
    no_limit = sys.maxsize - 1  # the reader counts one more
    config = config.model_copy(update={"on_bad_document": "reject", "max_rejects": no_limit})
    try:
        return _counted(paths, config)
    except ConfigError as error:  # of the column
        raise ConfigError(**{**error.fields(), "remedy": _NAME_ANOTHER}) from None


def _counted(paths: Sequence[Path], config: DocumentsConfig) -> _Count:
    count = _Count()

    def hear(path: Path, reject: Reject) -> None:
        line = "" if reject.line is None else f", line {reject.line:,}"
        found = f"{path.name}, row {reject.row:,}{line}: {reject.reason}"
        count.first_reject = count.first_reject or found
        count.has_bad_utf8 |= NO_UTF8 in reject.reason

    unread = (lambda found: found) if config.is_rendered else None  # what no chat is, init lets be
    for batch in DocumentSource(paths, config).batches(on_reject=hear, render=unread):
        count.num_documents += len(batch.rows)
        count.num_characters += int(batch.num_chars.sum())
        is_much = count.num_characters >= ENOUGH_CHARACTERS
        if is_much and count.num_documents >= ENOUGH_DOCUMENTS:
            count.is_all = False
            break
    return count


def _split(count: _Count, num_bytes: int, *, is_chat: bool = False) -> dict[str, Any]:
    """Return parts with enough text for validation, and little more than that."""
    if count.num_documents < ENOUGH_DOCUMENTS and is_chat:
        num_documents = max(1, count.num_documents * 9 // 10)
        parts = {"train": {"documents": num_documents}, "validation": {"start": num_documents}}
        return {"scope": "dataset", "parts": parts}
    if count.num_documents < ENOUGH_DOCUMENTS:
        size = max(1, count.num_characters * 9 // 10)
        parts = {"train": {"start": 0, "characters": size}, "validation": {"start": size}}
        return {"scope": "dataset", "boundary": "character", "parts": parts}
    share = 0.1 if num_bytes < 10**8 else 0.01 if num_bytes < 10**10 else 0.001
    num_documents = count.num_documents
    if not count.is_all:  # about as many as there are, or fewer where files are compressed
        num_documents = int(num_documents * max(1, num_bytes / count.num_characters))
    if share * num_documents < ENOUGH_DOCUMENTS / 10:
        share = 0.1
    shares = {"train": round(1 - share, 3), "validation": share}
    return {"parts": {name: {"hash_fraction": of} for name, of in shares.items()}}
