"""What a build made, as plain values; and manifests of outputs that no build made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.exports import Part
from tokflow.exports.stage import parts_of
from tokflow.formatting import shown_text, stands_for_url
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.results import BuildResult
from tokflow.store.listed_files import CROISSANT_NAME
from tokflow.store.manifest import MANIFEST_NAME, RUN_NAME, Manifest, Recipe, read_manifest, sealed
from tokflow.store.remote import Place
from tokflow.store.remote.remote_store import RemoteStore, store_at
from tokflow.store.store import Store, StoredOutput
from tokflow.tokens.shard import TokenShard


def token_lists(shard: TokenShard) -> list[list[int]]:
    """Return the token ids of each document, BOS and EOS included."""
    return _of_documents(shard, shard.tokens().read())


def documents_of(shard: TokenShard) -> list[tuple[list[int], list[int]]]:
    """Return the tokens and the loss mask of each document."""
    masks = _of_documents(shard, shard.loss_mask().read())
    return [*zip(token_lists(shard), masks, strict=True)]


def _of_documents(shard: TokenShard, values: np.ndarray) -> list[list[int]]:
    rows = shard.documents(["token_offset", "num_tokens"]).to_pydict()
    return [
        values[start : start + count].tolist()
        for start, count in zip(rows["token_offset"], rows["num_tokens"], strict=True)
    ]


def parts(dataset: Dataset, name: str = "parquet") -> dict[str, Part]:
    """Return what an export of a built dataset is made from."""
    config = next(export for export in dataset.exports if export.name == name)
    return {
        part.name: part
        for part in parts_of(graph_of(dataset).output("export", variant=config.name))
    }


def tokens_of(part: Part) -> list[int]:
    return [token for tokens in part.stream() for token in tokens.tolist()]


def rows_of(part: Part, rows: int = 3) -> list[list[int]]:
    return [row for made in part.sequences(rows) for row in made.token_ids.tolist()]


def index_of(folder: Path, part: str) -> list[dict[str, Any]]:
    return pq.read_table(
        folder / "_tokflow/index.parquet", filters=[("part", "=", part)]
    ).to_pylist()


def export_bytes(built: BuildResult, name: str) -> dict[str, bytes]:
    """Return every file of an export that was built by its name, fetched."""
    made = built.export(name)
    made.stored.fetch()
    return {of: (made.folder / of).read_bytes() for of in made.manifest.files}


def digests_of(dataset: Dataset) -> dict[tuple[str, str, str], str]:
    """Return the sha256 of every file of the outputs of now, by stage, name and file."""
    return {
        (output.stage, output.name, name): entry.sha256
        for output in graph_of(dataset).outputs()
        for name, entry in output.manifest().files.items()
    }


STAGES = ("tokens", "attributes", "selection", "split", "sequences")
INDEXES = [f"manifests-{stage}.index" for stage in STAGES]
NOTES = (Path(RUN_NAME).name, "hashes.jsonl", "checks.jsonl", "failures.json", *INDEXES)
"""Files that tell of a run: times, hashes, checks, what failed, manifests as they look."""


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` by its path, but what tells of a run.

    A commit of Lance, which has its time, is b"", and the manifest and the Croissant description
    are without what they say of it.
    """
    return {
        path.relative_to(folder).as_posix(): _without_commits(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOTES
    }


def _without_commits(path: Path) -> bytes:
    if path.parent.name == "_versions":
        return b""
    data = path.read_bytes()
    is_of_files = path.match(MANIFEST_NAME) or path.match(CROISSANT_NAME)
    if not is_of_files or b"/_versions/" not in data:
        return data
    fields = json.loads(data)
    if path.match(CROISSANT_NAME):  # which has the digest of the manifest, too
        files = [of for of in fields["distribution"] if "/_versions/" not in of["@id"]]
        return json.dumps({**fields, "digest": None, "distribution": files[1:]}).encode()
    files = {name: entry for name, entry in fields["files"].items() if "/_versions/" not in name}
    return json.dumps({**fields, "digest": None, "files": files}).encode()


def touched(folder: Path) -> dict[str, int]:
    """Return when each file, folder and link below `folder` was last changed."""
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_mtime_ns for path in folder.rglob("*")
    }


def make_recipe(**fields: Any) -> Recipe:
    defaults = {
        "stage": "tokens",
        "version": 1,
        "config": {"eos": "last"},
        "parents": {"raw": "0" * 64},
    }
    return Recipe(**{**defaults, **fields})


def make_manifest(**fields: Any) -> Manifest:
    """Return the manifest of an output without files, such as no stage has."""
    defaults = {
        "recipe": make_recipe(),
        "dataset": "tiny",
        "partition": "a.jsonl",
        "counts": {"num_tokens": 3},
    }
    return Manifest(**{**defaults, **fields})


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Change the fields of a manifest and seal it again, as who deceives would; return the
    fingerprint that it has now."""
    fields = json.loads((folder / MANIFEST_NAME).read_bytes())
    del fields["digest"]
    change(fields)
    recipe = Recipe(**{name: fields[name] for name in ("stage", "version", "config", "parents")})
    fields["fingerprint"] = recipe.fingerprint
    (folder / MANIFEST_NAME).write_bytes(sealed(fields))
    return recipe.fingerprint


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def stored(folder: Path, manifest: Manifest | None = None) -> StoredOutput:
    """Return the output in a folder of this disk, of a manifest that need not be the one there."""
    return StoredOutput(Store(folder.parent), folder, manifest or read_manifest(folder))


def store_of(path: Path) -> RemoteStore:
    """Return the store at a URL that a path in the cache of this machine stands for."""
    root = stands_for_url(str(path)) or ""
    return store_at(shown_text(root))


def place_of(path: Path) -> Place:
    """Return the place at a URL that a path in the cache of this machine stands for."""
    return store_of(path).place


def fetched(path: Path) -> Path:
    """Return a file of an output at a URL, by its path in the cache, which it has then."""
    store = store_of(path)
    folder = store.place.output_folder(path)
    assert folder is not None
    return store.read(folder).file(path.relative_to(folder).as_posix())


def new_in(built: BuildResult) -> list[tuple[str, str]]:
    """Return the stage and the name of each output that a build made."""
    return [(made.output.stage, made.output.name) for made in built.made if made.is_new]


def problems_of(dataset: Dataset) -> list[str]:
    """Return what `verify` finds in a dataset."""
    return [problem for of in verify_dataset(dataset) for problem in of.problems]


def problems_at(path: str | Path) -> list[str]:
    """Return what `verify` finds in outputs at a path."""
    return [problem for of in verify_path(path) for problem in of.problems]
