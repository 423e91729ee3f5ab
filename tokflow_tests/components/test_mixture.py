"""A mixture in Dagster: its assets are made from the splits of its sources."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.components import make_definitions
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import find_declarations, load_declared
from tokflow.pipeline.project import Project, find_project
from tokflow_tests.dagster_case import Case, Sensor, shown_failed
from tokflow_tests.projects import attributes, declare_in, make_project

SOURCES = {"code": {"epochs": 2}, "prose": {"epochs": 0.5}}


class Mixed(Case):
    """A project with two datasets and a mixture of both, which is the dataset of the case."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = make_project(folder), instance
        for name in SOURCES:
            (folder / name).mkdir()
            (folder / name / "a.txt").write_text("".join(f"{name} {n}\n" for n in range(20)))
            fields = {"raw": {"files": f"{name}/*.txt"}, "documents": {"document_per": "line"}}
            declare_in(folder, name, attributes(name, report=False, **fields))
        self.mix(SOURCES)

    def mix(self, sources: dict[str, Any]) -> None:
        mixed = {
            "mixture": {"sources": sources},
            "shuffle": {},
            "exports": ["bin", "parquet"],
            "automation": True,
            "report": False,  # which takes a second to draw
        }
        declare_in(self.folder, "mixed", {"name": "mixed", "store": "store", **mixed})

    @property
    def datasets(self) -> dict[str, Dataset]:
        found = find_project(self.folder)
        assert isinstance(found, Project)
        return {of.name: load_declared(of) for of in find_declarations(found)}

    @property
    def dataset(self) -> Dataset:
        return self.datasets["mixed"]

    @property
    def defs(self) -> dg.Definitions:
        return make_definitions(*self.datasets.values())

    def made(self) -> set[str]:
        """Return the assets that were materialized."""
        keys = self.instance.all_asset_keys()
        found = (key for key in keys if self.instance.get_latest_materialization_event(key))
        return {key.to_user_string() for key in found}


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Mixed]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Mixed(tmp_path, instance)


def test_the_columns_of_a_mixture_are_made_from_columns_that_there_are(case: Mixed):
    packing = {"strategy": "one_document", "sequence_length": 8}
    for name in SOURCES:
        documents = {"text": "body", "keep_columns": ["url"]}
        raw = {"files": f"{name}/*.jsonl"}
        declare_in(case.folder, name, attributes(name, raw=raw, documents=documents))
        (case.folder / name / "a.jsonl").touch()
    mixed = {"mixture": {"sources": SOURCES}, "packing": packing, "exports": ["parquet"]}
    declare_in(case.folder, "mixed", {"name": "mixed", "store": "store", **mixed})
    specs = {of.key: of.metadata for of in case.defs.resolve_all_asset_specs()}

    lineage = [of.get("dagster/column_lineage") for of in specs.values()]
    deps = {dep for of in lineage if of for some in of.deps_by_column.values() for dep in some}

    for dep in deps:
        columns = specs[dep.asset_key]["dagster/column_schema"].columns
        assert dep.column_name in [of.name for of in columns]
    assert {dep.asset_key.path[0] for dep in deps if dep.column_name == "url"} == set(SOURCES)


def test_the_assets_of_a_mixture_are_made_from_the_splits_of_its_sources(case: Mixed):
    graph = case.defs.resolve_asset_graph()

    own = {key.to_user_string() for key in graph.get_all_asset_keys() if key.path[0] == "mixed"}
    split = graph.get(dg.AssetKey(["mixed", "split"]))
    assert own == {"mixed/split", "mixed/sequences", "mixed/exports/bin", "mixed/exports/parquet"}
    assert {key.to_user_string() for key in split.parent_keys} == {"code/split", "prose/split"}


def test_the_job_of_a_mixture_builds_and_records_its_sources_up_to_their_splits(case: Mixed):
    result, again = case.job("mixed_build"), case.job("mixed_build")

    assert result.success
    assert again.success
    assert not again.asset_materializations_for_node("mixed_build_all")
    assert case.made() >= {"code/split", "prose/tokens", "mixed/exports/bin"}
    assert "code/sequences" not in case.made()
    assert case.partitions() == ["code/a.txt", "prose/a.txt"]
    table = str(case.event("exports", "bin").metadata["mixture"].value)
    assert re.findall(r"\| epochs \| (.*) \|", table) == [r"2\.00", r"0\.50"]
    said = [entry.user_message for entry in case.instance.all_logs(result.run_id)]
    for name in ("code", "prose"):
        assert any(line.startswith(f"{name}: tokens a.txt: ") for line in said)
        assert any(line.startswith(f"{name}: 1 file: ") for line in said)
    assert any(line.startswith("export bin: ") for line in said)
    # A change that decides no byte is recorded once.
    case.mix({**SOURCES, "code": {"epochs": 2, "max_epochs": 3}})
    assert set(case.not_fresh().values()) == {"STALE"}
    case.job("mixed_build")
    assert case.not_fresh() == {}


def test_strata_of_a_dataset_are_partitions_of_their_own_and_it_is_built_once(case: Mixed):
    fields = {"raw": {"files": "code/*.txt"}, "documents": {"document_per": "line"}}
    strata = {"short": "num_chars < 7", "rest": True}
    declare_in(case.folder, "code", attributes("code", report=False, strata=strata, **fields))
    case.mix({"code.short": {"epochs": 2}, "code.rest": {"epochs": 1}, "prose": {"epochs": 1}})

    result = case.job("mixed_build")

    assert result.success
    assert case.partitions() == ["code.rest/a.txt", "code.short/a.txt", "prose/a.txt"]
    said = [entry.user_message for entry in case.instance.all_logs(result.run_id)]
    assert sum(line.startswith("code: tokens a.txt: ") for line in said) == 1
    assert {"code/strata", "mixed/exports/bin"} <= case.made()
    assert case.not_fresh() == {}


def test_a_bad_file_of_a_source_makes_failed_what_the_mixture_is_made_of(case: Mixed):
    file = case.folder / "far/a.txt"
    file.parent.mkdir()
    file.write_bytes(b"no \xff UTF-8\n")
    fields = {"raw": {"files": "far/*.txt"}, "documents": {"document_per": "line"}}
    far = yaml.safe_dump(attributes("far", report=False, **fields))
    (case.folder / "far.yaml").write_text(far)
    case.mix({"prose": {"epochs": 1}, "far": {"epochs": 2, "config": "far.yaml"}})
    datasets = (*case.dataset.sources, case.dataset)

    case.job("mixed_build")

    found = {of.name: shown_failed(case.instance, of) for of in datasets}
    assert found["far"] == {"tokens:a.txt", "split:a.txt"}
    assert found["prose"] == set()
    assert {"exports/bin", "exports/parquet"} <= found["mixed"]
    file.write_text("from afar\n")
    assert case.job("mixed_build").success
    assert [shown_failed(case.instance, of) for of in datasets] == [set()] * 3
    assert case.made() >= {"far/split", "mixed/exports/bin"}  # though no YAML of the project has it
    assert case.not_fresh() == {}


def test_automation_builds_a_mixture_when_a_source_has_a_new_file(case: Mixed):
    sensor = Sensor(case)
    first = sensor.settle()
    (case.folder / "code/b.txt").write_text("more code\n")

    assert (first, sensor.settle()) == (["mixed_build"], ["mixed_build"])
