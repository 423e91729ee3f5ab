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


def test_a_moved_branch_is_built_once_and_only_what_is_new_in_it(
    automation: Sensor, hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    case = automation.case
    raw = case.event("raw", partition="train.jsonl")
    [spec] = [of for of in case.defs.resolve_all_asset_specs() if of.key.path[-1] == "raw"]
    before = [case.data_version("tokens", partition=key) for key in KEYS]

    hub.push("team/texts", {"README.md": b"# Texts"})
    of_card = automation.settle()
    hub.push("team/texts", {"train.jsonl": b'{"text":"three"}'})
    of_file = automation.settle()

    after = [case.data_version("tokens", partition=key) for key in KEYS]
    assert (of_card, of_file) == ([], ["small_build"])
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False]
    assert case.partitions() == KEYS
    assert case.not_fresh() == {}
    assert "commit" in shown(raw.metadata["details"])
    assert raw.metadata["dagster/uri"].value == "hf://datasets/team/texts/train.jsonl"
    assert spec.metadata["config"].value == {
        "files": ["hf://datasets/team/texts"],
        "split": ["train", "test"],
    }
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # a hub that does not answer
    assert automation.tick() == []
    assert "expected an answer of http://127.0.0.1:1, found ConnectError" in automation.said
