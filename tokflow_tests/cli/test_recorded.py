"""`tokflow run` of a declared dataset: a run of Dagster in this process."""

import json
import os
import shutil
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from typer.testing import Result

from tokflow.cli.recorded import is_recorded, note_recorded
from tokflow.components import make_definitions, recorded_build
from tokflow.components.instance import PROCESS_TAG
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import refused, run
from tokflow_tests.cli.test_imports import BY_PARQUET, HEAVY, modules_of, other_formats
from tokflow_tests.projects import declare_in, load_declared, make_project
from tokflow_tests.tiny import FEW_TEXTS, SMALL, TEXTS, declare_small, write_raw, write_yaml


def project_with(folder: Path) -> Path:
    """Return a project of its own that declares the small dataset."""
    project = make_project(folder / "project")
    write_raw(project, TEXTS)
    declare_in(project, "small", {**SMALL, "exports": ["bin"], "report": False})
    return project


@pytest.fixture
def project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = project_with(tmp_path)
    monkeypatch.chdir(project)
    return project


@pytest.fixture(scope="module")
def first_run(
    empty_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Result]:
    """A home, a project in it and its first run, which tests look at and go on from."""
    home = Path(shutil.copytree(empty_home, tmp_path_factory.mktemp("own") / "home"))
    project = project_with(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        patch.chdir(project)
        return home, project, run("run", "small")


@pytest.fixture
def built(first_run: tuple[Path, Path, Result], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project that was run once, which one stands in. Nobody leaves it changed."""
    home, project, _ = first_run
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(project)
    return project


def runs(home: Path) -> list[dg.DagsterRun]:
    """Return all runs, the newest first."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return list(instance.get_runs())


def num_tokens_recorded(home: Path) -> int:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        key = dg.AssetKey(["small", "tokens"])
        return len(instance.fetch_materializations(key, limit=100).records)


def test_a_run_is_a_run_of_the_job_with_the_display_of_a_terminal(
    first_run: tuple[Path, Path, Result],
):
    home, _, result = first_run

    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "small: tokens a.jsonl: 4 documents, 29 tokens, " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("small: 8 outputs new, 0 up to date (")
    recorded = runs(home)[-1]
    assert (recorded.job_name, recorded.status.value) == ("small_build", "SUCCESS")
    assert num_tokens_recorded(home) == len(TEXTS)


@pytest.mark.usefixtures("built")
def test_where_nothing_is_to_do_dagster_is_not_imported(first_run: tuple[Path, Path, Result]):
    home, _, _ = first_run
    before = len(runs(home))

    unneeded = HEAVY | BY_PARQUET | other_formats("bin")
    assert modules_of("run", "small") & unneeded == set()
    assert len(runs(home)) == before


def test_a_run_records_what_was_built_without_dagster_and_ends_one_that_was_killed(
    home: Path, project: Path
):
    dataset = load_declared("small")
    build_dataset(dataset)
    assert runs(home) == []
    with dg.DagsterInstance.from_config(str(home)) as instance:
        run_id = str(uuid.uuid4())
        gone = f"{run_id} {socket.gethostname()} another-boot machine 1"
        job = make_definitions(dataset).resolve_job_def("small_build")
        started = dg.DagsterRunStatus.STARTED
        instance.create_run_for_job(job, run_id=run_id, status=started, tags={PROCESS_TAG: gone})

    result = run("run", "small")

    # A run that takes seconds, on a busy machine, tells how far it is in lines before.
    closing = result.stdout.splitlines()[-1]
    assert closing.startswith("small: nothing to do: 8 outputs of 3 files ")
    assert num_tokens_recorded(home) == len(TEXTS)
    assert [of.status.value for of in runs(home)] == ["SUCCESS", "FAILURE"]


def test_what_a_recheck_finds_is_a_problem_of_every_run_until_it_is_fixed(built: Path):
    [path] = built.glob("store/small/tokens/a.jsonl/*/tokens.bin")
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(b"\xff\xff" + content[2:])

    result = run("run", "small", "--recheck")

    assert result.exit_code == 1
    assert "small/tokens: " in result.stderr
    assert "expected an id below vocab_size" in result.stderr
    assert "nothing to do" not in result.stdout
    assert run("run", "small").exit_code == 1

    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    fixed = run("run", "small", "--recheck")
    assert fixed.exit_code == 0
    assert fixed.stdout.endswith("all checks were computed again and found nothing wrong\n")


def test_a_history_that_cannot_be_opened_is_an_error_with_a_way_out(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "missing"))

    said = refused("run", "small")

    assert said.startswith("error: the history of Dagster: ")
    assert "`tokflow run --config FILE`" in said


def test_one_partition_is_recorded_alone_and_a_bad_file_makes_a_failed_run(
    home: Path, project: Path
):
    run("run", "small", "--partition", "a.jsonl")
    assert num_tokens_recorded(home) == 1
    (project / "raw/b.jsonl").write_text('{"text": 5}\n')

    result = run("run", "small", "--json")

    assert result.exit_code == 1
    assert result.stderr.count("error: ") == 1
    assert "b.jsonl, row 0" in result.stderr
    [document] = json.loads(result.stdout)["datasets"]
    assert [failed["name"] for failed in document["failed"]] == ["b.jsonl"]
    assert runs(home)[0].status.value == "FAILURE"
    assert num_tokens_recorded(home) == 2


def test_a_note_is_of_these_outputs_in_this_instance(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare_small(tmp_path, exports=["bin"])
    build_dataset(dataset)
    outputs = [of.output for of in make_plan(dataset).planned]
    assert not is_recorded(dataset, outputs)

    note_recorded(dataset, outputs)

    assert is_recorded(dataset, outputs[::-1])
    assert not is_recorded(dataset, outputs[1:])
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert not is_recorded(dataset, outputs)


@pytest.mark.usefixtures("built")
def test_a_run_that_is_told_to_end_does_and_dagster_knows(
    first_run: tuple[Path, Path, Result], monkeypatch: pytest.MonkeyPatch
):
    end = signal.SIGTERM
    monkeypatch.setattr(recorded_build, "Build", lambda *_, **__: signal.raise_signal(end))

    result = run("run", "small", "--recheck")

    assert result.stderr == "error: interrupted; finished outputs stay, run again to go on\n"
    assert result.exit_code == 143
    assert runs(first_run[0])[0].status.value == "FAILURE"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_end_leaves_nothing_half_written(
    number: signal.Signals, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[Path] = []

    def write(_: Any, share: None, folder: Path, progress: Any) -> None:
        written.append(folder / "tokens.bin")
        written[-1].write_bytes(b"half")
        signal.raise_signal(number)

    monkeypatch.setattr("tokflow.tokens.stage.TokensWriter.write", write)
    write_raw(tmp_path, {"a.jsonl": FEW_TEXTS})

    result = run("run", "--config", write_yaml(tmp_path))

    assert len(written) == 1
    assert result.stderr == "error: interrupted; finished outputs stay, run again to go on\n"
    assert result.exit_code == status
    assert not list(tmp_path.rglob("tokens.bin"))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_told_to_end_while_it_is_imported_says_so(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.cli.app.import_module", lambda _: signal.raise_signal(number))

    result = run("formats")

    assert result.stderr == "error: interrupted; finished outputs stay, run again to go on\n"
    assert result.exit_code == status
