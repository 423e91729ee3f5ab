"""The job that builds a dataset in one run, without a key named."""

from dataclasses import replace

import dagster as dg
import pytest

from tokflow.audit.checks import CHECKS
from tokflow.components import BuildOptions, run_build_job
from tokflow.pipeline import lines
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.raw import config as raw_config
from tokflow.store.listed_files import CARD_NAME
from tokflow_tests.dagster_case import KEYS, QUIET, Case, checks, failure, is_built, reported, shown
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
    monkeypatch.setattr(lines, "SECONDS", 0.0)
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
