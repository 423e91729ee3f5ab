"""What `tokflow run --json` says of a dataset."""

from collections.abc import Sequence
from typing import Any

from tokflow.build.dataset import Dataset
from tokflow.build.plan import Plan
from tokflow.build.results import BuildResult
from tokflow.cli.left_out import document_of_left_out


def document_of_plan(plan: Plan, problems: Sequence[str]) -> dict[str, Any]:
    """Return what is to be said where nothing was to do."""
    return {
        "dataset": plan.dataset.name,
        "num_files": plan.num_files,
        "left_out": document_of_left_out(plan.left_out),
        "num_new": 0,
        "seconds": 0.0,
        "outputs": [
            {
                "stage": planned.stage,
                "name": planned.name,
                "fingerprint": planned.fingerprint,
                "folder": str(planned.folder),
                "is_new": False,
            }
            for planned in plan.planned
        ],
        "failed": [],
        "problems": list(problems),
    }


def document_of_build(
    dataset: Dataset, built: BuildResult, problems: Sequence[str]
) -> dict[str, Any]:
    """Return what is to be said of a build."""
    return {
        "dataset": dataset.name,
        "num_files": len(built.raw_files),
        "left_out": document_of_left_out(built.left_out),
        "num_new": built.num_new,
        "seconds": round(built.seconds, 3),
        "outputs": [
            {
                "stage": made.output.stage,
                "name": made.output.name,
                "fingerprint": made.output.fingerprint,
                "folder": str(made.output.folder),
                "is_new": made.is_new,
                "counts": dict(made.manifest.counts),
                "run": made.run,
            }
            for made in built.made
        ],
        "failed": [
            {"stage": failed.stage, "name": failed.name, "error": failed.explained.fields()}
            for failed in built.failed
        ],
        "problems": list(problems),
    }
