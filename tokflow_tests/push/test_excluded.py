"""What was pushed before a document was excluded is named until it is replaced."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from tokflow.push.upload import push_export
from tokflow_tests.audit.verify.test_excluded import mixed, web
from tokflow_tests.exclusion.test_exclusion import declared, write_list
from tokflow_tests.hub import Hub
from tokflow_tests.test_docs import blocks, text_of
from tokflow_tests.tiny import TEXTS, build, declare

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

URL = "hf://datasets/team/texts"


def pushed(folder: Path, name: str, to: str, **fields: Any) -> tuple[list[str], Any]:
    """Build and push an export; return what was said beside the commits, and the result."""
    dataset = declared(folder, exports=["bin", "parquet"], **fields)
    export = build(dataset).export(name).output.folder
    said: list[str] = []
    result = push_export(export, to, say=said.append)
    return [line for line in said if not line.startswith("commit ")], result


def test_a_build_that_has_what_is_excluded_now_is_named_until_it_is_replaced(
    writable: Hub, tmp_path: Path
):
    pushed(tmp_path, "bin", f"{URL}/stream")
    pushed(tmp_path, "parquet", f"{URL}/rows")
    head = writable.branches["team/texts"]["main"][:7]
    write_list(tmp_path / "list.csv", [{"lang": "u1"}, {"lang": "u3"}])

    how = {"exclude": "list.csv", "select": "num_chars > 0"}  # which is not an exclusion

    said, first = pushed(tmp_path, "parquet", f"{URL}/rows", **how)
    said_then, _ = pushed(tmp_path, "parquet", f"{URL}/rows", **how)
    said_last, _ = pushed(tmp_path, "bin", f"{URL}/stream", **how)
    _, at_last = pushed(tmp_path, "bin", f"{URL}/stream", **how)

    has = "has 3 excluded documents, such as a.jsonl, row 1"
    keeps = f"commit {head} and those before it keep them until the history is squashed"
    assert said == [
        f"warning: {URL}/rows {has}: this push replaces it; {keeps}",
        f"warning: {URL}/stream {has}: push that export again; {keeps}",
    ]
    assert [of.num_documents for of in first.held] == [3, 3]
    assert [line.partition(" has ")[0] for line in said_then] == [f"warning: {URL}/stream"]
    assert ["this push replaces it" in line for line in said_last] == [True]
    assert at_last.held == ()


def test_of_a_mixture_the_documents_of_its_sources_are_known(writable: Hub, tmp_path: Path):
    web(tmp_path, exports=[])
    push_export(build(mixed(tmp_path)).export("bin").output.folder, URL)
    write_list(tmp_path / "list.csv", [{"file": "b.jsonl", "row": 0}])
    web(tmp_path, exports=[], exclude="list.csv")

    result = push_export(build(mixed(tmp_path)).export("bin").output.folder, URL)

    [held] = result.held
    assert held.first == "web/b.jsonl, row 0"
    assert held.num_documents == 1  # in two passes


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_the_code_of_the_docs_pushes_and_loads(
    writable: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = str(tmp_path / "data/store")
    build(declare(tmp_path, TEXTS, name="web", store=store, exports=["parquet"]))
    monkeypatch.chdir(tmp_path)
    download = partial(snapshot_download, endpoint=writable.url, cache_dir=tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found: dict[str, Any] = {"__name__": "docs"}

    for block in blocks(text_of("hub.md"), "python"):
        if "load_dataset" not in block:
            exec(compile(block, "hub.md", "exec"), found)

    assert found["batch"]["input_ids"].shape[1] == 4
    assert found["web_on_the_hub"]().metadata["commit"] == found["pushed"].commit
