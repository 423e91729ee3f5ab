"""A small dataset with Dagster around it."""

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from tokflow.components import make_definitions
from tokflow.components.assets import asset_keys, is_partitioned, partition_set
from tokflow.components.checks import FILES_CHECK
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset

RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
KEYS = ["a.txt", "b.txt", "c.txt"]
"""Raw files of a case, as it begins."""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

is_built = pytest.mark.usefixtures("_built")
"""On a test in components: its `case` was built before."""

is_registered = pytest.mark.usefixtures("_registered")
"""On a test in components: Dagster has the partitions of its `case`."""


class Case:
    """A dataset in a folder, its definitions as they are now, and Dagster's record of it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder = folder
        self.instance = instance
        self.attributes: dict[str, Any] = {
            "name": "small",
            "raw": {"files": "raw/*.txt"},
            "documents": {"document_per": "line"},
            "tokenizer": {"kind": "bytes"},
            "split": {
                "parts": {"train": {"documents": 2}, "validation": {"start": 2, "documents": 9}}
            },
            "packing": {"sequence_length": 16},
            "exports": ["bin", "parquet"],
            "report": False,  # which takes a second to draw
            "store": "store",
        }
        for name in ("a", "b", "c"):
            self.write(name, f"first of {name}\nsecond of {name}\nthird of {name}\n")

    def become(self, other: "Case") -> None:
        """Take over the files, the attributes and the record of another, whose instance is in
        memory too: a dataset that is built already costs less so."""
        self.attributes = deepcopy(other.attributes)
        shutil.rmtree(self.folder / "raw")
        shutil.copytree(other.folder, self.folder, symlinks=True, dirs_exist_ok=True)
        for name in ("event_log_storage", "run_storage"):
            storages = (getattr(case.instance, name) for case in (other, self))
            recorded, own = (storage._engine.raw_connection() for storage in storages)
            with closing(recorded), closing(own):
                recorded.driver_connection.backup(own.driver_connection)

    @property
    def dataset(self) -> Dataset:
        return make_dataset(self.attributes, base=self.folder, where="test")

    @property
    def defs(self) -> dg.Definitions:
        return make_definitions(self.dataset)

    def write(self, name: str, text: str) -> None:
        path = self.folder / "raw" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.folder / "raw" / f"{name}.txt").unlink()

    def partitions(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions(str(partition_set(self.dataset).name)))

    def run(
        self,
        selection: dg.AssetSelection | None = None,
        *,
        keys: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize a selection (all by default) for one key or the range from first to last."""
        job = dg.define_asset_job("run", selection=selection or dg.AssetSelection.all())
        resolved = dg.Definitions.merge(self.defs, dg.Definitions(jobs=[job]))
        tags = dict(zip(RANGE, (keys[0], keys[-1]), strict=True)) if len(keys) > 1 else {}
        return resolved.resolve_job_def("run").execute_in_process(
            instance=self.instance,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags=tags,
            raise_on_error=False,
            run_config={**QUIET, **(config or {})},
        )

    def job(self, name: str = "small_build") -> dg.ExecuteInProcessResult:
        """Execute a job of the dataset, by default the one that builds everything."""
        job = self.defs.resolve_job_def(name)
        return job.execute_in_process(
            instance=self.instance, run_config=QUIET, raise_on_error=False
        )

    def event(self, *path: str, partition: str | None = None) -> dg.AssetMaterialization:
        """Return the latest materialization of an asset or of one of its partitions."""
        records = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(
                asset_key=dg.AssetKey([self.dataset.name, *path]),
                asset_partitions=[partition] if partition else None,
            ),
            limit=1,
        ).records
        materialization = records[0].asset_materialization
        assert materialization is not None
        return materialization

    def data_version(self, *path: str, partition: str | None = None) -> str:
        tags = self.event(*path, partition=partition).tags or {}
        return tags["dagster/data_version"]

    def not_fresh(self) -> dict[str, str]:
        """Return the status of every asset and partition that the web UI does not show as fresh."""
        graph, instance = self.defs.get_repository_def().asset_graph, self.instance
        partitions = self.partitions()
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        found = {}
        for key in asset_keys(self.dataset).values():
            for partition in partitions if graph.get(key).is_partitioned else [None]:
                status = resolver.get_status(key, partition)
                if status != StaleStatus.FRESH:
                    name = "/".join(key.path[1:]) + (f":{partition}" if partition else "")
                    found[name] = status.value
        return found


class Sensor:
    """The sensor's ticks, and the runs that it asks for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cursor: str | None = None
        self.said = ""

    def tick(self, defs: dg.Definitions | None = None) -> list[dg.RunRequest]:
        """Return what a tick asks for, by default with the definitions as they are now."""
        sensor = (defs or self.case.defs).resolve_sensor_def("tokflow_files")
        context = dg.build_sensor_context(instance=self.case.instance, cursor=self.cursor)
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        self.said = str(result.skip_reason.skip_message if result.skip_reason else "")
        return list(result.run_requests or ())

    def run(
        self, request: dg.RunRequest, defs: dg.Definitions | None = None
    ) -> dg.ExecuteInProcessResult:
        """Run what was asked for."""
        assert request.run_key is None
        job = (defs or self.case.defs).resolve_job_def(str(request.job_name))
        return job.execute_in_process(
            instance=self.case.instance,
            tags=dict(request.tags),
            raise_on_error=False,
            run_config=QUIET,
        )

    def settle(self) -> list[str]:
        """Tick and run until a tick asks for nothing; return the jobs that were run."""
        defs = self.case.defs
        jobs: list[str] = []
        while requests := self.tick(defs):
            for request in requests:
                self.run(request, defs)
                jobs.append(str(request.job_name))
            assert len(jobs) < 5, jobs
        return jobs


def shown(value: dg.MetadataValue[Any]) -> dict[str, str]:
    """Return the rows of a table of markdown: the first cell of each, and the second."""
    rows = [line.split(" | ") for line in str(value.value).split("\n")[2:]]
    plain = [[re.sub(r"\\(.)", r"\1", of.replace("\u200b", "")) for of in row] for row in rows]
    return {row[0].strip("| "): row[1].strip("| ") for row in plain}


def shown_failed(instance: dg.DagsterInstance, dataset: Dataset) -> set[str]:
    """Return the assets, and the partitions, that Dagster shows as failed."""
    found: set[str] = set()
    files = partition_set(dataset)
    keys = instance.get_dynamic_partitions(str(files.name))
    for (stage, _), key in asset_keys(dataset).items():
        name = "/".join(key.path[1:])
        if is_partitioned(dataset, stage):
            states = instance.get_status_by_partition(key, keys, files) or {}
            failed = [of for of, state in states.items() if state and state.name == "FAILED"]
            found |= {f"{name}:{of}" for of in failed}
        for record in [] if is_partitioned(dataset, stage) else instance.get_asset_records([key]):
            entry = record.asset_entry
            made = entry.last_materialization_record
            run = instance.get_run_by_id(str(entry.last_run_id))
            is_newer = made is None or made.run_id != entry.last_run_id
            found |= {name} if run and is_newer and not run.is_success else set()
    return found


def reported(case: Case, result: dg.ExecuteInProcessResult) -> dict[str, int]:
    """Return how many materializations each asset has in a run."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    logs = case.instance.all_logs(result.run_id, of_type=kind)
    keys = [of.dagster_event.asset_key for of in logs if of.dagster_event]
    return dict(Counter("/".join(key.path[1:]) for key in keys if key))


def checks(result: dg.ExecuteInProcessResult) -> list[dg.AssetCheckEvaluation]:
    """Return the checks of outputs that a run evaluated, without that of the list of files."""
    evaluations = result.get_asset_check_evaluations()
    return [of for of in evaluations if of.check_name != FILES_CHECK]


def selection(*path: str) -> dg.AssetSelection:
    """Return one asset of the dataset."""
    return dg.AssetSelection.assets(dg.AssetKey(["small", *path]))


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Return what a failed step says."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            return str(data.user_failure_data.description if data.user_failure_data else data)
    return "(no failure)"


def pasted(block: dg.MetadataValue[Any]) -> str:
    """Return what a shell reads of a block of code."""
    return str(block.value).removeprefix("```sh\n").removesuffix("\n```").replace("\\\n", "")
