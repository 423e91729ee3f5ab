"""Checks after a build, and what is remembered of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit import checks
from tokflow.audit.checks import CHECKS, Checker
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.run import make_output
from tokflow_tests.tiny import build, copy_of, declare, write_texts

LICENCE = "a licence that stands at the head of every file"


FIELDS: dict[str, Any] = {
    "split": {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}},
    "exports": ["bin", "parquet"],
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    files = {f"{name}.jsonl": [f"one of {name}", f"two of {name}"] for name in "abc"}
    build(declare(folder, files, **FIELDS))
    return folder


@pytest.fixture
def dataset(template: Path, tmp_path: Path) -> Dataset:
    return declare(copy_of(template, tmp_path), **FIELDS)


def outputs(graph: BuildGraph, stage: Any) -> list[Output]:
    found = list(graph.outputs_of(stage, graph.partitions))
    return [of for of in found if of.name == "bin"] if stage == "export" else found


def computed(dataset: Dataset, *, recheck: bool = False) -> dict[str, int]:
    """Return how many outputs each check has looked at now, of those that were to be checked."""
    graph = graph_of(dataset)
    found = {}
    for stage in CHECKS:
        for outcome in Checker(graph, recheck=recheck).outcomes(stage, outputs(graph, stage)):
            num_new = outcome.num_checked - outcome.num_remembered
            found[f"{stage}/{outcome.name}"] = num_new
    return {name: num_new for name, num_new in found.items() if num_new}


def problems(dataset: Dataset, stage: str, name: str) -> list[str]:
    graph = graph_of(dataset)
    [outcome] = Checker(graph).outcomes(stage, outputs(graph, stage), only=[name])
    return outcome.problems


def tokens_bin(dataset: Dataset, key: str) -> Path:
    return graph_of(dataset).tokens(key).folder / "tokens.bin"


def test_what_passed_is_not_computed_again_by_the_same_version_of_the_checks(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    first = computed(dataset)

    again = computed(dataset)

    assert first == {
        "tokens/accounting_closes": 3,
        "tokens/equal_to_reference": 3,
        "split/accounting_closes": 3,
        "split/no_shared_text": 3,
        "sequences/accounting_closes": 3,
        "export/complete": 1,
        "export/has_all_files": 1,
    }
    assert again == {}
    assert computed(dataset, recheck=True) == first
    monkeypatch.setattr(checks, "CHECKS_VERSION", "2")
    assert computed(dataset) == first


def test_of_a_file_that_changed_its_own_outputs_are_checked_and_what_is_made_of_all(
    dataset: Dataset,
):
    computed(dataset)
    write_texts(dataset.base / "raw/b.jsonl", ["other", "texts"])
    build(dataset)

    assert computed(dataset) == {
        "tokens/accounting_closes": 1,
        "tokens/equal_to_reference": 1,
        "split/accounting_closes": 1,
        "split/no_shared_text": 3,
        "sequences/accounting_closes": 1,
        "export/complete": 1,
        "export/has_all_files": 1,
    }


def test_what_is_deleted_and_built_again_is_checked_again_with_all_that_is_made_of_it(
    dataset: Dataset,
):
    first = computed(dataset)
    shutil.rmtree(graph_of(dataset).output("sequences", "a.jsonl").folder)
    build(dataset)
    of_sequences = computed(dataset)
    shutil.rmtree(graph_of(dataset).tokens("a.jsonl").folder)
    build(dataset)

    again = computed(dataset)

    assert of_sequences == {"sequences/accounting_closes": 1}
    assert set(again) == set(first)
    assert again["sequences/accounting_closes"] == again["split/accounting_closes"] == 1


def test_damage_after_a_check_is_found_and_found_again(dataset: Dataset):
    computed(dataset)
    path = tokens_bin(dataset, "a.jsonl")
    content = path.read_bytes()
    path.write_bytes(b"\xff\xff" + content[2:])

    found = [problems(dataset, "tokens", "accounting_closes") for _ in range(2)]

    assert found[0] == found[1]
    assert "expected an id below vocab_size" in found[0][0]
    lines = (dataset.folder / "checks.jsonl").read_text().splitlines()
    assert len([line for line in lines if "vocab_size" in line]) == 1

    path.write_bytes(content)

    assert problems(dataset, "tokens", "accounting_closes") == []


def test_the_check_of_an_export_names_the_shard_that_is_damaged(dataset: Dataset):
    path = tokens_bin(dataset, "a.jsonl")
    path.write_bytes(b"x" + path.read_bytes()[1:])

    [found] = problems(dataset, "export", "complete")

    assert found.startswith(f"{path}: expected sha256 ")


def test_the_check_of_a_few_files_leaves_that_of_all_known_also_of_two_with_one_content(
    dataset: Dataset,
):
    write_texts(dataset.base / "raw/d.jsonl", ["one of a", "two of a"])
    build(dataset)
    computed(dataset)

    graph = graph_of(dataset)

    list(Checker(graph).outcomes("split", [graph.split("a.jsonl"), graph.split("b.jsonl")]))

    assert computed(dataset) == {}


def test_a_file_that_differs_from_the_reference_is_looked_at_again_in_every_sample(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "SAMPLED_FILES", 1)
    path = tokens_bin(dataset, "a.jsonl")  # the one that a sample of one takes
    path.write_bytes(b"x\0" + path.read_bytes()[2:])
    assert "a.jsonl:0: expected the tokens" in problems(dataset, "tokens", "equal_to_reference")[0]
    write_texts(dataset.base / "raw/Z.jsonl", ["sorted before a.jsonl", "two"])
    make_output(graph_of(dataset), "tokens", "Z.jsonl")

    [found] = problems(dataset, "tokens", "equal_to_reference")

    assert found.startswith("a.jsonl:0: expected the tokens")
