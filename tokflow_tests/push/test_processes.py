"""`tokflow push` in processes of its own, with a cache of huggingface_hub that is empty."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from tokflow_tests.hub import TOKEN, Hub
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare

NAME = "team/texts"

by_xet = pytest.mark.skipif(
    tuple(map(int, version("huggingface_hub").split(".")[:2])) < (1, 20),
    reason="before 1.20 the tests' hub is sent nothing by xet",
)


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of some files of some 100 kB."""
    numbers = np.random.default_rng(1).integers(0, 100, (9, 20_000))
    texts = [" ".join(map(str, row)) for row in numbers.tolist()]
    dataset = declare(
        tmp_path_factory.mktemp("large"),
        {"a.jsonl": texts},
        packing={"sequence_length": 1_000},
        exports=[{"format": "parquet", "shards": 3}],
    )
    return build(dataset).export("parquet").output.folder


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    hub.token = TOKEN
    return {**os.environ, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}


def push(export: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tokflow", "push", export, f"hf://datasets/{NAME}"]
    return subprocess.Popen(
        [str(word) for word in command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_is_there(export: Path, hub: Hub) -> None:
    tree = hub.commits[NAME][hub.branches[NAME]["main"]]
    expected = {*content(export)}
    assert tree.keys() == expected | {"README.md", ".gitattributes"}
    for name in expected:
        assert tree[name] == (export / name).read_bytes()


@by_xet
def test_large_files_are_sent_as_hf_xet_sends_them(
    export: Path, hub: Hub, environment: dict[str, str]
):
    process = push(export, environment)
    output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "")
    assert "all there with the sha256 of the manifest" in output
    assert_is_there(export, hub)
    assert hub.xorbs
    assert not any(asked.startswith("PUT") for asked in hub.asked)


@pytest.mark.crash
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    ("how", "request_"),
    [
        pytest.param("xet", "POST /v1/xorbs/.*", marks=by_xet),
        pytest.param("xet", "POST /v1/shards", marks=by_xet),
        ("lfs", "PUT .*"),
        ("lfs", "POST .*/commit/main"),
    ],
)
def test_a_push_that_was_killed_goes_on(
    how: str,
    request_: str,
    is_done: bool,
    export: Path,
    hub: Hub,
    environment: dict[str, str],
):
    environment["HF_HUB_DISABLE_XET"] = str(int(how == "lfs"))
    process = push(export, environment)
    killed: list[str] = []

    def kill():
        killed.append(request_)
        process.kill()
        process.wait()
        return None if is_done else "break"

    hub.faults.append((request_ + r"(\?.*)?", kill))
    process.communicate(timeout=60)
    again = push(export, environment)
    _, errors = again.communicate(timeout=60)

    assert killed
    assert (again.returncode, errors) == (0, "")
    assert_is_there(export, hub)
    assert how == "xet" or len(hub.received) == len({*hub.received})
    assert len(hub.summaries) == 1
