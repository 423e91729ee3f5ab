"""Exports at a URL: every format is read there as on this disk, and no more of it than is asked."""

import shutil
from pathlib import Path
from typing import Any

from tokflow.exports import FORMATS
from tokflow.exports.reading import Export, open_export
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, build, declare

SPLIT = {
    "lance": {"shard_size": 320},
    "npy": {"shard_size": 80},
    "levanter": {},
    "mds": {"shard_size": 700},
    "litdata": {"block_size": 4, "shard_size": 80},
    **{name: {"shard_size": 80} for name in ("datatrove", "llmc", "modalities", "olmo")},
    **{
        name: {"shards": 2}
        for name in ("arrow", "easydel", "hf_dataset", "jsonl", "parquet", "webdataset")
    },
}
"""Options by which a part of some 70 tokens has several files."""

READ = [name for name, of in FORMATS.items() if of.is_read]


def _exports() -> list[dict[str, Any]]:
    return [{"format": name, **SPLIT.get(name, {})} for name in READ]


def _content(export: Export) -> list[dict[str, list[Any]]]:
    fields = export.read("train")
    return [{name: values.tolist() for name, values in some.items()} for some in fields]


def _files_here(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in found} - {
        "_tokflow/manifest.json",
        "_tokflow/run.json",
    }


HEADED = {"lance", "levanter", "modalities"}
"""Formats of which some files tell where the portions are; of the others the manifest does."""


def test_every_format_is_read_from_an_empty_disk_as_on_the_disk_it_was_made_on(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    made = build(declare(tmp_path, TEXTS, exports=_exports(), store=url))
    local = {name: _content(open_export(made.export(name).output.folder)) for name in READ}
    shutil.rmtree(tmp_path / "cache")

    at_url = {name: open_export(f"{url}/tiny/exports/{name}") for name in READ}
    first = {name: export.portions("train")[0] for name, export in at_url.items()}
    opened = {name: _files_here(export.folder) for name, export in at_url.items()}
    for portion in first.values():
        portion.read()
    read = {name: _files_here(export.folder) for name, export in at_url.items()}

    assert {name for name, files in opened.items() if files} == HEADED
    for name, portion in first.items():
        assert read[name] == opened[name] | {*portion.files}
    assert {name: _content(export) for name, export in at_url.items()} == local


def test_files_of_a_part_that_is_read_in_order_come_several_at_a_time(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    build(declare(tmp_path, TEXTS, exports=[{"format": "llmc", "shard_size": 40}], store=url))
    shutil.rmtree(tmp_path / "cache")
    export = open_export(f"{url}/tiny/exports/llmc")

    next(export.read("train"))

    assert _files_here(export.folder) == {of for of in export.manifest.files if "train" in of}
