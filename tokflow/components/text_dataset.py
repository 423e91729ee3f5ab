"""TextDataset: everything that Dagster does for the datasets of a YAML, with the sensor of files,
the scan job and the schedule; and its scaffolder."""

import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import click
import dagster as dg
import msgspec
import pydantic

from tokflow.components.assets import asset_specs, scan_job_name
from tokflow.components.build_job import asset_job, build_asset
from tokflow.components.checks import LISTING, mark_failed
from tokflow.components.decisions import Decision, Memory, decide
from tokflow.components.file_partitions import sync_files
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dataset import DEFAULT_STORE, Dataset
from tokflow.pipeline.declared import (
    YAML_NAMES,
    Declaration,
    as_declared_now,
    declared_by,
    find_declarations,
    is_first,
    load_declared,
)
from tokflow.pipeline.fields import dagster_name
from tokflow.pipeline.project import find_project
from tokflow.pipeline.raw_patterns import as_name, patterns_of, shortened_to
from tokflow.pipeline.stages import STAGES
from tokflow.pipeline.suggestion import UNSEEN, suggest
from tokflow.pipeline.yaml_schema import attributes_schema
from tokflow.pipeline.yaml_writer import check_new, dataset_yaml
from tokflow.raw.globs import format_of_name
from tokflow.stage import Stage
from tokflow.store.atomic import remove_empty

IS_CHECKED = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Variable that `dg check defs` and `dagster definitions validate` set."""

CHECK = "can_be_loaded"


@dataclass(frozen=True, slots=True)
class BrokenDataset:
    """A dataset that cannot be loaded, so that no other goes with it."""

    name: str
    error: TokflowError

    @property
    def dagster_name(self) -> str:
        """A name that Dagster takes, and that no dataset has which can be loaded."""
        plain = dagster_name(self.name)
        safe = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_")
        if safe and safe == plain:
            return safe
        return f"{safe}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}".strip("_")

    @property
    def key(self) -> dg.AssetKey:
        """The key of its asset: `[<dataset>, "error"]`."""
        return dg.AssetKey([self.dagster_name, "error"])

    def evaluation(self) -> dg.AssetCheckEvaluation:
        """Return its check, failed: what makes the asset red before anything runs."""
        return dg.AssetCheckEvaluation(
            check_name=CHECK, passed=False, asset_key=self.key, description=str(self.error)
        )

    def definitions(self) -> dg.Definitions:
        """Return an asset whose description is the error, and which fails with it, and a job that
        fails under the name of the job that would build the dataset."""
        said = f"This dataset cannot be loaded:\n\n    {self.error}"

        @dg.asset(
            key=self.key,
            group_name=self.dagster_name,
            kinds={"error"},
            description=said,
            check_specs=[dg.AssetCheckSpec(CHECK, asset=self.key)],
            output_required=False,
        )
        def error() -> Iterator[dg.AssetCheckResult]:
            yield dg.AssetCheckResult(passed=False, description=str(self.error))
            raise dg.Failure(str(self.error), allow_retries=False)

        job = dg.define_asset_job(
            f"{self.dagster_name}_build",
            selection=[error],
            description=f"Fails. {said}",
            executor_def=dg.in_process_executor,
        )
        return dg.Definitions(assets=[error], jobs=[job])


def end_check(broken: Sequence[BrokenDataset]) -> None:
    """End the process with all that is wrong, where definitions are only checked.

    Dagster would show an exception with its traceback.
    """
    if broken and os.environ.get(IS_CHECKED):
        sys.exit("\n".join(str(of.error) for of in broken))


EXECUTORS: Mapping[str | None, dg.ExecutorDefinition] = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}


class Attributes(pydantic.RootModel[dict[str, Any]]):
    """The attributes as they stand in the YAML, with templates; the schema is that of a dataset, or
    of several with their defaults."""

    stages: ClassVar[tuple[Stage, ...]] = STAGES

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the schema of one dataset or several, in the form that Dagster asks for."""
        return attributes_schema(stages=cls.stages)


class DatasetScaffolder(dg.Scaffolder[Any]):
    """Writes the YAML of a dataset of `data/raw/NAME/*`, which are looked at if they are there."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write `defs.yaml` into the folder of the request, or nothing at all."""
        try:
            if request.scaffold_format != "yaml":
                raise click.UsageError("--format: expected yaml, which declares a dataset")
            name, root = as_name(request.target_path.name), request.project_root or Path.cwd()
            project = find_project(root)
            if project is not None:
                check_new(name, request.target_path / YAML_NAMES[0], project)
            raw, patterns, suggested = root / "data/raw" / name, [f"data/raw/{name}/*"], UNSEEN
            if any(format_of_name(path.name) for path in raw.rglob("*")):
                found = patterns_of([str(raw)], here=root, store=root / DEFAULT_STORE)
                patterns, suggested = shortened_to(root, found), suggest(found)
            text = dataset_yaml(name, patterns, suggested, in_project=True)
        except (TokflowError, click.ClickException) as error:
            remove_empty([request.target_path])  # Dagster made it, and would refuse a second try
            if isinstance(error, TokflowError):
                raise click.ClickException(str(error)) from None
            raise
        with (request.target_path / YAML_NAMES[0]).open("x", encoding="utf-8") as file:
            file.write(text)


@dg.scaffold_with(DatasetScaffolder)
@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, a sensor and a schedule.

    Its attributes are those of a dataset's YAML for `tokflow run`, and mean the same. Relative
    paths start at the project's root. Templates name variables of the environment alone, as
    `{{ env.NAME }}`, and may stand in any field but a chat template, which is Jinja itself.
    """

    datasets: Sequence[Dataset]
    """One, or those of `datasets:`; except those that cannot be loaded."""
    broken: Sequence[BrokenDataset] = ()
    """Those that cannot be loaded, unless another YAML says so."""

    stages: ClassVar[tuple[Stage, ...]] = STAGES
    """Stages of the datasets, parents first; a subclass may have more, with their YAML sections."""

    @classmethod
    def get_model_cls(cls) -> type[Attributes]:
        """Return the schema of the attributes."""
        return type("Attributes", (Attributes,), {"stages": cls.stages})

    @classmethod
    def load(cls, attributes: pydantic.BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component that a defs.yaml of any Dagster project declares.

        What is wrong in it is shown in its place: it raises nothing, for that would take all
        others of the code location with it.
        """
        values = attributes.root if isinstance(attributes, Attributes) else {}
        return cls.declared(_declarations(context, values))

    @classmethod
    def declared(cls, declarations: Iterable[Declaration]) -> Self:
        """Return the component of some datasets, whatever is wrong with any of them."""
        datasets, broken = [], []
        for declaration in declarations:
            try:
                dataset = load_declared(replace(declaration, stages=cls.stages))
                asset_specs(dataset)
                datasets.append(dataset)
            except TokflowError as error:
                broken.append(BrokenDataset(declaration.name, error))
        return cls(datasets, broken)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions; nothing is read or written for it.

        The first of all datasets brings the jobs of all: Dagster refuses two sensors of one name,
        and a sensor for jobs that come from elsewhere.
        """
        is_alone = getattr(context.component_loc, "file_path", None) == context.project_root
        # Of what `build_defs_for_component` is given, whose tree is the whole working folder.
        others = [] if is_alone else context.component_tree.get_all_components(TextDataset)
        together = (*others, self)
        assets = {name: of for component in together for name, of in component.assets.items()}
        broken = list({of.name: of for component in together for of in component.broken}.values())
        end_check(broken)
        is_of_all = bool(assets) and min(assets) in self.assets
        return self.definitions(
            _jobs_of(assets.values(), broken) if is_of_all else dg.Definitions()
        )

    @cached_property
    def assets(self) -> Mapping[str, tuple[Dataset, dg.AssetsDefinition]]:
        """The datasets by their names, each with its assets, which are those of its job, too."""
        return {of.name: (of, build_asset(of)) for of in self.datasets}

    def definitions(self, jobs: dg.Definitions | None = None) -> dg.Definitions:
        """Return the assets of the datasets and of the broken ones, and jobs, by default those of
        all these datasets."""
        end_check(self.broken)
        for of in self.broken:
            logging.getLogger("tokflow").error("%s", of.error)
        return dg.Definitions.merge(
            *(
                # With the executor that the dataset asks for.
                dg.Definitions(assets=[assets], executor=EXECUTORS.get(dataset.executor))
                for dataset, assets in self.assets.values()
            ),
            *(of.definitions() for of in self.broken),
            jobs or _jobs_of(self.assets.values(), self.broken),
        )


def _declarations(
    context: dg.ComponentLoadContext, attributes: Mapping[str, Any]
) -> list[Declaration]:
    """Return the declarations of a component's datasets, except duplicates of a name, which the
    first reports."""
    place = context.component_loc
    folder, index = getattr(place, "file_path", None), getattr(place, "instance_key", None)
    project = find_project(context.project_root) if folder else None  # else of no YAML file
    declarations = find_declarations(project) if project else []
    own = [of for of in declarations if (of.path.parent, of.index) == (folder, index or 0)]
    if own:
        return [of for of in own if is_first(of, declarations)]
    path = folder / "defs.yaml" if folder else Path("attributes")
    name = folder.name if folder else "dataset"
    document = Declaration(name, path, 0, context.project_root, {}, str(path))
    return declared_by(document, attributes, index=0, is_component=False)


def make_definitions(*datasets: Dataset) -> dg.Definitions:
    """Return all definitions of the datasets of a code location."""
    return TextDataset(datasets).definitions()


def _jobs_of(
    made: Iterable[tuple[Dataset, dg.AssetsDefinition]], broken: Sequence[BrokenDataset]
) -> dg.Definitions:
    """Return the jobs and schedules of datasets, and the sensor that they share."""
    builds = [(dataset, asset_job(dataset, assets)) for dataset, assets in made]
    datasets = [dataset for dataset, _ in builds]
    jobs = [*(job for _, job in builds), *map(scan_job, datasets)]
    return dg.Definitions(
        jobs=jobs,
        schedules=[
            dg.ScheduleDefinition(  # on unless somebody turns it off
                name=f"{dagster_name(of.name)}_schedule",
                job=job,
                cron_schedule=str(of.schedule),
                execution_timezone=of.timezone,
                default_status=dg.DefaultScheduleStatus.RUNNING,
                description=f"Builds {of.name} at its times.",
            )
            for of, job in builds
            if of.schedule
        ],
        sensors=[files_sensor(datasets, jobs, broken)] if datasets else [],
    )


SENSOR_NAME = "tokflow_files"

SENSOR_SECONDS = 60
"""A look at 1,000 local files that are unchanged takes some 50 ms."""


def files_sensor(
    datasets: Sequence[Dataset],
    jobs: Sequence[dg.JobDefinition],
    broken: Sequence[BrokenDataset] = (),
) -> dg.SensorDefinition:
    """Return the sensor that looks at the raw files of all datasets of a code location.

    It asks for builds where `automation` is true, and else keeps Dagster's list of files up to
    date. `jobs`: those that build and scan the datasets; `broken`: datasets that cannot be loaded,
    whose check it records as failed. It is on if any dataset asks for automation, unless somebody
    turns it off.
    """
    is_on = any(dataset.automation for dataset in datasets)
    status = dg.DefaultSensorStatus

    @dg.sensor(
        name=SENSOR_NAME,
        jobs=list(jobs),
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=status.RUNNING if is_on else status.STOPPED,
        description="Looks for new, changed and removed raw files of all datasets, and builds "
        "those with `automation: true`.",
    )
    def files(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        memories: dict[str, Memory] = {}
        with suppress(msgspec.DecodeError):  # of a cursor that somebody else set
            memories = msgspec.json.decode(context.cursor or "", type=dict[str, Memory])
        decisions: dict[str, Decision] = {}
        for dataset, error in as_declared_now(datasets):  # a run loads it anew, too
            memory = memories.get(dataset.name, Memory())
            decision = decide(context.instance, dataset, memory, now=time.time())
            said = f"{decision.said}, as its YAML was when it was loaded, for now: {error}"
            decisions[dataset.name] = replace(decision, said=said) if error else decision
        failures = []
        for each in broken:
            known, memory = memories.get(each.name), Memory(because=str(each.error))
            failures += [each.evaluation()] if known != memory else []
            decisions[each.name] = Decision(memory, str(each.error))
        looked = {name: of.memory for name, of in decisions.items()}
        requests = [of.request for of in decisions.values() if of.request]
        said = "\n".join(f"{name}: {of.said}" for name, of in decisions.items())
        if requests:
            context.log.info(said)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else said,
            cursor=msgspec.json.encode(looked).decode(),
            asset_events=failures,
        )

    return files


def scan_job(dataset: Dataset) -> dg.JobDefinition:
    """Return the job that registers new raw files and retires removed ones."""

    @dg.op(
        name=f"{dagster_name(dataset.name)}_sync_files",
        description="Bring partitions and raw versions up to date.",
    )
    def sync(context: dg.OpExecutionContext) -> None:
        try:
            context.log.info(str(sync_files(context.instance, dataset, with_status=True)))
        except (TokflowError, OSError) as error:
            mark_failed(context, dataset, [LISTING] if dataset.mixture is None else [])
            message = message_of(error, where=dataset.name)
            raise dg.Failure(f"{dataset.name}: {message}", allow_retries=False) from error

    @dg.job(
        name=scan_job_name(dataset),
        description=f"Looks for new, changed and removed raw files of {dataset.name}; builds "
        "nothing.",
        tags=dataset.tags,
        executor_def=dg.in_process_executor,
    )
    def scan() -> None:
        sync()

    return scan
