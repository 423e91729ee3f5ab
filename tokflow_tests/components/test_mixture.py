"""A mixture in Dagster: its assets are made from the splits of its sources."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.components import decisions, make_definitions
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import find_declarations, load_declared
from tokflow.pipeline.project import Project, find_project
from tokflow_tests.dagster_case import QUIET, RANGE, not_fresh, shown_failed
from tokflow_tests.projects import attributes, declare_in, make_project

SOURCES = {"code": {"epochs": 2}, "prose": {"epochs": 0.5}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two datasets and a mixture of both."""
    project = make_project(tmp_path)
    for name in SOURCES:
        (project / name).mkdir()
        (project / name / "a.txt").write_text("".join(f"{name} {n}\n" for n in range(20)))
        fields = {"raw": {"files": f"{name}/*.txt"}, "documents": {"document_per": "line"}}
        declare_in(project, name, attributes(name, report=False, **fields))
    return declare_mixture(project, SOURCES)


def declare_mixture(project: Path, sources: dict[str, Any]) -> Path:
    mixed = {
        "mixture": {"sources": sources},
        "shuffle": {},
        "exports": ["bin", "parquet"],
        "automation": True,
        "report": False,  # which takes a second to draw
    }
    declare_in(project, "mixed", {"name": "mixed", "store": "store", **mixed})
    return project


def datasets_of(project: Path) -> dict[str, Dataset]:
    found = find_project(project)
    assert isinstance(found, Project)
    return {of.name: load_declared(of) for of in find_declarations(found)}


def definitions_of(project: Path) -> dg.Definitions:
    return make_definitions(*datasets_of(project).values())


def materialized(instance: dg.DagsterInstance) -> set[str]:
    keys = (
        key for key in instance.all_asset_keys() if instance.get_latest_materialization_event(key)
    )
    return {key.to_user_string() for key in keys}


def test_the_columns_of_a_mixture_are_made_from_columns_that_there_are(project: Path):
    packing = {"strategy": "one_document", "sequence_length": 8}
    for name in SOURCES:
        documents = {"text": "body", "keep_columns": ["url"]}
        raw = {"files": f"{name}/*.jsonl"}
        declare_in(project, name, attributes(name, raw=raw, documents=documents))
        (project / name / "a.jsonl").touch()
    mixed = {"mixture": {"sources": SOURCES}, "packing": packing, "exports": ["parquet"]}
    declare_in(project, "mixed", {"name": "mixed", "store": "store", **mixed})
    specs = {of.key: of.metadata for of in definitions_of(project).resolve_all_asset_specs()}

    lineage = [of.get("dagster/column_lineage") for of in specs.values()]
    deps = {dep for of in lineage if of for some in of.deps_by_column.values() for dep in some}

    for dep in deps:
        columns = specs[dep.asset_key]["dagster/column_schema"].columns
        assert dep.column_name in [of.name for of in columns]
    assert {dep.asset_key.path[0] for dep in deps if dep.column_name == "url"} == set(SOURCES)


def test_the_assets_of_a_mixture_are_made_from_the_splits_of_its_sources(project: Path):
    graph = definitions_of(project).resolve_asset_graph()

    own = {key.to_user_string() for key in graph.get_all_asset_keys() if key.path[0] == "mixed"}
    split = graph.get(dg.AssetKey(["mixed", "split"]))
    assert own == {
        "mixed/split",
        "mixed/sequences",
        "mixed/exports/bin",
        "mixed/exports/parquet",
    }
    assert {key.to_user_string() for key in split.parent_keys} == {"code/split", "prose/split"}


def test_the_job_of_a_mixture_builds_and_records_its_sources_up_to_their_splits(project: Path):
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions_of(project).resolve_job_def("mixed_build")

        result = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
        again = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)

        assert result.success
        assert again.success
        assert not again.asset_materializations_for_node("mixed_build_all")
        assert materialized(instance) >= {"code/split", "prose/tokens", "mixed/exports/bin"}
        assert "code/sequences" not in materialized(instance)
        assert instance.get_dynamic_partitions("mixed_files") == ["code/a.txt", "prose/a.txt"]
        event = instance.get_latest_materialization_event(dg.AssetKey(["mixed", "exports", "bin"]))
        assert event is not None
        assert event.asset_materialization is not None
        table = event.asset_materialization.metadata["mixture"]
        assert isinstance(table, dg.TableMetadataValue)
        assert [row.data["epochs"] for row in table.records] == ["2.00", "0.50"]
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
        for name in ("code", "prose"):
            assert any(line.startswith(f"{name}: tokens a.txt: ") for line in said)
            assert any(line.startswith(f"{name}: 1 file: ") for line in said)
        assert any(line.startswith("export bin: ") for line in said)
        # A change that decides no byte is recorded once.
        declare_mixture(project, {**SOURCES, "code": {"epochs": 2, "max_epochs": 3}})
        defs, mixed = definitions_of(project), datasets_of(project)["mixed"]
        assert set(not_fresh(instance, defs, mixed).values()) == {"STALE"}
        changed = defs.resolve_job_def("mixed_build")
        changed.execute_in_process(instance=instance, run_config=QUIET)
        assert not_fresh(instance, defs, mixed) == {}


def test_a_bad_file_of_a_source_makes_failed_what_the_mixture_is_made_of(project: Path):
    (project / "far").mkdir()
    good = "from afar\n"
    file = project / "far/a.txt"
    file.write_bytes(b"no \xff UTF-8\n")
    fields = {"raw": {"files": "far/*.txt"}, "documents": {"document_per": "line"}}
    (project / "far.yaml").write_text(yaml.safe_dump(attributes("far", report=False, **fields)))
    sources = {"prose": {"epochs": 1}, "far": {"epochs": 2, "config": "far.yaml"}}
    defs = definitions_of(declare_mixture(project, sources))
    job, mixed = defs.resolve_job_def("mixed_build"), datasets_of(project)["mixed"]
    datasets = (*mixed.sources, mixed)

    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
        found = {of.name: shown_failed(instance, of) for of in datasets}
        file.write_text(good)
        assert job.execute_in_process(instance=instance, run_config=QUIET).success
        later = [shown_failed(instance, of) for of in datasets]
        made = materialized(instance)
        assert not_fresh(instance, defs, mixed) == {}

    assert found["far"] == {"tokens:a.txt", "split:a.txt"}
    assert found["prose"] == set()
    assert {"exports/bin", "exports/parquet"} <= found["mixed"]
    assert later == [set()] * 3
    assert made >= {"far/split", "mixed/exports/bin"}  # though no YAML of the project has it


def test_the_assets_of_a_mixture_are_made_one_by_one_and_are_fresh(project: Path):
    defs = definitions_of(project)
    selection = dg.AssetSelection.groups("mixed")
    both = dg.Definitions.merge(
        defs, dg.Definitions(jobs=[dg.define_asset_job("one", selection=selection)])
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("code", "prose"):
            defs.resolve_job_def(f"{name}_build").execute_in_process(
                instance=instance, run_config=QUIET
            )
        defs.resolve_job_def("mixed_scan").execute_in_process(instance=instance)
        keys = instance.get_dynamic_partitions("mixed_files")

        result = both.resolve_job_def("one").execute_in_process(
            instance=instance,
            tags=dict(zip(RANGE, (keys[0], keys[-1]), strict=True)),
            run_config=QUIET,
        )

        assert result.success
        assert not_fresh(instance, defs, datasets_of(project)["mixed"]) == {}
        mixture = {**SOURCES, "code": {"epochs": 3}}
        changed = definitions_of(declare_mixture(project, mixture))
        found = not_fresh(instance, changed, datasets_of(project)["mixed"])
        stale = {key.partition(":")[0] for key in found}
        assert stale == {"split"}


def test_automation_builds_a_mixture_when_a_source_has_a_new_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decisions, "CALM_SECONDS", 0.0)
    asked: list[list[str]] = []
    cursor = None
    with dg.DagsterInstance.ephemeral() as instance:
        for new in (None, None, "b.txt", None):
            if new is not None:
                (project / "code" / new).write_text("more code\n")
            defs = definitions_of(project)
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            ticked = defs.resolve_sensor_def("tokflow_files")(context)
            assert isinstance(ticked, dg.SensorResult)
            cursor, requests = ticked.cursor, ticked.run_requests or ()
            asked.append([str(request.job_name) for request in requests])
            for request in requests:
                job = defs.resolve_job_def(str(request.job_name))
                job.execute_in_process(instance=instance, run_config=QUIET, tags=dict(request.tags))

    assert asked == [["mixed_build"], [], ["mixed_build"], []]
