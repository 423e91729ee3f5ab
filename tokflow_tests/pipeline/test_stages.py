"""A stage that the product does not know enters by its own module, and the tuple of stages."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.components import make_definitions
from tokflow.components.text_dataset import TextDataset
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.stages import STAGES
from tokflow.pipeline.yaml_schema import yaml_schema
from tokflow.record.receipt import check_rebuilt, statement_of
from tokflow.stage import DatasetConfig, Input, Making, Stage, WholeWriter, Writer
from tokflow.store.config import Config, Listed
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.tokens.shard import TokenShard
from tokflow_tests import min_characters
from tokflow_tests.dagster_case import QUIET
from tokflow_tests.min_characters import MinCharactersStage, write_selection
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import TINY, build, declare, write_raw

MORE = (*STAGES[:2], MinCharactersStage(), *STAGES[2:])
LONG = {"a.jsonl": ["three", "seven"], "b.jsonl": ["eight"]}
ALL = {"a.jsonl": ["three", "one", "seven", "six"], "b.jsonl": ["two", "eight", ""]}
FORMS: dict[str, Any] = {
    "cut": {"boundary": "character", "parts": {"x": {"characters": 7}, "y": {"start": 7}}},
    "documents": {"parts": {"x": {"documents": 1}, "y": {"start": 1}}},
    "drawn": {"parts": {"x": {"fraction": 0.5}, "y": {"fraction": 0.5}}},
}


def declared(folder: Path, *, least: int = 4, **attributes: Any) -> Dataset:
    write_raw(folder, ALL)
    fields = {**TINY, "exports": ["bin"], "min_characters": {"least": least}, **attributes}
    return make_dataset(fields, base=folder, where="test", stages=MORE)


def tokens_of(dataset: Dataset) -> dict[str, list[int]]:
    folder = graph_of(dataset).named("export", "bin").open()
    folder.fetch()
    parts = dataset.split.parts
    files = {part: folder.folder / f"{part}.bin" for part in parts}
    return {of: np.fromfile(at, np.uint16).tolist() for of, at in files.items() if at.exists()}


@pytest.mark.parametrize(
    ("form", "scope"),
    [("cut", "file"), ("cut", "dataset"), ("documents", "dataset"), ("drawn", "file")],
)
def test_what_a_selection_leaves_out_is_in_no_part_and_counts_for_none(
    tmp_path: Path, form: str, scope: str
):
    split = {**FORMS[form], "scope": scope}
    selected = declared(tmp_path / "selected", split=split)
    alone = declare(tmp_path / "alone", LONG, split=split, exports=["bin"])

    assert not build(selected).failed
    assert not build(alone).failed

    assert sum(map(len, tokens_of(alone).values())) >= 18
    assert tokens_of(selected) == tokens_of(alone)
    assert problems_of(selected) == []


def test_its_section_has_a_default_and_another_value_makes_its_own_outputs_and_no_token(
    tmp_path: Path,
):
    without = make_dataset({**TINY, "exports": ["bin"]}, base=tmp_path, where="test", stages=MORE)
    write_raw(tmp_path, ALL)
    plain = make_dataset({**TINY, "exports": ["bin"]}, base=tmp_path, where="test")
    build(plain)

    assert make_plan(without).is_up_to_date

    build(declared(tmp_path))
    reasons = {of.output.title: of.reason for of in make_plan(declared(tmp_path, least=5)).missing}

    assert reasons["min_characters of a.jsonl"] == "config changed (least: 4 to 5)"
    assert reasons["split of a.jsonl"] == "input changed (min_characters)"
    assert {title.split()[0] for title in reasons} == {"min_characters", "split", "export"}


def test_it_is_verified_by_being_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = declared(tmp_path)
    build(dataset)
    output = graph_of(dataset).output("min_characters", "a.jsonl")
    [found] = list(verify_path(output.folder, stages=MORE))
    assert (found.problems, len(found.notes)) == ((), 1)

    monkeypatch.setattr(min_characters, "write_selection", _write_another)
    problems = {of.name: of.problems for of in verify_dataset(dataset) if of.problems}
    assert "as made again" in problems["min_characters of a.jsonl"][0]


def _write_another(shard: TokenShard, least: int, recipe: Recipe, folder: Path) -> None:
    write_selection(shard, least + 2, recipe, folder)


def test_a_store_that_is_verified_without_it_says_what_was_not_made_again(tmp_path: Path):
    build(declared(tmp_path))

    found = {of.name: of for of in verify_path(tmp_path / "store")}

    assert [of.problems for of in found.values() if of.problems] == []
    assert found["split of a.jsonl"].notes == (
        "it was made with min_characters, unknown here: not made again",
    )


def test_it_is_an_asset_with_its_parents_that_the_build_job_records(tmp_path: Path):
    dataset = declared(tmp_path)
    definitions = make_definitions(dataset)
    parents = {
        "/".join(spec.key.path[1:]): {"/".join(of.asset_key.path[1:]) for of in spec.deps}
        for spec in definitions.resolve_all_asset_specs()
    }

    assert parents["min_characters"] == {"tokens"}
    assert parents["split"] == {"tokens", "min_characters"}

    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("tiny_build")
        assert job.execute_in_process(instance=instance, run_config=QUIET).success
        key = dg.AssetKey(["tiny", "min_characters"])
        assert instance.get_materialized_partitions(key) == {"a.jsonl", "b.jsonl"}


def test_what_is_no_longer_used_of_it_is_collected(tmp_path: Path):
    build(declared(tmp_path, least=5))
    dataset = declared(tmp_path)
    build(dataset)
    output = graph_of(dataset).output("min_characters", "a.jsonl")
    assert len(list(output.place.iterdir())) == 2

    garbage = find_garbage(dataset, keep=1)
    remove_all(dataset.store, garbage)

    assert [of for of in output.place.iterdir() if not of.name.startswith(".")] == [output.folder]
    assert make_plan(dataset).is_up_to_date


def test_its_section_is_in_the_schema_the_component_and_the_docs():
    class Project(TextDataset):
        stages = MORE

    spec = importlib.util.spec_from_file_location("reference", "docs/site/reference.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(reference := importlib.util.module_from_spec(spec))
    model = Project.get_model_cls()
    schemas = [yaml_schema(MORE)["definitions"]["Attributes"], model.model_json_schema()]

    assert all("min_characters" in schema["properties"] for schema in schemas)
    assert "min_characters" not in yaml_schema()["definitions"]["Attributes"]["properties"]
    assert "## `min_characters` { #min_characters }\n" in list(reference.yaml_fields(MORE))


def test_a_stage_of_the_whole_dataset_has_its_variants(tmp_path: Path):
    write_raw(tmp_path, ALL)
    fields = {**TINY, "exports": ["bin"], "counts": {"names": ["num_chars", "num_documents"]}}
    stages = (*STAGES[:2], CountsStage(), *STAGES[2:])
    dataset = make_dataset(fields, base=tmp_path, where="test", stages=stages)

    assert {of.output.title for of in make_plan(dataset).missing} > {"counts num_chars"}
    assert not build(dataset).failed
    assert make_plan(dataset).is_up_to_date
    output = graph_of(dataset).named("counts", "num_chars")
    assert (output.open().file("count.txt")).read_text() == "24"
    assert problems_of(dataset) == []
    specs = {of.key.path[-1]: of for of in make_definitions(dataset).resolve_all_asset_specs()}
    parents = {"/".join(of.asset_key.path[1:]) for of in specs["num_chars"].deps}
    assert parents == {"tokens", "files"}


class Counts(Config):
    """Counts to keep."""

    names: Listed[str] = ()
    """Names of counts of tokens."""


class CountsStage(Stage):
    """A file for each count that is asked for: the sum over all token shards."""

    name = "counts"
    is_of_file = False
    section = Counts

    def variants(self, dataset: DatasetConfig) -> dict[str, Any]:
        return {name: {} for name in dataset.of(Counts).names}

    def inputs(self, dataset: DatasetConfig, variant: str) -> list[Input]:
        return [Input(stage="tokens", reach="all")]

    def recipe(self, making: Making) -> Recipe:
        parents = {key: of.fingerprint for key, of in making.inputs("tokens").items()}
        return Recipe(stage="counts", version=1, config={"name": making.variant}, parents=parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        return Recipe(stage="counts", version=1, config={"name": variant}, parents={})

    def writer(self, making: Making) -> Writer:
        counts = [of.counts for of in making.inputs("tokens").values()]
        total = sum(of[making.variant] for of in counts)
        return WholeWriter(partial(_write_count, total, making.recipe))


def _write_count(total: int, recipe: Recipe, folder: Path) -> None:
    (folder / "count.txt").write_text(str(total))
    about = {"dataset": "tiny", "partition": None, "counts": {"total": total}}
    write_manifest(folder, Manifest(recipe=recipe, files=checksums(folder), **about), run={})


def test_a_store_at_a_url_has_it_too(tmp_path: Path, object_store: ObjectStore):
    here = declared(tmp_path)
    there = declared(tmp_path, store=f"{object_store.url}/store")

    assert not build(here).failed
    assert not build(there).failed

    assert tokens_of(there) == tokens_of(here)
    assert problems_of(there) == []
    assert any("/min_characters/a.jsonl/" in key for key in list(object_store.keys()))
    assert make_plan(there).is_up_to_date


def test_a_receipt_with_a_stage_of_ones_own_holds_for_another_build(tmp_path: Path):
    statement = statement_of(build(declared(tmp_path)).export("bin").stored, Ancestry())
    fresh = declared(tmp_path, store=str(tmp_path / "fresh"))

    assert list(check_rebuilt(statement, fresh)) == []
