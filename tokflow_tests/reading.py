"""The documents of one raw file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokflow.documents import Batch, DocumentsConfig, DocumentSource, Reject
from tokflow.documents.ranges import Range


def read_documents(
    path: Path,
    config: DocumentsConfig,
    *,
    on_reject: Callable[[Reject], None] | None = None,
    within: Range | None = None,
    **how: Any,
) -> Iterator[Batch]:
    heard = None if on_reject is None else (lambda _, reject: on_reject(reject))
    return DocumentSource([path], config, within=within).batches(on_reject=heard, **how)
