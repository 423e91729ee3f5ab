"""One export of a tiny dataset, built: its folder and its manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.exports import Export
from tokflow.exports.format import Arrays
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.results import StageResult
from tokflow.store.manifest import Manifest
from tokflow_tests.fuzz import readers
from tokflow_tests.outputs import content, stored
from tokflow_tests.tiny import build, declare

MANY_IDS = {"kind": "file", "name": "many.json", "eos_token": "<eos>", "engine": "reference"}
"""A tokenizer of 70,001 ids, where `many_ids()` is written as many.json."""


def export(dataset: Dataset) -> tuple[Path, Manifest]:
    [config] = dataset.exports
    made = build(dataset).export(config.name)
    return made.output.folder, made.manifest


def export_as(
    format_: str,
    folder: Path,
    files: Mapping[str, Sequence[str]] | Sequence[str],
    *,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Path, Manifest]:
    """Export texts by raw file, or those of one, with these options of the format."""
    files = files if isinstance(files, Mapping) else {"a.jsonl": files}
    exports = [{"format": format_, **options}]
    return export(declare(folder, files, exports=exports, **(attributes or {})))


def fields_in(made: StageResult, part: str) -> dict[str, list[Any]]:
    """Return the fields of the rows of a part, as a reader finds them that is not of tokflow's."""
    format_, parts = made.manifest.details["format"], list(made.manifest.details["parts"])
    export = readers.Export(
        folder=made.folder, options={"format": format_}, part=part, parts=parts, dtype="<u2"
    )
    found = readers.read_part(export)
    assert isinstance(found, readers.Rows)
    return dict(found.fields)


def read(folder: Path, manifest: Manifest | None = None, part: str = "train") -> list[Arrays]:
    """Return what the reader of its format yields of a part of an export."""
    return list(Export(stored(folder, manifest)).read(part))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of an export, except tokflow's own, of which there are two."""
    found = content(folder)
    assert {name for name in found if name.startswith("_")} == {
        "_tokflow/index.parquet",
        "_tokflow/manifest.json",
    }
    return {name: data for name, data in found.items() if not name.startswith("_")}
