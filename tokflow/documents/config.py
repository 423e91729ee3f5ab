"""The `documents` section of a dataset: how the documents of a raw file are found."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tokflow.errors import ConfigError

FileFormat: TypeAlias = Literal["parquet", "jsonl", "csv", "tsv", "txt", "arrow"]
DocumentPer: TypeAlias = Literal["file", "line", "separator"]
OnBadDocument: TypeAlias = Literal["error", "reject"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Where reading one raw file stops, and the largest document; by default all is read."""

    documents: int | None = None
    """Accepted documents to read from each raw file; rejects do not count."""
    characters: int | None = None
    """Unicode code points to read from each raw file; the document that reaches it is whole."""
    document_bytes: int = 1_000_000_000
    """A document of more bytes is bad, and so is a line (csv: a record) that holds one; counted
    after decompression. It is never in memory whole, unless in a parquet page or Arrow batch."""

    def __post_init__(self) -> None:
        for name, value in (("documents", self.documents), ("characters", self.characters)):
            if value is not None and value < 1:
                raise _field_error(f"limit.{name}", "at least 1, or null for no limit", value)
        if self.document_bytes < 1:
            raise _field_error("limit.document_bytes", "at least 1", self.document_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentsConfig:
    """How the documents of a raw file are found. Their text is never altered."""

    text: str | tuple[str, ...] | None = None
    """The field or column that holds the text; default: `text`, unless the documents are chats.

    A dotted path leads into nested objects: `meta.body`. In parquet and arrow a top-level
    column whose own name is `meta.body` comes first; in jsonl a dot always means nesting; in
    csv and tsv it never does. Several columns give one document each, in the order named:
    with 2 columns record 5 holds the documents 10 and 11. txt has no columns.
    """
    join: str | None = None
    """With several columns of `text`: the separator that joins them into one document per record,
    in the order named. Default: one document per column."""
    messages: str | None = None
    """In place of `text`: the field that holds a chat, a list of {role, content, ...}, or the JSON
    text of one. A chat template writes it as text; the assistant's turns are what is learnt."""
    prompt: str | None = None
    """In place of `text`, with `completion`: the field that comes first and is not learnt."""
    completion: str | None = None
    """The field that follows the prompt, nothing between them; its tokens are what is learnt."""
    chat_template: str | None = None
    """With `messages`: a Jinja template, or the path of a .jinja file that holds it, as
    transformers' chat templates. Default: the one that the tokenizer brings along."""
    format: Literal["auto"] | FileFormat = "auto"
    """The format of the raw files; `auto` goes by the suffix (.json is read as jsonl).

    A further suffix .gz, .zst, .bz2 or .xz means that the file is compressed (not for parquet
    and arrow, which compress inside).
    """
    document_per: DocumentPer = "file"
    r"""What one document of a txt file is: the whole `file`, a `line`, or a piece between
    `separator`s.

    `file`: an empty file is one empty document. `line`: a line ends at \n alone, which is not
    part of it (a \r is); a last line without \n counts; an empty file has no documents.
    `separator`: in the same way, with `separator` for \n.
    """
    separator: str | None = None
    """The text between the documents of a txt file with `document_per: separator`."""
    on_bad_document: OnBadDocument = "error"
    """`error` stops at the first bad document; `reject` sets it aside and goes on."""
    max_rejects: int = 1000
    """With `on_bad_document: reject`: one bad document more than this in a file is an error.

    In csv and tsv every line of a bad record counts, for a quote that is not closed takes up
    the lines after it.
    """
    limit: Limit = Limit()
    """Where reading each raw file stops, so that a part of a file costs a part of the time."""

    def __post_init__(self) -> None:
        if isinstance(self.text, list):  # as YAML has it
            object.__setattr__(self, "text", tuple(self.text))
        self._check_chat()
        if self.text is None and not self.is_chat:
            object.__setattr__(self, "text", "text")
        self._check_text()
        self._check_separator()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _field_error(name, f"one of {', '.join(choices)}", getattr(self, name))
        if self.max_rejects < 0:
            raise _field_error("max_rejects", "0 or more", self.max_rejects)

    @property
    def is_chat(self) -> bool:
        """Whether only some of the text is to be learnt."""
        return self.messages is not None or self.prompt is not None or self.completion is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, also where it is one."""
        if self.messages is not None:
            return (self.messages,)
        if self.prompt is not None and self.completion is not None:
            return (self.prompt, self.completion)
        return (self.text,) if isinstance(self.text, str) else (self.text or ())

    @property
    def separator_of_columns(self) -> str | None:
        """What joins the columns of a record into one document; None: one document each."""
        return "" if self.prompt is not None else self.join

    def _check_chat(self) -> None:
        given = [name for name in _WHAT_IS_READ if getattr(self, name) is not None]
        if len(given) > 1 and given != ["prompt", "completion"]:
            expected = f"one of text, messages, or prompt with completion; not {given[0]} too"
            raise _field_error(given[1], expected, getattr(self, given[1]))
        for name, other in (("prompt", "completion"), ("completion", "prompt")):
            if given == [name]:
                raise _field_error(other, f"a field, for there is a {name}", None)
        for name in ("messages", "prompt", "completion"):
            if getattr(self, name) == "":
                raise _field_error(name, "the name of a field", "")
        if self.prompt is not None and self.prompt == self.completion:
            raise _field_error("completion", "another field than the prompt", self.completion)
        if self.chat_template is not None and self.messages is None:
            raise _field_error(
                "chat_template", "null, for there are no messages", self.chat_template[:60]
            )
        if self.is_chat and self.format == "txt":
            raise _field_error("format", "a format with fields, for documents are chats", "txt")

    def _check_text(self) -> None:
        columns = self.columns
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise _field_error("text", "the name of a column, or several", self.text)
        if len(set(columns)) < len(columns):
            raise _field_error("text", "each column once", self.text)
        if self.join is not None and (self.is_chat or len(columns) < 2):
            raise _field_error("join", "null, for text is not several columns", self.join)

    def _check_separator(self) -> None:
        if self.document_per != "file" and self.format not in ("auto", "txt"):
            expected = f"file, for {self.format} has its own records"
            raise _field_error("document_per", expected, self.document_per)
        if self.document_per == "separator" and not self.separator:
            expected = "the text between documents, for document_per is separator"
            raise _field_error("separator", expected, self.separator)
        if self.document_per != "separator" and self.separator is not None:
            expected = f"null, for document_per is {self.document_per}"
            raise _field_error("separator", expected, self.separator)


def correct_column(config: DocumentsConfig, *, unit: Literal["column", "field"] = "column") -> str:
    """Return what to do where a column, or a field of its records, is not in the file."""
    if config.messages is not None:
        return "set documents.messages to the field that holds the chat"
    if config.is_chat:
        return "set documents.prompt and documents.completion to the fields that hold them"
    return f"set documents.text to the {unit} that holds the text"


_WHAT_IS_READ = ("text", "messages", "prompt", "completion")

_CHOICES: dict[str, tuple[str, ...]] = {
    "format": ("auto", *get_args(FileFormat)),
    "document_per": get_args(DocumentPer),
    "on_bad_document": get_args(OnBadDocument),
}


def _field_error(field: str, expected: str, found: object) -> ConfigError:
    where = f"documents.{field}"
    return ConfigError(where=where, expected=expected, found=repr(found), remedy=f"correct {where}")
