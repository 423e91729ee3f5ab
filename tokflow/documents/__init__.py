"""Documents of raw files: which there are, and their text, never altered."""

from tokflow.documents.batch import Batch, Reject, Render, Spans
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.formats import deciding_fields, format_of, kind_of_files
from tokflow.documents.source import DocumentSource, is_accepted

__all__ = [
    "Batch",
    "DocumentSource",
    "DocumentsConfig",
    "Limit",
    "Reject",
    "Render",
    "Spans",
    "deciding_fields",
    "format_of",
    "is_accepted",
    "kind_of_files",
]
