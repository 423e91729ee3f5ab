"""Formats of raw files: which a file has, its reader, the config fields that count, its columns."""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from tokflow.documents.chat_config import OF_TEMPLATES
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.decoding import is_compressed, marked_encoding, read_blocks
from tokflow.errors import ConfigError, RawFileError
from tokflow.raw.globs import COMPRESSED_SUFFIXES, SUFFIXES, FileFormat, format_of_name

READERS: dict[FileFormat, str] = {
    "parquet": "parquet",
    "jsonl": "jsonl",
    "csv": "delimited",
    "tsv": "delimited",
    "txt": "txt",
    "arrow": "arrow",
}
"""The module for each format, imported when such a file is read: `read` yields its documents,
`ranges` cuts it into ranges, `before` counts what stands before one, `columns_of` lists its
columns, and `check_columns` compares them with the config."""

FIELD_DEFAULTS: dict[str, dict[str, str]] = {
    "delimiter": {"csv": ",", "tsv": "\t"},
    "quoting": {"csv": "double", "tsv": "none"},
}
"""Defaults by format of config fields that are null."""

RECORDS = 100
"""Records of JSON lines that are looked at for their fields; later ones may have others."""


class Columns(NamedTuple):
    """Columns of a file, or fields of its first records, in their order."""

    names: list[str]
    """Those at the top level, null in not all of the first records."""
    texts: list[str]
    """Those of strings, nested ones by their dotted path; some may not be readable as
    `documents.text`."""
    chats: list[str]
    """Those of lists of messages, which `documents.messages` reads, in the same way."""


_START_BYTES = 1_000_000
_RECORD_BYTES = 250_000
"""Bytes read at once for the first records."""
_OF_TEMPLATES = {"tools": "tools", "chat_template_kwargs_column": "chat_template_kwargs"}
"""Usual names of columns that templates get, by the field that names them."""
_log = logging.getLogger(__name__)
_QUOTED_FIELD = re.compile(rb'(?m)(?:^|\t)"(?=[^"]*(?:""|\t))(?:[^"\n]|"")*"(?=\t|\r?$)')
"""A field of tsv whose quotes hold a tab or quotes, as those have that write it as csv."""
_LEFT_OUT = (
    *("keep_columns", "chat_format", "system", "tools"),
    *("chat_template_kwargs", "chat_template_kwargs_column", *OF_TEMPLATES),
)
"""Fields that decide nothing where they have their defaults."""
_ACCEPTANCE = ("on_bad_document", "max_rejects", "on_no_loss")
_OF_TXT = ("document_per", "separator")


def reader_of(path: Path, config: DocumentsConfig) -> Any:
    """Return the module that reads a raw file. Raises: ConfigError."""
    return import_module(f"tokflow.documents.formats.{READERS[format_of(path, config)]}")


def format_of(path: Path, config: DocumentsConfig) -> FileFormat:
    """Return the format that a raw file is read as.

    Raises: ConfigError if it is not known, or cannot be compressed as by its suffix.
    """
    format_ = format_of_file(path, config)
    if format_ is None:
        raise ConfigError(
            where=path,
            expected=f"a suffix of {', '.join(SUFFIXES)}, or of a text format with "
            f"{', '.join(COMPRESSED_SUFFIXES)}",
            found=repr("".join(path.suffixes)),
            remedy="narrow the pattern of raw.files that matches it, or set documents.format to "
            f"one of {', '.join(READERS)}",
        )
    if path.suffix.lower() in COMPRESSED_SUFFIXES and format_ in ("parquet", "arrow"):
        expected = f"{format_}, which compresses inside, without {path.suffix}"
        found = repr(path.name)
        raise ConfigError(where=path, expected=expected, found=found, remedy="decompress the file")
    return format_


def deciding_fields(config: DocumentsConfig, num_bytes: Mapping[Path, int]) -> dict[str, Any]:
    """Return what decides which documents the raw files of these sizes hold, as plain JSON.

    The fields that no reader of their formats looks at are not in it, nor is a limit that no
    document of such a file can reach, nor one of tokens that is not set, and `format: auto` is what
    it stands for. `on_bad_document`, `max_rejects` and `on_no_loss` are not, for they decide
    whether there is an output and not what is in it. Without files: what may decide those of any
    format and size.
    """
    formats, is_within_limit = kind_of_files(config, num_bytes)
    fields = config.model_dump()
    if config.transform is None:
        del fields["transform"], fields["transform_version"]
    else:
        fields["transform_sha256"] = config.user_function.sha256
    fields["format"] = sorted(formats)
    for name in (*_ACCEPTANCE, *(() if formats & {"txt", "auto"} else _OF_TXT)):
        del fields[name]
    for name, of_format in FIELD_DEFAULTS.items():
        defaults = {of_format.get(each) for each in formats & {*of_format, "auto"}}
        if fields[name] is None or defaults <= {fields[name]}:
            del fields[name]
    if config.encoding == "utf-8" or not formats & {"csv", "tsv", "txt", "auto"}:
        del fields["encoding"]
    if formats == {"txt"} and isinstance(config.text, str):
        del fields["text"]  # a file without columns
    for name in _LEFT_OUT:
        if config.is_as_usual(name):
            del fields[name]
    for name, default in (("tokens", None), ("count_empty", True), ("scope", "file")):
        if fields["limit"][name] == default:
            del fields["limit"][name]
    if is_within_limit:
        del fields["limit"]["document_bytes"]
    return fields


def kind_of_files(
    config: DocumentsConfig, num_bytes: Mapping[Path, int]
) -> tuple[frozenset[str], bool]:
    """Return all of raw files of these sizes that counts for `deciding_fields`: the formats, and
    whether no document can reach the limit of its size."""
    formats = frozenset(format_of_file(path, config) or "auto" for path in num_bytes)
    is_made = config.is_rendered or config.transform is not None or config.join is not None
    in_utf8 = 1 if config.encoding == "utf-8" else 3
    is_default = config.limit.is_as_usual("document_bytes")  # any other has its own recipe
    is_within = formats <= {"jsonl", "csv", "tsv", "txt"} and not is_made
    is_within = is_within and all(
        in_utf8 * size <= config.limit.document_bytes
        and path.suffix.lower() not in COMPRESSED_SUFFIXES
        and (is_default or not is_compressed(path))
        for path, size in num_bytes.items()
    )
    return formats or frozenset({"auto"}), is_within and bool(num_bytes)


def format_of_file(path: Path, config: DocumentsConfig) -> FileFormat | None:
    """Return the format that a raw file is read as; None if it is none."""
    return format_of_name(path.name) if config.format == "auto" else config.format


def columns_of(path: Path, config: DocumentsConfig) -> Columns:
    """Return the columns of a file; none of txt, which has no columns.

    Raises: ConfigError for an unknown format; RawFileError.
    """
    return cast(Columns, reader_of(path, config).columns_of(path, config))


def first_records(path: Path, config: DocumentsConfig) -> list[dict[str, Any]]:
    """Return the first records of a file, at most `RECORDS`, with values as JSON has them; bad
    ones are left out. None of txt, which has no columns.

    Raises: ConfigError for an unknown format; RawFileError.
    """
    counts = Counter(columns_of(path, config).names)
    names = tuple(name for name, count in counts.items() if name and count == 1)
    if not names:
        return []
    fields = config.model_dump(include={"format", "delimiter", "quoting", "encoding"})
    every = DocumentsConfig(text=names, transform="tokflow:first_records", **fields)
    found = reader_of(path, config).read(path, every, _RECORD_BYTES)
    texts = islice((text for some in found for text in some.batch.texts.to_pylist()), RECORDS)
    return [dict(zip(names, json.loads(f"[{text}]"), strict=True)) for text in texts]


def check_columns(path: Path, config: DocumentsConfig) -> None:
    """Make sure that a file has the columns that are read, by its schema, its header or its first
    records: what is damaged, and records that are bad, are left to the reader. Warn of columns that
    a chat template would get if a field named them.

    Raises: ConfigError.
    """
    with suppress(RawFileError, OSError):
        reader_of(path, config).check_columns(path, config)
        if config.is_rendered and config.transform is None:
            unread = {*columns_of(path, config).names} - {*config.columns}
            if config.chat_template is not None and "tools" not in config.chat_template:
                unread -= {"tools"}
            for field, name in _OF_TEMPLATES.items():
                if name in unread and getattr(config, field) is None:
                    told = "%s: records have %s, which the chat template does not get; to give it "
                    told += "to the template, set documents.%s: %s"
                    _log.warning(told, path, name, field, name)


def likely_fields(path: Path, config: DocumentsConfig) -> dict[str, Any]:
    """Return fields of `documents` that the start of a csv, tsv or txt file asks for: delimiter,
    quoting and encoding, where they differ from the defaults.

    Text is taken for cp1252 that is no UTF-8, has no character of several bytes that UTF-8 has, and
    no byte that cp1252 lacks. Raises: ConfigError for an unknown format; RawFileError.
    """
    format_ = format_of(path, config)
    if format_ not in ("csv", "tsv", "txt"):
        return {}
    blocks = read_blocks(path, block_bytes=_START_BYTES)
    start, more = next(blocks, b""), next(blocks, b"")[:3]
    found: dict[str, Any] = {}
    marked, _ = marked_encoding(start)
    if marked in ("utf-16-le", "utf-16-be"):
        found["encoding"] = "utf-16"
    elif _is_cp1252(start + more, is_all=not more):
        found["encoding"] = "cp1252"
    if format_ != "txt":
        delimiter = reader_of(path, config).find_delimiter(path, config.model_copy(update=found))
        found |= {"delimiter": delimiter} if delimiter else {}
    if format_ == "tsv" and _QUOTED_FIELD.search(start):
        found["quoting"] = "double"
    return found


def _is_cp1252(start: bytes, *, is_all: bool) -> bool:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data" and not is_all
        has_others = not start.decode("utf-8", "ignore").isascii()
        return not (is_cut or has_others or re.search(rb"[\0\x81\x8d\x8f\x90\x9d]", start))
    return False
