import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.build.pipeline import build_dataset
from tokflow.cli.recording import dagster_process, record
from tokflow_tests.tiny import TEXTS, declare_small, write_raw, write_yaml


def project_with(folder: Path) -> Path:
    """Return a project of its own that declares the small dataset."""
    project = folder / "project"
    (project / "tokflow/defs/small").mkdir(parents=True)
    write_raw(project, TEXTS)
    write_yaml(project, exports=["bin"]).rename(project / "tokflow/defs/small/defs.yaml")
    return project


def outputs(*, is_new: bool) -> list[dict[str, Any]]:
    """Return some outputs as the JSON of a run has them."""
    of_file = {"stage": "sequences", "fingerprint": "1234", "is_new": is_new}
    return [{**of_file, "name": key} for key in TEXTS]


def num_records(home: Path) -> int:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        key = dg.AssetKey(["small", "tokens"])
        return len(instance.fetch_materializations(key, limit=100).records)


def test_what_was_built_is_recorded_once(home: Path, tmp_path: Path):
    made = declare_small(tmp_path, exports=["bin"])
    build_dataset(made)

    for is_new in (True, False, True):
        assert record(made, outputs(is_new=is_new), is_partial=False) == []

    assert num_records(home) == 3
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert sorted(instance.get_dynamic_partitions("small_files")) == sorted(TEXTS)
    recorded = json.loads((made.folder / "recorded.json").read_text())
    assert recorded == {
        "instance": str(home),
        "outputs": {f"sequences/{key}": "1234" for key in TEXTS},
        "problems": [],
    }


def test_what_dagster_does_not_take_is_a_warning_and_tried_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made = declare_small(tmp_path, exports=["bin"])
    build_dataset(made)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "missing"))

    problems = record(made, outputs(is_new=True), is_partial=False)

    assert problems == []
    assert capsys.readouterr().err.startswith("warning: small: Dagster did not record this run (")
    assert not (made.folder / "recorded.json").exists()


def test_what_a_run_builds_is_recorded_by_another_process(home: Path, tmp_path: Path):
    project = project_with(tmp_path)

    run = subprocess.run(
        [sys.executable, "-P", "-m", "tokflow", "run", "small", "--json"],
        capture_output=True,
        text=True,
        cwd=project,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr
    assert json.loads(run.stdout)["datasets"][0]["problems"] == []
    assert num_records(home) == len(TEXTS)


def test_a_process_that_cannot_record_says_why(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = declare_small(tmp_path, exports=["bin"])  # of which nothing is built
    (home / "dagster.yaml").write_text("storage: {nonsense: {}}\n")

    with dagster_process() as process:
        problems = record(made, outputs(is_new=True), is_partial=False, process=process)

    assert problems == []
    assert "nonsense" in capsys.readouterr().err


def test_a_process_that_dies_is_a_warning_and_no_hang(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = declare_small(tmp_path, exports=["bin"])

    with dagster_process() as process:
        for child in process._processes.values():
            child.kill()
        problems = record(made, outputs(is_new=True), is_partial=False, process=process)

    assert problems == []
    assert "terminated abruptly" in capsys.readouterr().err
    assert not (made.folder / "recorded.json").exists()


def test_a_process_ends_with_the_one_that_started_it(home: Path, tmp_path: Path):
    code = (
        "import os, signal\n"
        "from tokflow.cli.recording import dagster_process\n"
        "if __name__ == '__main__':\n"
        "    with dagster_process() as process:\n"
        "        print(process.submit(os.getpid).result(), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "killed.py").write_text(code)

    # The process has stderr open, so this does not return before it has ended.
    killed = subprocess.run(
        [sys.executable, tmp_path / "killed.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert killed.returncode == -signal.SIGKILL
    assert int(killed.stdout) > 1, killed.stderr
