"""Partitions of a dataset: its raw files as they are listed, grouped, and counted through."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tokflow.documents import format_of, format_of_name
from tokflow.documents.text_columns import check_columns as check_columns_of
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.files_of_parts import part_of, taken_by_parts
from tokflow.raw import Listing, RawSource, list_raw, partitions_of
from tokflow.split.rule import FilePosition
from tokflow.store.config import relocated
from tokflow.tokens.shard_segments import is_large

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph


def list_files(dataset: Dataset) -> Listing:
    """Return everything that the patterns of a dataset match.

    Raises: ConfigError, also for a file of no format that documents are read from, and for a part
    of the split that takes files of which there is none.
    """
    with _naming(dataset):
        listing = list_raw(
            dataset.raw, base=dataset.base, store=dataset.folder, format_of=format_of_name
        )
        for key, source in listing.sources.items():
            format_of(Path(source.url if source.is_local else key), dataset.documents)
        return taken_by_parts(listing, dataset.split)


def group_files(
    dataset: Dataset, sources: dict[str, RawSource]
) -> dict[str, tuple[RawSource, ...]]:
    """Return the raw files of each partition by its key, sorted.

    Raises: ConfigError where they cannot be grouped as `raw.group` says.
    """
    with _naming(dataset):
        return partitions_of(
            sources,
            dataset.raw.group,
            is_alone=partial(is_large, documents=dataset.documents),
            kind_of=partial(part_of, sources=sources, config=dataset.split),
        )


@contextmanager
def _naming(dataset: Dataset) -> Iterator[None]:
    """Say in an error about fields which dataset has them: a YAML may have several."""
    try:
        yield
    except ConfigError as error:
        raise relocated(error, f"dataset {dataset.name!r}: {error.where}") from error.__cause__


FILES_LOOKED_AT = 3
"""Files whose columns are checked early: a single file that differs stops no other."""


def check_columns(graph: "BuildGraph") -> None:
    """Make sure, before anything is fetched or hashed, that one of the first local raw files has
    the columns that are read.

    Raises: ConfigError of the first, where none has them.
    """
    sources = ((key, of) for key, files in graph.partitions.items() for of in files if of.is_local)
    errors: list[ConfigError] = []
    for key, source in islice(sources, FILES_LOOKED_AT):
        try:
            check_columns_of(Path(source.url), graph.documents(key))
        except ConfigError as error:
            errors.append(error)
        else:
            return
    if errors:
        raise errors[0]


def positions_of(graph: "BuildGraph") -> dict[str, FilePosition]:
    """Return where each file stands in the dataset, whose tokens must have been made."""
    counts = {key: graph.tokens(key).manifest().counts for key in graph.partitions}
    is_drawn = graph.dataset.split.form == "fraction"
    total = sum(of_file["num_documents"] for of_file in counts.values()) if is_drawn else 0
    positions = {}
    first_char = first_document = 0
    for key, of_file in counts.items():
        positions[key] = FilePosition(
            first_char=first_char, first_document=first_document, total_documents=total
        )
        first_char += of_file["num_chars"]
        first_document += of_file["num_documents"]
    return positions
