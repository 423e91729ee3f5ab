"""What is built outside of Dagster is in its history as if it had been built in a run."""

import os
from pathlib import Path

import dagster as dg
import pytest

from tokflow.build.graph import BuildGraph
from tokflow.build.pipeline import build_dataset
from tokflow.components import RecordedBuild, open_instance, record_build, sync_files
from tokflow_tests.dagster_case import RANGE, Case, selection

KEYS = ["a.txt", "b.txt", "c.txt"]


def test_what_was_built_is_fresh_and_no_run_was_launched(case: Case):
    build_dataset(case.dataset)

    record_build(case.instance, case.dataset, KEYS)

    assert case.not_fresh() == {}
    assert case.partitions() == KEYS
    assert case.instance.get_runs_count() == 0


def test_a_second_record_adds_nothing(case: Case):
    build_dataset(case.dataset)
    sync_files(case.instance, case.dataset)
    first = record_build(case.instance, case.dataset, KEYS)

    second = record_build(case.instance, case.dataset, KEYS)

    assert first == RecordedBuild(num_materializations=3 * 3 + 1 + 2, problems=(), warnings=())
    assert second == RecordedBuild(num_materializations=0, problems=(), warnings=())


def test_a_record_says_the_same_as_a_run(case: Case):
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)
    recorded = case.event("tokens", partition="b.txt")
    export = case.event("exports", "bin")

    case.run(keys=KEYS)

    in_run = case.event("tokens", partition="b.txt")
    assert set(in_run.metadata) == set(recorded.metadata)
    assert set(in_run.tags or ()) == set(recorded.tags or ())
    assert set(case.event("exports", "bin").metadata) == set(export.metadata)


def test_after_a_change_only_what_was_made_anew_is_recorded(case: Case):
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)
    case.write("b", "other\ntext\nhere\n")
    build_dataset(case.dataset)

    recorded = record_build(case.instance, case.dataset, KEYS)

    # raw, tokens, split and sequences of b, the list of files, two exports
    assert recorded.num_materializations == 4 + 1 + 2
    assert case.not_fresh() == {}


def test_what_changes_after_a_record_is_stale(case: Case):
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)
    case.write("b", "other\ntext\nhere\n")

    sync_files(case.instance, case.dataset)

    assert case.not_fresh() == {
        "tokens:b.txt": "STALE",
        "exports/bin": "STALE",
        "exports/parquet": "STALE",
    }


def test_another_config_is_recorded_with_its_code_version(case: Case):
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)
    case.attributes["packing"] = {"sequence_length": 8}
    build_dataset(case.dataset)

    recorded = record_build(case.instance, case.dataset, KEYS)

    assert recorded.num_materializations == 3 + 1  # sequences, and the export made of them
    assert case.not_fresh() == {}


def test_a_trained_tokenizer_that_did_not_change_is_fresh_after_a_new_file(case: Case):
    case.attributes["tokenizer"] = {"kind": "trained", "vocab_size": 257}  # no merges
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)
    case.write("d", "new\n")
    build_dataset(case.dataset)

    record_build(case.instance, case.dataset, [*KEYS, "d.txt"])

    assert case.not_fresh() == {}


def test_files_that_do_not_lie_side_by_side_are_recorded(case: Case):
    build_dataset(case.dataset, partitions=["a.txt", "c.txt"])

    record_build(case.instance, case.dataset, ["a.txt", "c.txt"])

    graph = BuildGraph(case.dataset)
    assert case.data_version("tokens", partition="c.txt") == graph.tokens("c.txt").fingerprint
    assert case.partitions() == ["a.txt", "c.txt"]
    assert case.not_fresh() == {"exports/bin": "MISSING", "exports/parquet": "MISSING"}


def test_with_offsets_over_the_dataset_a_part_of_it_is_recorded_as_far_as_it_is(case: Case):
    case.attributes["split"] = {"scope": "dataset", "parts": {"train": {"characters": 9}}}
    build_dataset(case.dataset, partitions=["a.txt"])

    record_build(case.instance, case.dataset, ["a.txt"])

    assert "tokens:a.txt" not in case.not_fresh()
    assert case.not_fresh()["split:a.txt"] == "MISSING"


def test_damage_is_a_problem_and_a_failed_check(case: Case):
    build_dataset(case.dataset)
    folder = BuildGraph(case.dataset).tokens("a.txt").folder
    (folder / "tokens.bin").write_bytes(b"\xff\xff" + (folder / "tokens.bin").read_bytes()[2:])

    recorded = record_build(case.instance, case.dataset, KEYS)

    assert "expected an id below vocab_size 258" in recorded.problems[0]
    key = dg.AssetCheckKey(dg.AssetKey(["small", "tokens"]), "accounting_closes")
    latest = case.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
    assert latest[key].status.value == "FAILED"


def test_the_instance_is_the_one_of_the_project_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    project.mkdir()
    (project / "dagster.yaml").write_text("storage: {sqlite: {base_dir: state}}\n")
    monkeypatch.setattr("tokflow.components.instance.project_root", lambda: project)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)

    with open_instance() as instance:
        instance.add_dynamic_partitions("files", ["a"])

    assert (project / "state" / "history" / "runs.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["project"]
    assert dict(os.environ) == before
    with open_instance() as instance:
        assert list(instance.get_dynamic_partitions("files")) == ["a"]


def test_dagster_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    with open_instance() as instance:
        assert instance.root_directory == str(tmp_path)


def test_a_range_in_a_run_is_recorded_after_what_was_recorded_without_one(case: Case):
    build_dataset(case.dataset)
    record_build(case.instance, case.dataset, KEYS)

    result = case.run(selection("tokens"), keys=KEYS)

    assert result.dagster_run.tags[RANGE[0]] == "a.txt"
    assert case.not_fresh() == {}
