"""Names of what the tokens of a dataset come from, for the export formats that write them down."""

from dataclasses import dataclass
from pathlib import PurePath

from tokflow.documents import DocumentsConfig
from tokflow.raw import RawConfig, redact
from tokflow.raw.urls import is_url
from tokflow.tokenizers.tokenizer import TokenizerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceNames:
    """Of a path the last name alone: the same data gives the same bytes wherever it lies. A URL is
    whole but for its secrets."""

    source: str
    """The raw files."""
    columns: tuple[str, ...]
    """The columns of a record that were read."""
    tokenizer: str
    """An encoding, an id on the hub or a file; `bytes`; of one that was trained, for what."""


def source_names(
    dataset: str, raw: RawConfig, documents: DocumentsConfig, tokenizer: TokenizerConfig
) -> SourceNames:
    """Return the names that a dataset's YAML has for its raw files, columns and tokenizer."""
    first, *others = raw.files
    more = f" and {len(others):,} more" if others else ""
    is_remote = is_url(first) and not first.startswith("file:")
    name = tokenizer.name
    if name is None:
        name = "bytes" if tokenizer.kind == "bytes" else f"trained ({dataset})"
    is_path = tokenizer.kind in ("file", "sentencepiece") or PurePath(name).is_absolute()
    return SourceNames(
        source=(redact(first) if is_remote else PurePath(first).name) + more,
        columns=documents.columns,
        tokenizer=PurePath(name).name if is_path else name,
    )
