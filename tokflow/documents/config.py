"""The `documents` section of a dataset: how the documents of a raw file are found."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, PrivateAttr

from tokflow.documents.chat_config import ALPACA, COLUMNS, OPTIONAL, ChatConfig, as_tuple
from tokflow.documents.decoding import Encoding
from tokflow.documents.user_function import A_FUNCTION, FUNCTION_NAME, UserFunction, find_function
from tokflow.errors import ConfigError
from tokflow.raw.globs import FileFormat
from tokflow.store.config import Config, Listed, Size

DocumentPer: TypeAlias = Literal["file", "line", "separator"]
Quoting: TypeAlias = Literal["double", "none"]
OnBadDocument: TypeAlias = Literal["error", "reject"]


class Limit(Config):
    """Limits of reading one raw file, and the largest document; by default all is read.

    Of several limits the one that is reached first ends the reading.
    """

    section: ClassVar[str] = "documents.limit"

    documents: Annotated[int | None, Field(ge=1)] = None
    """Accepted documents to read from each raw file; rejects do not count, nor what a transform
    leaves out."""
    characters: Annotated[int | None, Field(ge=1)] = None
    """Unicode code points to read from each raw file; the document that reaches it is whole."""
    tokens: Annotated[int | None, Field(ge=1)] = None
    """Tokens to make of each raw file, as they are stored: with the BOS and EOS of every document
    (for empty ones see `tokenizer.eos_of_empty`). The document that reaches it is
    whole, so there are up to a document more. A tokenizer of kind `trained` is trained without this
    limit, and without any whose `scope` is dataset."""
    scope: Literal["file", "dataset"] = "file"
    """dataset: the limits are of all raw files together. They are taken in the order of their keys
    (with a shuffle of documents in that of its seed) until the limit is reached, one after another:
    each may take what those before it have left. Files behind that are neither fetched nor read,
    and are no partitions of the dataset. A file more, or less, makes the tokens of all files after
    it again."""
    count_empty: bool = True
    """False: `documents` counts those that have text. Empty ones are read, and stored, all the
    same, and their BOS and EOS are among the `tokens`."""
    document_bytes: Size = 1_000_000_000
    """A document of more bytes, such as 200MB, is bad, and so is a line (csv: a record) that holds
    one; counted after decompression. It is never in memory whole, unless in a parquet page that
    other rows share a row group with, in an Arrow batch or in a JSON array."""

    @property
    def ends_early(self) -> bool:
        """True if a raw file may be left before its end."""
        return any(of is not None for of in (self.documents, self.characters, self.tokens))

    def after(self, counts: Mapping[str, int]) -> Self | None:
        """Return what is left of the limits after token shards with these counts; None where one
        of them is reached."""
        left = {name: getattr(self, name) - num for name, num in self.taken(counts).items()}
        return None if any(of <= 0 for of in left.values()) else self.model_copy(update=left)

    def taken(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return how much of each limit that is set token shards with these counts take."""
        num_empty = 0 if self.count_empty else counts["num_empty_documents"]
        taken = {"documents": counts["num_documents"] - num_empty}
        taken |= {"characters": counts["num_chars"], "tokens": counts["num_tokens"]}
        return {name: num for name, num in taken.items() if getattr(self, name) is not None}

    def check(self) -> None:
        """Refuse `count_empty` and `scope` where nothing is counted."""
        if not self.count_empty and self.documents is None:
            name, found = "count_empty", "false"
            expected = "true, or a limit of documents, which alone it is about"
        elif self.scope == "dataset" and not self.ends_early:
            name, found = "scope", "'dataset'"
            expected = "file, or a limit of documents, characters or tokens"
        else:
            return
        remedy = f"set such a limit, or leave {name} out"
        raise ConfigError(where=name, expected=expected, found=found, remedy=remedy)


class DocumentsConfig(ChatConfig):
    """Settings by which documents are read from a raw file. Only a `transform` alters text."""

    section: ClassVar[str] = "documents"

    text: str | Listed[str] | None = None
    """The field or column that holds the text; default: `text`, unless the documents are chats.

    A dotted path leads into nested objects: `meta.body`. In parquet and arrow a top-level
    column whose own name is `meta.body` comes first; in jsonl a dot always means nesting; in
    csv and tsv it never does. Several columns give one document each, in the order named:
    with 2 columns record 5 holds the documents 10 and 11. txt has no columns.
    """
    join: str | None = None
    """With several columns of `text`: the separator that joins them into one document per record,
    in the order named. Default: one document per column."""
    transform: str | None = None
    """A function `package.module:function` that makes the documents of each record; default: none.

    It gets the text where `text` names one column, and a dictionary of the columns where `text` is
    a list: with `text: [body, language]` a record `{"body": "...", "language": "en"}`, values as
    JSON has them: None for what is null or not there, times in ISO 8601. It returns the text of a
    document, a list of texts (or yields them) for several documents, or None to leave the record
    out, which is counted. What it raises, or returns besides, makes the record a bad document; what
    it prints goes to stderr.

    With `messages` in place of `text` it returns chats: a list of messages, or a dictionary of
    `messages`, `tools` and `chat_template_kwargs`, or a list of such chats.

    It must be pure: the same for the same record, with nothing remembered between two, for it is
    called in any process, and again by `verify`. Its module is a .py file in the folder that
    relative paths start from, or where Python looks. It is code, and it runs with your rights
    when the dataset is built or verified; `plan` reads it only. The recipe has the digest of that
    one file: set `transform_version` for what else decides.
    """
    transform_version: int | str | None = None
    """With `transform`: any text or number, to be changed with code outside of the module:
    modules that its own imports, a library, a model. Another one makes the tokens again."""
    keep_columns: Listed[str] = ()
    """Further columns to keep as text, such as [url, license]: the index of every export has them
    for each document, and so have the rows of parquet, arrow, jsonl, hf_dataset and easydel with
    `strategy: one_document`. A string stays as it is, any other value is JSON, null what is not
    there. Null, and counted, is a value alone that is no text and no JSON: bytes that are no UTF-8,
    lone surrogates, NaN, infinity. They are read by themselves, after the text. Not for txt."""
    format: Literal["auto", FileFormat] = "auto"
    """The format of the raw files; `auto` goes by the suffix (.json is read as jsonl).

    jsonl may be one JSON array. A further suffix .gz, .zst, .zstd, .bz2, .xz or .lz4 means that the
    file is compressed (not for parquet and arrow, which compress inside); gzip and zstd are known
    without it too.
    """
    delimiter: str | None = None
    r"""The character between the fields of csv and tsv, such as ";"; default: a comma, and of tsv a
    tab (in double quotes: "\t")."""
    quoting: Quoting | None = None
    """Quotes of csv and tsv: `double`, fields may be in double quotes, in which delimiters and line
    ends are text and "" is a quote; `none`, quotes are text. Default: double, and of tsv none."""
    encoding: Encoding = "utf-8"
    """The encoding of csv, tsv and txt: utf-8, cp1252 (Windows, western Europe), latin-1, utf-16,
    whose byte order mark decides between the next two, utf-16-le or utf-16-be. A byte order mark is
    no text. Files in utf-16 are read whole, however large. Other formats are in UTF-8."""
    document_per: DocumentPer = "file"
    r"""One document of a txt file: the whole `file`, a `line`, or the text between `separator`s.

    `file`: an empty file is one empty document. `line`: a line ends at \n alone, which is not
    part of it (a \r is); a last line without \n counts; an empty file has no documents.
    `separator`: in the same way, with `separator` for \n.
    """
    separator: str | None = None
    r"""The text between the documents of a txt file with `document_per: separator`. A line end in
    it, \n or \r\n, stands for both."""
    on_bad_document: OnBadDocument = "error"
    """`error` stops at the first bad document; `reject` sets it aside and goes on."""
    max_rejects: Annotated[int, Field(ge=0)] = 1000
    """With `on_bad_document: reject`: one bad document more than this in a file, or in
    a group of files, is an error.

    In csv and tsv every line of a bad record counts, for a quote that is not closed takes up
    the lines after it.
    """
    limit: Limit = Limit()
    """Limits of reading each raw file; half of a file costs half of the time, and of a remote file
    no more is fetched than is read, and a few MB."""

    _user_function: UserFunction | None = PrivateAttr(default=None)

    def check(self) -> None:
        """Refuse fields that do not go together."""
        if self.text is None and not self.is_chat:
            object.__setattr__(self, "text", "text")
        if self.chat_format == "messages" and self.messages is not None:  # which it is anyway
            object.__setattr__(self, "chat_format", None)
        if self.encoding == "utf-8-sig":  # the same, for its mark may be missing
            object.__setattr__(self, "encoding", "utf-8")
        is_plain = not self.model_fields_set & ChatConfig.model_fields.keys()
        of_chat = () if is_plain else self._problems_of_chat(has_text=self.text is not None)
        for name, expected in chain(of_chat, self._problems()):
            found = repr(getattr(self, name))[:60]
            remedy = f"correct documents.{name}"
            raise ConfigError(where=name, expected=expected, found=found, remedy=remedy)

    def at(self, base: Path, *, where: str) -> Self:
        """Return the same with the function of `transform` found, from the folder `base`.

        Raises: ConfigError where there is none; `where` is what it calls the config's place.
        """
        if self.transform is None:
            return self
        found = self.model_copy()
        where = f"{where}: documents.transform"
        found._user_function = find_function(self.transform, base, where=where)
        return found

    @property
    def for_training(self) -> Self:
        """The same, with the limits alone that hold where a tokenizer is trained, of each file and
        by no tokens, and without columns that are kept and choices of what is supervised."""
        limit = self.limit.model_copy(update={"tokens": None})
        if limit.scope == "dataset":
            limit = Limit(document_bytes=limit.document_bytes)
        every = {"loss": "assistant", "loss_reasoning": True, "stop_tokens": ()}
        return self.model_copy(update={"limit": limit, "keep_columns": (), **every})

    @property
    def user_function(self) -> UserFunction:
        """The function of `transform`, which `at` has found."""
        if self._user_function is None:
            raise TypeError("the function of documents.transform is not found yet: call `at` first")
        return self._user_function

    @property
    def has_records(self) -> bool:
        """True if readers give each record as the JSON of its columns: for a transform, and of a
        chat."""
        is_for_transform = self.transform is not None and not isinstance(self.text, str)
        return self.is_rendered or is_for_transform

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, also where it is one."""
        if self.is_rendered and self.transform is None:
            return tuple(self.chat_columns.values())
        if self.prompt is not None and self.completion is not None:
            return (self.prompt, self.completion)
        return as_tuple(self.messages if self.messages is not None else self.text)

    @property
    def chat_columns(self) -> dict[str, str]:
        """The columns that a chat is read from, by what they hold; with a transform, the keys of
        what it returns. None where documents are texts."""
        if not self.is_rendered or self.transform is not None:
            return RETURNED if self.is_rendered else {}
        own = ALPACA if self.chat_format == "alpaca" else ()
        given = {name: of for name in COLUMNS if (of := getattr(self, name)) is not None}
        return {**dict(zip(own, own, strict=True)), **given}

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """Columns that a record may lack: some of a chat, and all that are a list, for a
        transform."""
        if self.transform is None:
            return tuple(column for name, column in self.chat_columns.items() if name in OPTIONAL)
        return () if isinstance(self.messages or self.text, str) else self.columns

    @property
    def spare_columns(self) -> tuple[str, ...]:
        """Columns of a chat that a file may lack: those of a format, which no field names."""
        return tuple(of for of in self.optional_columns if self.field_of(of) == "chat_format")

    def field_of(self, column: str) -> str:
        """Return the field of the config that names a column: `text` where no other does."""
        fields = (name for name in COLUMNS if column in as_tuple(getattr(self, name)))
        return next(fields, "text" if not self.chat_columns else "chat_format")

    @property
    def separator_of_columns(self) -> str | None:
        """Text that joins the columns of a record into one document; None: one document each."""
        if self.transform == KEPT:
            return None  # so that a value that cannot be had is bad alone
        if self.has_records:
            return ","  # of JSON
        return "" if self.prompt is not None else self.join

    @property
    def documents_per_record(self) -> int:
        """Documents of a record: one for each of its columns, unless they are joined."""
        return 1 if self.separator_of_columns is not None else len(self.columns)

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yield wrong fields, with what each has to be: those that select what is read, then those
        of the format."""
        columns, kept, has_transform = self.columns, self.keep_columns, self.transform is not None
        if not self.is_chat and (not columns or "" in columns):
            yield "text", "the name of a column, or several"
        if not self.is_chat and len(set(columns)) < len(columns):
            yield "text", "each column once"
        if self.join is not None and (self.is_chat or len(columns) < 2):
            yield "join", "null, for text is not several columns"
        if self.transform_version is not None and not has_transform:
            yield "transform_version", "null, for there is no transform"
        if has_transform and not FUNCTION_NAME.fullmatch(str(self.transform)):
            yield "transform", A_FUNCTION
        if has_transform and self.is_chat and self.messages is None:
            yield "transform", "null, or `messages` in place of what names the columns"
        for name in ("system", "tools", "chat_template_kwargs_column"):
            if has_transform and self.messages is not None and getattr(self, name) is not None:
                yield name, "null, for the transform returns it with the messages"
        if isinstance(self.messages, tuple) and (not self.messages or not has_transform):
            yield "messages", "one field, or fields that a `transform` beside them makes chats of"
        if has_transform and self.join is not None:
            yield "join", "null, for the transform gets each column and joins them"
        if "" in kept or len(set(kept)) < len(kept):
            yield "keep_columns", "names of columns, each once"
        if OWN_COLUMNS & {*kept}:
            yield "keep_columns", f"no column that exports have: {', '.join(sorted(OWN_COLUMNS))}"
        if self.format == "txt" and self.is_chat:
            yield "format", "a format with fields, for documents are chats"
        if self.format == "txt" and self.keep_columns:
            yield "keep_columns", "none, for txt has no columns"
        if self.document_per != "file" and self.format not in ("auto", "txt"):
            yield "document_per", f"file, for {self.format} has its own records"
        if self.document_per == "separator" and not self.separator:
            yield "separator", "the text between documents, for document_per is separator"
        if self.document_per != "separator" and self.separator is not None:
            expected = f"`document_per: separator` beside it, which is {self.document_per}, or null"
            yield "separator", expected
        if self.delimiter is not None and not _DELIMITER.fullmatch(self.delimiter):
            expected = 'one ASCII character, such as ";" or "\t", and no quote or line end'
            yield "delimiter", expected
        for name, formats in _OF_FORMATS.items():
            is_set = getattr(self, name) not in (None, "utf-8")
            if is_set and self.format not in ("auto", *formats):
                yield name, f"none, for {self.format} has no such thing"


def correct_column(
    config: DocumentsConfig, column: str, *, unit: Literal["column", "field"] = "column"
) -> str:
    """Return what to do where a column, or a field of its records, is not in the file."""
    if config.transform == KEPT:
        return "correct documents.keep_columns"
    match config.field_of(column):
        case "messages":
            return (
                "set documents.messages to the field that holds the chat; of preference pairs "
                "that is `chosen`, for tokflow trains on no pairs"
            )
        case "prompt" | "completion":
            return "set documents.prompt and documents.completion to the fields that hold them"
        case "chat_format":
            return f"rename the {unit} in the raw files to {column!r}, or use another chat_format"
        case "text":
            return f"set documents.text to the {unit} that holds the text"
        case name:
            return f"set documents.{name} to the {unit} that holds it, or leave it out"


def name_messages(config: DocumentsConfig, column: str) -> str:
    """Return what to do where a column that is read as text holds chats."""
    if config.prompt is not None:
        return "write `chat_format: messages` beside them, for they hold lists of messages"
    named = f"documents: {{messages: {column}}}"
    return f"write `{named}` in place of `text: {column}`, for it holds chats"


_DELIMITER = re.compile(r'[^"\r\n\x80-\U0010ffff]')
_OF_FORMATS = {
    "delimiter": ("csv", "tsv"),
    "quoting": ("csv", "tsv"),
    "encoding": ("csv", "tsv", "txt"),
}

RETURNED = {
    **{name: name for name in ("messages", "tools")},
    "chat_template_kwargs_column": "chat_template_kwargs",
}
"""The keys of a chat that a transform returns, by what they hold."""

KEPT = "tokflow:keep_columns"
"""Stands for a transform in the config that the columns which are kept are read by."""

OWN_COLUMNS = {
    *("part", "position", "num_tokens", "raw_file", "row", "char_start", "token_in_piece"),
    *("input_ids", "attention_mask", "segment_ids", "position_ids", "loss_mask", "labels"),
    *("next_loss_mask", "seq_lengths", "seq_start_id"),
}
"""The columns of an export's index and of its rows, whose names no other column can have there."""
