import json
from pathlib import Path

import dagster as dg
import pytest

from tokflow.build.pipeline import build_dataset
from tokflow.cli.recording import record
from tokflow_tests.declared import TEXTS, dataset

TOLD = {"tokens/a.jsonl": "1234"}


def num_records(home: Path) -> int:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        key = dg.AssetKey(["small", "tokens"])
        return len(instance.fetch_materializations(key, limit=100).records)


def test_what_was_built_is_recorded_once(home: Path, tmp_path: Path):
    made = dataset(tmp_path, exports=["bin"])
    build_dataset(made)

    for is_new in (True, False, True):
        problems = record(made, list(TEXTS), TOLD, is_partial=False, is_new=is_new)
        assert problems == []

    assert num_records(home) == 3
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert sorted(instance.get_dynamic_partitions("small_files")) == sorted(TEXTS)
    recorded = json.loads((made.folder / "recorded.json").read_text())
    assert recorded == {"instance": str(home), "outputs": TOLD, "problems": []}


def test_what_dagster_does_not_take_is_a_warning_and_tried_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made = dataset(tmp_path, exports=["bin"])
    build_dataset(made)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "missing"))

    problems = record(made, list(TEXTS), TOLD, is_partial=False, is_new=True)

    assert problems == []
    assert capsys.readouterr().err.startswith("warning: small: Dagster did not record this run (")
    assert not (made.folder / "recorded.json").exists()
