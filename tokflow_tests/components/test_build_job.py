"""The job that builds a dataset in one run, without a key named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.audit.checks import CHECKS
from tokflow.components import BuildOptions, recorded_build, run_build_job
from tokflow.pipeline import run_log
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.pools import open_pool
from tokflow.pools.pool import Pool
from tokflow.raw import config as raw_config
from tokflow.store.listed_files import CARD_NAME
from tokflow_tests.dagster_case import (
    KEYS,
    QUIET,
    Case,
    Sensor,
    checks,
    failure,
    is_built,
    is_registered,
    reported,
    shown,
)
from tokflow_tests.wrong_engine import use_wrong_engine

Result = dg.ExecuteInProcessResult


def test_one_run_builds_everything_of_a_dataset_that_dagster_has_never_seen(
    built_by: tuple[Case, Result],
):
    case, result = built_by

    assert result.success, failure(result)
    assert case.partitions() == KEYS
    assert all(not made.is_new for made in build_dataset(case.dataset).made)
    assert case.not_fresh() == {}
    assert reported(case, result) == {
        "raw": 3,
        "files": 2,
        "tokenizer": 1,
        "tokens": 3,
        "split": 3,
        "sequences": 3,
        "exports/bin": 1,
        "exports/parquet": 1,
    }
    evaluations = checks(result)
    assert sorted((of.asset_key.path[1], of.check_name) for of in evaluations) == [
        *[("exports", "complete")] * 2,
        *[("exports", "has_all_files")] * 2,
        ("sequences", "accounting_closes"),
        ("split", "accounting_closes"),
        ("split", "no_shared_text"),
        ("tokens", "accounting_closes"),
        ("tokens", "equal_to_reference"),
    ]
    assert all(evaluation.passed for evaluation in evaluations)
    tags = case.instance.get_run_by_id(result.run_id).tags
    assert [of for of in tags if "tokflow" in of and not of.startswith(".dagster/")] == []


def test_the_log_of_a_first_build_counts_raw_files_and_proposes_groups(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_log, "SECONDS", 0.0)
    monkeypatch.setattr(raw_config, "MANY_FILES", 3)

    result = case.job()

    said = [of.user_message for of in case.instance.all_logs(result.run_id)]
    recorded = [line for line in said if line.startswith("raw: ") and line.endswith(" recorded")]
    assert recorded == [f"raw: {number} of 3 files recorded" for number in (1, 2, 3)]
    assert sum("`raw: {group: 250}` makes 1" in line for line in said) == 1


def test_the_job_has_all_assets_and_some_of_them_can_be_chosen(built: Case):
    job, key = built.defs.resolve_job_def("small_build"), dg.AssetKey(["small", "tokens"])
    graph = built.defs.resolve_asset_graph()

    assert set(job.asset_layer.selected_asset_keys) == graph.get_all_asset_keys()
    some = job.get_subset(asset_selection={key})
    result = some.execute_in_process(QUIET, instance=built.instance, partition_key="a.txt")
    assert reported(built, result) == {"tokens": 1}


@is_built
def test_after_a_change_what_came_of_it_is_reported_and_no_more(case: Case):
    case.write("b", "other\ntext\nhere\n")
    case.remove("c")
    case.write("d", "new\n")

    result = case.job()

    assert reported(case, result) == {
        "raw": 2,
        "files": 2,
        "tokens": 2,
        "split": 2,
        "sequences": 2,
        "exports/bin": 1,
        "exports/parquet": 1,
    }
    assert case.partitions() == ["a.txt", "b.txt", "d.txt"]
    assert case.not_fresh() == {}


def test_damage_fails_the_run_until_it_is_mended(case: Case):
    build_dataset(case.dataset)
    path = graph_of(case.dataset).tokens("a.txt").folder / "tokens.bin"
    content = path.read_bytes()
    path.write_bytes(b"\xff\xff" + content[2:])

    results = [case.job(), case.job()]

    for result in results:
        assert "small/tokens: " in failure(result)
        assert "expected an id below vocab_size 258" in failure(result)
    assert reported(case, results[1]) == {"files": 1, "tokenizer": 1}  # else they would be red

    path.write_bytes(content)

    assert case.job().success


@is_built
def test_where_a_check_fails_no_export_is_made(case: Case, monkeypatch: pytest.MonkeyPatch):
    latest = case.dataset.folder / "exports/parquet/latest"
    before = latest.resolve()
    case.write("b", "other\ntext\nhere\n")

    wrong = replace(CHECKS["tokens"]["accounting_closes"], find=lambda *_: ["wrong"])
    with monkeypatch.context() as patch:
        patch.setitem(CHECKS["tokens"], "accounting_closes", wrong)
        result = case.job()

    assert "small/tokens: wrong" in failure(result)
    assert graph_of(case.dataset).output("sequences", "b.txt").is_made
    assert latest.resolve() == before
    assert {"exports/bin", "exports/parquet"} == set(case.not_fresh())

    assert reported(case, case.job()) == {"exports/bin": 1, "exports/parquet": 1}
    assert latest.resolve() != before


def test_a_run_that_was_killed_before_its_checks_leaves_them_to_the_next(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tokflow.components.recorded_build.Checker", killed)
        first = case.job()

    assert set(case.not_fresh()) == {"exports/bin", "exports/parquet"}
    assert checks(first) == []
    evaluations = checks(case.job())

    assert len(evaluations) == 9
    assert all(of.metadata["num_remembered"].value == 0 for of in evaluations)


def test_what_was_built_outside_of_dagster_is_adopted_with_the_checks_that_passed(
    built: Case, monkeypatch: pytest.MonkeyPatch
):
    with dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setattr(built, "instance", instance)
        result = built.job()
        details = shown(built.event("tokens", partition="b.txt").metadata["details"])

        assert built.not_fresh() == {}
        assert sum(reported(built, result).values()) == 3 * 4 + 2 + 2
    assert details["made by this run"] == "no"
    evaluations = checks(result)
    assert len(evaluations) == 9
    for of in evaluations:
        assert of.passed
        assert of.metadata["num_remembered"] == of.metadata["num_checked"]


@is_built
def test_with_recheck_everything_is_computed_and_reported(case: Case):
    graph = graph_of(case.dataset, offline=True)

    recorded = run_build_job(case.instance, graph, BuildOptions(recheck=True))

    assert recorded.failure is None
    summary = case.instance.get_runs(limit=1)[0]
    records = case.instance.all_logs(summary.run_id)
    found = [log.dagster_event.event_specific_data for log in records if log.dagster_event]
    checks = [data for data in found if isinstance(data, dg.AssetCheckEvaluation)]
    assert len(checks) == 9
    assert all(check.metadata["num_remembered"].value == 0 for check in checks)


def test_after_a_verdict_on_gigatoken_and_after_a_new_file_everything_is_fresh(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    use_wrong_engine(monkeypatch)
    case.attributes["tokenizer"] = {"kind": "trained", "vocab_size": 257}  # no merges
    case.write("a", "strange\nx\ny\nz\nu\nv\n")  # whose first line is not compared
    case.write("b", "strange\n")

    result = case.job()

    assert result.success, failure(result)
    assert case.not_fresh() == {}
    graph = graph_of(case.dataset)
    assert [case.data_version("tokens", partition=key) for key in KEYS] == [
        graph.tokens(key).fingerprint for key in KEYS
    ]
    case.write("d", "new\n")  # of which the tokenizer that is trained on it is no other
    case.job()
    assert case.not_fresh() == {}


def test_with_offsets_over_the_dataset_everything_is_fresh_after_a_file_changed(case: Case):
    case.attributes["split"] = {"scope": "dataset", "parts": {"train": {"documents": 20}}}
    case.job()
    case.write("c", "other\ntext\nhere\n")  # as many documents: the split of the others stays

    result = case.job()

    assert case.not_fresh() == {}
    assert reported(case, result)["split"] == 3


def test_what_a_transform_leaves_out_is_reported_and_its_source_is_a_code_version(case: Case):
    source = "def ordinals(text):\n    return None if 'second' in text else text\n"
    (case.folder / "clean.py").write_text(source)
    case.attributes["documents"]["transform"] = "clean:ordinals"
    result = case.job()
    assert result.success, failure(result)
    assert all(evaluation.passed for evaluation in checks(result))
    event = case.event("tokens", partition="a.txt")

    (case.folder / "clean.py").write_text(f"{source}# edited\n")

    assert event.metadata["num_left_out"].value == 1
    assert shown(event.metadata["details"])["records"] == "3"
    assert "1 record left out" in (event.description or "")
    assert "tokens" in str(case.not_fresh())


def test_tokens_go_after_the_checks_and_later_runs_find_nothing_wrong(case: Case):
    case.attributes["keep"] = "exports"

    for _ in range(2):
        result = case.job()
        assert result.success
        assert all(of.passed for of in checks(result))

    assert list((case.folder / "store/small/tokens").rglob("*.bin")) == []
    assert case.not_fresh() == {}


def test_a_run_writes_cards_and_another_licence_reports_nothing(case: Case):
    case.attributes["card"] = {"license": "mit"}
    case.job()
    cards = [case.dataset.folder / f"exports/{of}/latest/{CARD_NAME}" for of in ("bin", "parquet")]
    assert all("license: mit" in of.read_text() for of in cards)
    case.attributes["card"] = {"license": "odc-by"}

    result = case.job()

    assert reported(case, result) == {}
    assert all("license: odc-by" in of.read_text() for of in cards)
    assert case.not_fresh() == {}


@is_registered
def test_a_run_s_config_says_how_many_processes_work_and_nothing_is_written_where_it_says(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[Any, ...]] = []

    def open_asked(*of_config: Any) -> Pool:
        asked.append(of_config)
        return open_pool(1, "local")  # that no byte depends on their number pipeline/test_jobs says

    monkeypatch.setattr(recorded_build, "open_pool", open_asked)
    resources = {
        "tokflow_workers": {"config": {"jobs": 2, "pool": "local"}},
        "io_manager": {"config": {"base_dir": str(case.folder / "elsewhere")}},
    }

    result = case.run(keys=KEYS, config={"resources": resources})

    assert result.success, failure(result)
    assert set(asked) == {(2, "local")}
    assert not (case.folder / "elsewhere").exists()


def test_builds_which_take_all_cores_wait_for_their_like(case: Case):
    [assets] = case.defs.assets or ()

    assert set(assets.op.pools) == {"tokflow"}
    config = yaml.safe_load((Path(__file__).parents[2] / "dagster.yaml").read_text())
    assert config["concurrency"]["pools"] == {"granularity": "run", "default_limit": 1}


def leaves(schema: Any, *path: str) -> dict[str, str]:
    """Return the kind of each value that a config may have, by its path."""
    fields = getattr(schema, "fields", None)
    if not fields:
        return {".".join(path): schema.kind.name}
    return {
        name: kind
        for key, field in fields.items()
        for name, kind in leaves(field.config_type, *path, key).items()
    }


def test_a_run_s_config_says_no_more_than_how_many_processes_work_and_where(case: Case):
    jobs = case.defs.get_repository_def().get_all_jobs()

    found = {job.name: leaves(job.run_config_schema.config_type) for job in jobs}

    assert {"__ASSET_JOB", "small_build", "small_scan"} <= set(found)
    for name, kinds in found.items():
        # A job of assets takes an empty config for a step, and an op of a job any, unread.
        own = {path for path, kind in kinds.items() if kind not in ("ANY", "STRICT_SHAPE")}
        own = {path for path in own if path.split(".")[0] not in ("execution", "loggers")}
        of_dagster = "resources.io_manager.config.base_dir"  # for values; steps have none
        ours = {f"resources.tokflow_workers.config.{field}" for field in ("jobs", "pool")}
        assert own <= {*ours, of_dagster}, name


@is_registered
def test_no_variable_of_the_environment_comes_into_a_run_by_its_config(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "hunter2")
    secret = {"env": "SECRET"}
    workers = [
        {"resources": {"tokflow_workers": {"config": {field: secret}}}}
        for field in ("jobs", "pool")
    ]

    for config in (*workers, {"ops": {"small_build_all": {"config": secret}}}):
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            case.run(keys=KEYS, config=config)
        assert "hunter2" not in str(refused.value)
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            case.defs.resolve_job_def("small_build").execute_in_process(config)
        assert "hunter2" not in str(refused.value)


def settled(case: Case, **attributes: Any) -> Sensor:
    """Return the sensor of a dataset that the job has built."""
    case.attributes |= {"split": {"parts": {"train": {"start": 0}}}, **attributes}
    assert case.job().success
    sensor = Sensor(case)
    assert sensor.settle() == []
    assert case.not_fresh() == {}
    return sensor


def num_kept(case: Case) -> list[int]:
    """Return the documents that are kept of each file."""
    kept = (case.event("selection", partition=of).metadata["num_documents"] for of in KEYS)
    return [of.value for of in kept]


def test_what_a_list_names_is_an_asset_and_another_list_is_built_by_the_sensor(case: Case):
    def write(*rows: str) -> None:
        Path(case.folder, "list.csv").write_text("\n".join(["file,row,reason", *rows, ""]))

    def counts() -> tuple[int, int, list[int]]:
        found = case.event("exclusion").metadata
        return found["num_documents"].value, found["num_list_rows"].value, num_kept(case)

    write("a.txt,1,asked", "b.txt,7,asked")
    sensor = settled(case, exclude="list.csv", automation=True)
    assert counts() == (1, 2, [2, 3, 3])

    write("a.txt,1,asked", "b.txt,0,asked", "b.txt,2,asked")

    assert sensor.settle() == ["small_build"]
    assert case.not_fresh() == {}
    assert counts() == (3, 3, [2, 1, 3])


def test_pairs_of_all_files_are_an_asset_between_those_of_each(case: Case):
    def counts() -> tuple[int, int]:
        pairs = case.event("near_duplicates").metadata["num_pairs"].value
        return pairs, sum(num_kept(case))

    near = {"threshold": 0.4, "ngram": 3}
    sensor = settled(case, near_duplicates=near, select="not near_duplicate", automation=True)
    assert counts() == (9, 3)

    case.write("b", "first of b\nnothing like it\n")

    assert sensor.settle() == ["small_build"]
    assert case.not_fresh() == {}
    assert counts() == (5, 4)


def test_the_keep_rate_of_each_file_is_drawn_also_where_nothing_is_kept(case: Case):
    case.attributes |= {"select": "file != 'a.txt'", "split": {"parts": {"train": {"start": 0}}}}
    assert case.job().success

    rates = [case.event("selection", partition=key).metadata["kept_fraction"] for key in KEYS]

    assert [of.value for of in rates] == [0.0, 1.0, 1.0]
