"""Which datasets a command is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokflow.build.dataset import Dataset, load_dataset
from tokflow.build.declared import FOLDER, list_declared, load_declared, project_root
from tokflow.build.graph import BuildGraph
from tokflow.cli.output import UsageError, as_usage


@dataclass(frozen=True, slots=True)
class Selected:
    """One dataset, and whether Dagster knows it as it is."""

    dataset: Dataset
    is_declared: bool
    """Its YAML is under tokflow/defs and its store is the one named there."""


def select(
    names: Sequence[str] | None,
    *,
    configs: Sequence[Path] | None = None,
    store: Path | None = None,
    partitions: Sequence[str] | None = None,
) -> list[Selected]:
    """Return the datasets that are named, or those of files, or all that are declared.

    Raises: UsageError, where a YAML file is wrong, too, two datasets would be built in the same
    folder, or a partition is no raw file.
    """
    if names and configs:
        raise UsageError(
            where="arguments",
            expected="names of declared datasets or --config",
            found=f"both {names[0]!r} and --config {configs[0]}",
            remedy="leave one out",
        )
    with as_usage():
        selected = _load(names, configs, store)
    if not selected:
        raise _none_declared()
    if partitions and len(selected) > 1:
        raise UsageError(
            where="--partition",
            expected="one dataset, whose raw files the keys are of",
            found=f"{len(selected):,}",
            remedy="name the dataset",
        )
    if partitions:
        with as_usage():
            BuildGraph(selected[0].dataset, offline=True).selected_keys(partitions)
    return selected


def _load(
    names: Sequence[str] | None, configs: Sequence[Path] | None, store: Path | None
) -> list[Selected]:
    if configs:
        datasets = [load_dataset(config, store=store) for config in configs]
        _check_folders(datasets, configs)
        return [Selected(dataset, is_declared=False) for dataset in datasets]
    return [
        Selected(load_declared(name, store=store), is_declared=store is None)
        for name in dict.fromkeys(names or list_declared())
    ]


def _none_declared() -> UsageError:
    return UsageError(
        where="arguments",
        expected="a dataset",
        found=f"none declared in {project_root() / FOLDER}",
        remedy="go to a project's folder, declare one there in "
        "tokflow/defs/<name>/defs.yaml, or name a file by --config",
    )


def _check_folders(datasets: Sequence[Dataset], configs: Sequence[Path]) -> None:
    first: dict[Path, Path] = {}
    for dataset, config in zip(datasets, configs, strict=True):
        if dataset.folder in first:
            raise UsageError(
                where="--config",
                expected="datasets of different names, or with different stores",
                found=f"{dataset.name!r} in {dataset.store} for both {first[dataset.folder]} "
                f"and {config}",
                remedy="rename one of them, or leave one out",
            )
        first[dataset.folder] = config
