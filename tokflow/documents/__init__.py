"""Documents of raw files: which there are, and their text, never altered."""

from tokflow.documents.batch import Batch, Reject, Spans
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.file_formats import READERS, deciding_fields, format_of, format_of_name
from tokflow.documents.file_range import Range
from tokflow.documents.parsed import Render
from tokflow.documents.ranges import RANGE_BYTES, is_cut, open_range, ranges_of
from tokflow.documents.reader import is_accepted
from tokflow.documents.source import DocumentSource

__all__ = [
    "RANGE_BYTES",
    "READERS",
    "Batch",
    "DocumentSource",
    "DocumentsConfig",
    "Limit",
    "Range",
    "Reject",
    "Render",
    "Spans",
    "deciding_fields",
    "format_of",
    "format_of_name",
    "is_accepted",
    "is_cut",
    "open_range",
    "ranges_of",
]
