import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from tokflow.cli.recorder import Recorder, RecorderError
from tokflow.cli.recording import record
from tokflow_tests.declared import TEXTS, dataset, declare, write_raw


def project_with(folder: Path) -> Path:
    """Return a project of its own that declares the small dataset."""
    project = folder / "project"
    (project / "tokflow/defs/small").mkdir(parents=True)
    write_raw(project, TEXTS)
    declare(project, exports=["bin"]).rename(project / "tokflow/defs/small/defs.yaml")
    return project


def test_what_a_run_builds_is_recorded_by_another_process(home: Path, tmp_path: Path):
    project = project_with(tmp_path)

    run = subprocess.run(
        [sys.executable, "-P", "-m", "tokflow", "run", "small"],
        capture_output=True,
        text=True,
        cwd=project,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr
    with dg.DagsterInstance.from_config(str(home)) as instance:
        key = dg.AssetKey(["small", "tokens"])
        assert len(instance.fetch_materializations(key, limit=100).records) == len(TEXTS)
        assert sorted(instance.get_dynamic_partitions("small_files")) == sorted(TEXTS)


def test_a_recorder_that_is_told_nothing_leaves_by_itself(home: Path):
    with Recorder("demo") as recorder:
        pass

    assert recorder._process.returncode == 0


def test_a_recorder_that_cannot_record_says_why(home: Path):
    with Recorder("nowhere") as recorder, pytest.raises(RecorderError, match="dataset 'nowhere'"):
        recorder.tell(["a.jsonl"])


def test_a_recorder_that_dies_is_a_warning_and_no_hang(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = dataset(tmp_path, exports=["bin"])

    with Recorder("demo") as recorder:
        recorder._process.kill()
        problems = record(made, [], {}, is_partial=False, is_new=True, recorder=recorder)

    assert problems == []
    assert "exit status -9" in capsys.readouterr().err
    assert not (made.folder / "recorded.json").exists()
