"""The datasets of examples/dagster, each as it stands there, in a project with the wheel."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from examples.small import environment_of, small_hub
from tokflow_tests.dg.harness import ROOT, Place, new_project
from tokflow_tests.object_store import ObjectStore, serve_objects

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples/dagster"


def lines(number: int) -> list[str]:
    return [json.dumps({"text": f"Once upon a time number {n}. " * 40}) for n in range(number)]


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with serve_objects() as server:
        yield server.with_new_bucket()


@pytest.fixture(scope="module")
def project(wheel: Place, objects: ObjectStore) -> Iterator[Place]:
    """A project that reaches a hub and a bucket of this machine, with raw files in each place."""
    with ExitStack() as stack:
        hub = stack.enter_context(small_hub())
        variables = {
            **environment_of(hub),
            **objects.environment(),
            "HF_HOME": str(wheel.home / "hub"),
            "TOKFLOW_CACHE": str(wheel.home / "cache"),
        }
        project = new_project(replace(wheel, variables=variables), "library")
        for name in ("a", "b"):
            project.write(f"data/raw/tales/{name}.jsonl", lines(60))
            objects.put(f"raw/{name}.jsonl", "\n".join(lines(60)).encode())
        yield project


def declare(example: str, project: Place, objects: ObjectStore) -> None:
    """Write an example's YAML into the project, with this bucket, and a tokenizer that needs no
    network."""
    text = (EXAMPLES / example / "defs.yaml").read_text()
    text = text.replace("{kind: tiktoken, name: gpt2}", "{kind: bytes}")
    project.write(f"src/library/defs/{example}/defs.yaml", text.replace("s3://bucket", objects.url))


def build(example: str, dataset: str, project: Place, objects: ObjectStore) -> None:
    declare(example, project, objects)
    project.run("dg", "launch", "--job", f"{dataset}_build")
    project.run("tokflow", "verify", dataset)


def test_local_files_become_bin_and_parquet_and_own_assets_read_them(
    project: Place, objects: ObjectStore
):
    build("local_files", "tales", project, objects)
    assets = re.findall(
        r"^```python\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    names = ("first_batch", "longest_documents")
    for name, asset in zip(names, assets, strict=True):
        project.write(f"src/library/defs/{name}.py", asset)
    project.run("dg", "launch", "--assets", " or ".join(f"key:{name}" for name in names))

    exports = project.folder / "data/store/tales/exports"
    assert (exports / "bin/latest/train.bin").stat().st_size > 0
    assert sorted(path.name for path in exports.iterdir()) == ["bin", "parquet"]


def test_a_dataset_of_the_hub_becomes_mds_shards_of_each_of_its_splits(
    project: Place, objects: ObjectStore
):
    build("hub_to_mds", "stories", project, objects)

    export = project.folder / "data/store/stories/exports/mds/latest"
    for part in ("train", "validation"):
        index = json.loads((export / part / "index.json").read_text())
        assert index["shards"][0]["column_names"] == ["tokens"]
        assert index["shards"][0]["compression"].startswith("zstd")


def test_a_bucket_becomes_parquet_in_the_same_bucket(project: Place, objects: ObjectStore):
    build("object_store", "web", project, objects)

    made = [key for key in objects.keys() if key.endswith(".parquet")]  # noqa: SIM118
    assert any(key.startswith("store/") for key in made)
    assert not (project.folder / "data/store/web").exists()
