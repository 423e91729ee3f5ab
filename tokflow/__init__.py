"""Raw text in, training data out: exact, complete, fast, traceable."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokflow.api import tokenize_and_save
    from tokflow.audit.document_trace import trace_document, trace_documents
    from tokflow.audit.found_documents import files, open_documents
    from tokflow.exports.reading import open_export
    from tokflow.push.upload import push_export

__version__ = "0.1.0"

__all__ = [
    "files",
    "open_documents",
    "open_export",
    "push_export",
    "tokenize_and_save",
    "trace_document",
    "trace_documents",
]

_MODULES = {
    "files": "tokflow.audit.found_documents",
    "open_documents": "tokflow.audit.found_documents",
    "open_export": "tokflow.exports.reading",
    "push_export": "tokflow.push.upload",
    "tokenize_and_save": "tokflow.api",
    "trace_document": "tokflow.audit.document_trace",
    "trace_documents": "tokflow.audit.document_trace",
}


def __getattr__(name: str) -> Any:
    """Import a function on first use, since it brings pyarrow with it."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'tokflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return its names, those that are not imported yet too: a shell completes them."""
    return sorted({*globals(), *__all__})
