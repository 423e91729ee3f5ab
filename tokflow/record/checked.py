"""A receipt compared with a store, with raw files, or with a build from raw files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import MissingOutputError, TokflowError, message_of
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.record.receipt import differences, unequal
from tokflow.store.links import resolved
from tokflow.store.manifest import is_complete
from tokflow.store.store import Store, StoredOutput

Statement = Mapping[str, Any]


def check_store(statement: Statement, store: Store, folder: Path) -> Iterator[str]:
    """Yield how a store differs from a receipt: manifests, and every byte of the files that they
    list, of the export and of all that it was made from.

    `folder`: that of the store, of the dataset, of the export, or of the output itself. Raises:
    TokflowError where something is missing, or a manifest is damaged.
    """
    outputs = lineage(find_export(statement, store, folder), Ancestry())
    yield from map(str, differences(statement, outputs))
    for problems in store.problems(outputs):
        yield from map(str, problems)


def check_dataset(statement: Statement, dataset: Dataset) -> Iterator[str]:
    """Yield how the raw files of a dataset, and then its store, differ from a receipt. Raises: as
    `check_store`."""
    yield from check_raw_files(statement, dataset)
    yield from check_store(statement, dataset.store, dataset.folder)


def check_raw_files(statement: Statement, dataset: Dataset) -> Iterator[str]:
    """Yield how the raw files of a dataset, of a mixture those of its sources, differ from those of
    a receipt; all are read."""
    graph = graph_of(dataset, rehash=True)
    found = {}
    for of in (graph.of_sources or {"": graph}).values():
        for key in of.partitions:
            try:
                found[f"{of.dataset.name}/{key}"] = of.raw(key).sha256
            except (TokflowError, OSError) as error:
                yield message_of(error, where=key)
    yield from map(str, unequal("raw file", statement["predicate"]["raw_files"], found))


def check_rebuilt(statement: Statement, dataset: Dataset) -> Iterator[str]:
    """Yield how the export that a dataset, whose store is empty, gives differs from a receipt.

    Raises: the error of what cannot be built.
    """
    said = statement["predicate"]
    exports = tuple(of for of in dataset.exports if of.name == said["export"])
    if not exports:
        raise MissingOutputError(
            where=dataset.name,
            expected=f"the export {said['export']} that the receipt is of",
            found=", ".join(of.name for of in dataset.exports) or "none",
            remedy="declare it as it was, or name the receipt of another",
        )
    built = build_dataset(dataset.model_copy(update={"exports": exports}))
    for failed in built.failed:
        raise failed.error
    export = built.export(said["export"]).stored
    yield from map(str, differences(statement, lineage(export, Ancestry())))


def find_export(statement: Statement, store: Store, folder: Path) -> StoredOutput:
    """Return the export of a receipt in a store: in the folder of the store, of the dataset, of the
    export or of the output itself. Raises: MissingOutputError; as `Store.find`."""
    said = statement["predicate"]
    name = said["fingerprint"][:16]
    below = Path(said["dataset"], EXPORT.path, said["export"], name)
    likely = [folder / Path(*below.parts[at:]) for at in range(5)]
    store.look_for(likely[:2])
    there = next((of for of in likely if is_complete(of)), None)
    if there is None:
        raise MissingOutputError(
            where=store.shown(folder),
            expected=f"the export of the receipt, {below}",
            found="none",
            remedy="name the store, the dataset or the export that has it, or add --rebuild",
        )
    return store.find(resolved(there), EXPORT.name, said["fingerprint"])
