"""docs/hub.md does what it says; its code with `datasets` is run in `interop`."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from tokflow_tests.hub import Hub
from tokflow_tests.test_docs import blocks, text_of
from tokflow_tests.tiny import TEXTS, build, declare


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
