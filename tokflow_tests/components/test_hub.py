"""Datasets of a hub as assets of Dagster."""

import pytest

from tokflow.components import decisions
from tokflow_tests.dagster_case import Case, Sensor, shown
from tokflow_tests.hub import Hub

KEYS = ["test.jsonl", "train.jsonl"]


@pytest.fixture
def automation(hub: Hub, case: Case, monkeypatch: pytest.MonkeyPatch) -> Sensor:
    """A dataset whose parts are the splits of its source, built."""
    monkeypatch.setattr(decisions, "CALM_SECONDS", 0.0)
    hub.push("team/texts", {"train.jsonl": b'{"text":"one"}', "test.jsonl": b'{"text":"two"}'})
    parts = {split: {"source_split": split} for split in ("train", "test")}
    case.attributes |= {"split": {"parts": parts}, "documents": {}, "automation": True}
    case.attributes["raw"] = {"files": "hf://datasets/team/texts", "split": ["train", "test"]}
    sensor = Sensor(case)
    assert sensor.settle() == ["small_build"]
    return sensor


def test_a_raw_file_of_the_hub_has_its_commit_and_its_splits_are_in_the_config(
    automation: Sensor, hub: Hub
):
    case = automation.case
    raw = case.event("raw", partition="train.jsonl")
    [spec] = [of for of in case.defs.resolve_all_asset_specs() if of.key.path[-1] == "raw"]

    assert case.partitions() == KEYS
    assert case.not_fresh() == {}
    assert "commit" in shown(raw.metadata["details"])
    assert raw.metadata["dagster/uri"].value == "hf://datasets/team/texts/train.jsonl"
    assert spec.metadata["config"].value == {
        "files": ["hf://datasets/team/texts"],
        "split": ["train", "test"],
    }


def test_a_moved_branch_is_built_once_and_only_what_is_new_in_it(automation: Sensor, hub: Hub):
    case = automation.case
    before = [case.data_version("tokens", partition=key) for key in KEYS]
    hub.push("team/texts", {"train.jsonl": b'{"text":"three"}', "README.md": b"# Texts"})

    jobs = automation.settle()

    after = [case.data_version("tokens", partition=key) for key in KEYS]
    assert jobs == ["small_build"]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False]
    assert case.not_fresh() == {}


def test_a_new_card_alone_asks_for_nothing(automation: Sensor, hub: Hub):
    hub.push("team/texts", {"README.md": b"# Texts"})

    assert automation.settle() == []


def test_a_hub_that_does_not_answer_stops_no_sensor(automation: Sensor, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")

    assert automation.tick() == []
    assert "expected an answer of http://127.0.0.1:1, found ConnectError" in automation.said
