"""Which datasets a command is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokflow.cli.output import UsageError, as_usage
from tokflow.dataset import Dataset, load_dataset
from tokflow.datasets import list_declared, load_declared
from tokflow.errors import four_parts
from tokflow.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Selected:
    """One dataset, and whether Dagster knows it as it is."""

    dataset: Dataset
    is_declared: bool
    """Its YAML is under tokflow/defs and its store is the one named there."""


def select(
    names: Sequence[str] | None,
    *,
    config: Path | None = None,
    store: Path | None = None,
    partitions: Sequence[str] | None = None,
) -> list[Selected]:
    """Return the datasets that are named, or the one of a file, or all that are declared.

    Raises: UsageError, where a YAML file is wrong, too, or a partition is no raw file.
    """
    if names and config:
        raise UsageError(
            four_parts(
                where="arguments",
                expected="names of declared datasets or --config",
                found=f"both {names[0]!r} and --config {config}",
                remedy="leave one out",
            )
        )
    with as_usage():
        selected = _load(names, config, store)
    if not selected:
        raise UsageError(
            four_parts(
                where="arguments",
                expected="a dataset",
                found="none declared under tokflow/defs",
                remedy="declare one in tokflow/defs/<name>/defs.yaml, or name a file by --config",
            )
        )
    if partitions and len(selected) > 1:
        raise UsageError(
            four_parts(
                where="--partition",
                expected="one dataset, whose raw files the keys are of",
                found=f"{len(selected):,}",
                remedy="name the dataset",
            )
        )
    if partitions:
        with as_usage():
            Lineage(selected[0].dataset, offline=True).selected_keys(partitions)
    return selected


def _load(names: Sequence[str] | None, config: Path | None, store: Path | None) -> list[Selected]:
    if config is not None:
        return [Selected(load_dataset(config, store=store), is_declared=False)]
    return [
        Selected(load_declared(name, store=store), is_declared=store is None)
        for name in dict.fromkeys(names or list_declared())
    ]
