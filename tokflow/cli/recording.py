"""Tell Dagster what a run did, unless it has been told.

`<store>/<dataset>/recorded.json` remembers which outputs were told to which instance, so that a
run that finds nothing to do imports nothing.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.build.dataset import Dataset
from tokflow.build.declared import project_root
from tokflow.cli.recorder import Recorder, RecorderError, tell
from tokflow.store.atomic import new_file

RECORDED_NAME = "recorded.json"


def record(
    dataset: Dataset,
    keys: Sequence[str],
    fingerprints: Mapping[str, str],
    *,
    is_partial: bool,
    is_new: bool,
    recorder: Recorder | None = None,
) -> list[str]:
    """Register the raw files as partitions and record what there is of `keys`; return what
    Dagster's asset checks found wrong.

    Nothing is done where the same was done before. `fingerprints`: of every output that is there,
    by stage and name; with `is_partial` those of some files only. `is_new`: something was built
    just now. `recorder` does it in its process, by default it is done in this one. What Dagster
    does not take is a warning: what was built is complete without it, and the next run tries
    again.
    """
    path = dataset.folder / RECORDED_NAME
    home = _instance_folder()
    known = _read(path, home)
    outputs = {**known, **fingerprints} if is_partial else dict(fingerprints)
    if outputs == known and home.is_dir() and not is_new:
        return list(_read_fields(path, home).get("problems", []))
    try:
        told = recorder.tell(keys) if recorder else tell(dataset, keys)
    except Exception as error:
        if os.environ.get("TOKFLOW_DEBUG") == "1":
            raise
        print(
            f"warning: {dataset.name}: Dagster did not record this run "
            f"({_described(error)}); what was built is complete, and the next run tries again",
            file=sys.stderr,
        )
        return []
    for warning in told.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with new_file(path) as temporary:
        fields = {"instance": str(home), "outputs": outputs, "problems": list(told.problems)}
        text = json.dumps(fields, indent=1, sort_keys=True)
        temporary.write_text(text + "\n", encoding="utf-8")
    return list(told.problems)


def _described(error: Exception) -> str:
    is_told = isinstance(error, RecorderError)
    return str(error) if is_told else f"{type(error).__name__}: {error}"


def _instance_folder() -> Path:
    """Return where `open_instance` keeps Dagster's state."""
    home = os.environ.get("DAGSTER_HOME")
    return Path(home) if home else project_root() / ".dagster"


def _read(path: Path, home: Path) -> dict[str, str]:
    """Return what was told to the instance in `home`."""
    return dict(_read_fields(path, home).get("outputs", {}))


def _read_fields(path: Path, home: Path) -> dict[str, Any]:
    """Return what was kept of the last record, if it was told to the instance in `home`."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return fields if fields.get("instance") == str(home) else {}
