"""Documents that are excluded now, and that a repository of the hub has since an earlier push."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.audit.verify.excluded import Document, entries_of
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import INDEX_NAME
from tokflow.push.repository import Target
from tokflow.raw.hub_repository import HubFile, read_small
from tokflow.selection.left_out import EXCLUDED, LEFT_OUT_NAME
from tokflow.selection.stage import SELECTION
from tokflow.shown import counted
from tokflow.split.mixed_split import source_and_key
from tokflow.store import manifest, store, tables


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldThere:
    """A build of an earlier push that has documents which are excluded now."""

    url: str
    """Its folder."""
    commit: str
    """The head of the branch; earlier commits can have them, too."""
    num_documents: int
    first: str
    """One of them, as `a.jsonl, row 1`."""
    is_replaced: bool
    """Whether this push is into its folder."""

    def __str__(self) -> str:
        remedy = "this push replaces it" if self.is_replaced else "push that export again"
        documents = counted(self.num_documents, "excluded document")
        return (
            f"{self.url} has {documents}, such as {self.first}: {remedy}; commit "
            f"{self.commit[:7]} and those before it keep them until the history is squashed"
        )


def find_held(
    export: store.StoredOutput, there: Mapping[str, HubFile], target: Target
) -> Iterator[HeldThere]:
    """Yield the builds in a branch that have documents which lists exclude from an export.

    A document is known by raw file and row, as the index of a build there has it. Nothing is
    yielded where the store of the export is not here. Raises: as `read_small`.
    """
    before = {}
    for path in sorted(path for path in there if path.endswith(manifest.MANIFEST_NAME)):
        with suppress(ValueError, LookupError, TypeError, RecursionError):  # of somebody else
            fields = manifest.plain_json(read_small(there[path]))
            if fields["fingerprint"] != export.manifest.recipe.fingerprint:
                dataset = None if "mixture" in fields["details"] else str(fields["dataset"])
                before[path.removesuffix(manifest.MANIFEST_NAME)] = dataset
    excluded = list[Document]()
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):
        excluded += _excluded_from(export) if before else ()
    for folder, dataset in before.items() if excluded else ():
        index = there.get(folder + INDEX_NAME)
        entries = entries_of([_read_index(index)], excluded, dataset) if index else []
        names = (of["raw_file"] for of in entries)
        if dataset is None:  # each pass of a mixture has a name of its own
            names = ("/".join(source_and_key(of)) for of in names)
        rows = (of["row"] for of in entries)
        documents = sorted({*zip(names, rows, strict=True)})
        if index and documents:
            yield HeldThere(
                url=replace(target, folder=folder).url,
                commit=index.commit,
                num_documents=len(documents),
                first=f"{documents[0][0]}, row {documents[0][1]:,}",
                is_replaced=folder == target.folder,
            )


def _excluded_from(export: store.StoredOutput) -> Iterator[Document]:
    """Yield the documents that lists exclude from what an export was made from. Raises: as
    `lineage`."""
    ancestry = Ancestry()
    for output in lineage(export, ancestry):
        rules: Any = output.manifest.details.get("rules", ())
        numbers = [at for at, rule in enumerate(rules) if rule.startswith(EXCLUDED)]
        if output.manifest.recipe.stage == SELECTION.name and numbers:
            table, shard = tables.read_table(output.file(LEFT_OUT_NAME)), ancestry.shard(output)
            is_excluded = np.isin(tables.to_numpy(table["rule"]), numbers)
            document = tables.to_numpy(table["document"])[is_excluded]
            rows = tables.to_numpy(shard.documents(["row"])["row"])[document]
            files, own = shard.origins.of_rows(rows)
            for raw_file, row in zip(files.to_pylist(), own.tolist(), strict=True):
                yield shard.manifest.dataset, raw_file, row


def _read_index(file: HubFile) -> pa.Table:
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(pa.BufferReader(read_small(file)), read_dictionary=["raw_file"]) as index:
        return index.read(columns=["raw_file", "row"])
