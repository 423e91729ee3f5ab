"""Events of a run: what each holds, and how they are entered."""

import threading
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import reports
from tokflow.components.instance import kept_open
from tokflow_tests.components.test_build_job import build
from tokflow_tests.dagster_case import KEYS, Case, failure, is_built, shown

EVENT = dg.AssetMaterialization("asset")


def test_events_of_many_files_hold_their_numbers_and_how_the_text_begins(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reports, "MANY_FILES", len(KEYS) - 1)

    assert (built := build(case)).success, failure(built)

    made = {of: case.event(of, partition="a.txt").metadata for of in ("raw", "tokens", "split")}
    drawn = {"num_documents", "num_chars", "num_bytes", "num_tokens", "bytes_per_token"}
    assert {of: found.keys() - {"megabytes_per_second"} for of, found in made.items()} == {
        "raw": {"num_bytes", "dagster/uri"},
        "tokens": {"summary", "preview", "dagster/uri", *drawn},
        "split": {"parts", "dagster/uri"},
    }
    assert shown(made["tokens"]["summary"])["tokens"] == "34"
    assert "details" in case.event("exports", "bin").metadata
    assert case.not_fresh() == {}


@is_built
def test_the_event_of_a_partition_is_one_of_the_runs_step(case: Case):
    case.write("b", "another text\n")
    result = case.run(keys=["b.txt"])

    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    entered = case.instance.all_logs(result.run_id, of_type=kind)
    tokens = case.event("tokens", partition="b.txt")

    assert {of.step_key for of in entered} == {"small_build_all"}
    assert [of.message for of in entered].count(str(tokens.description)) == 1


def test_files_of_events_are_opened_once_and_each_event_is_there_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        storage = instance.event_log_storage
        instance.report_runless_asset_event(EVENT)
        opened, connect = [], type(storage)._connect
        monkeypatch.setattr(
            type(storage), "_connect", lambda self, of: (opened.append(of), connect(self, of))[1]
        )
        with kept_open(instance):
            for number in range(2, 5):
                instance.report_runless_asset_event(EVENT)
                with dg.DagsterInstance.local_temp(str(tmp_path)) as other:
                    assert num_events(other) == number
                    if number == 2:
                        opened.clear()
            assert [of for of in opened if of != "index"] == []
            another = threading.Thread(target=instance.report_runless_asset_event, args=[EVENT])
            another.start()
            another.join()
        instance.report_runless_asset_event(EVENT)

        assert num_events(instance) == 6
        assert not {"run_connection", "index_connection", "has_table"} & vars(storage).keys()


def num_events(instance: dg.DagsterInstance) -> int:
    return len(instance.fetch_materializations(EVENT.asset_key, limit=100).records)
