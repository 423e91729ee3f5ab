"""Record of a run in Dagster's history, unless the same is there already.

`<store>/<dataset>/recorded.json` remembers which outputs are recorded in which instance, so that a
run that finds nothing to do imports nothing.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokflow.build.dataset import Dataset
from tokflow.build.declared import project_root
from tokflow.cli.terminal import print_error
from tokflow.errors import explained, message_of
from tokflow.store.atomic import new_file

RECORDED_NAME = "recorded.json"


@contextmanager
def dagster_process() -> Iterator[Executor]:
    """Yield a process for `record` that gets ready while a dataset is being built.

    To import Dagster and to open its history take three seconds of one core.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin_process) as pool:
        pool.submit(_prepare)
        yield pool


def record(
    dataset: Dataset,
    outputs: Sequence[Mapping[str, Any]],
    *,
    is_partial: bool,
    process: Executor | None = None,
) -> list[str]:
    """Register the raw files as partitions and record what there is; print and return what
    Dagster's asset checks found wrong.

    Nothing is done where the same was done before. `outputs`: every output that is there, as in
    the JSON of a run; with `is_partial` those of some files only. `process` records them, by
    default this process does. What Dagster does not take is a warning: what was built is complete
    without it, and the next run tries again.
    """
    path = dataset.folder / RECORDED_NAME
    home = os.environ.get("DAGSTER_HOME") or str(project_root() / ".dagster")
    known = _read(path, home)
    there = dict(known["outputs"]) if is_partial else {}
    there |= {f"{of['stage']}/{of['name']}": of["fingerprint"] for of in outputs}
    is_new = any(of["is_new"] for of in outputs)
    if there == known["outputs"] and Path(home).is_dir() and not is_new:
        return _told(known["problems"])
    keys = [of["name"] for of in outputs if of["stage"] == "sequences"]
    try:
        recorded = process.submit(_record, dataset, keys).result() if process else None
        problems, warnings = recorded or _record(dataset, keys)
    except Exception as error:
        if os.environ.get("TOKFLOW_DEBUG") == "1":
            raise
        reason = message_of(error, where="the record")
        rest = "what was built is complete, and the next run tries again"
        return _told([], [f"{dataset.name}: Dagster did not record this run ({reason}); {rest}"])
    fields = {"instance": home, "outputs": there, "problems": problems}
    with new_file(path) as temporary:
        text = json.dumps(fields, indent=1, sort_keys=True)
        temporary.write_text(text + "\n", encoding="utf-8")
    return _told(problems, warnings)


def _told(problems: list[str], warnings: Sequence[str] = ()) -> list[str]:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for problem in problems:
        print_error(problem)
    return problems


def _read(path: Path, home: str) -> dict[str, Any]:
    """Return what is kept of the last record, if it is in the instance in `home`."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        fields = {}
    return fields if fields.get("instance") == home else {"outputs": {}, "problems": []}


def _begin_process() -> None:
    """Let this process leave Ctrl-C to the one that started it, end with that, and print nothing
    where results are printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _prepare() -> None:
    from tokflow.components import open_instance

    with suppress(Exception), open_instance():  # `_record` meets the same error, and says so
        pass


def _record(dataset: Dataset, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what Dagster's asset checks found: problems, and warnings."""
    try:
        from tokflow.components import open_instance, record_build, sync_files

        with open_instance() as instance:
            sync_files(instance, dataset)
            recorded = record_build(instance, dataset, keys)
    except Exception as error:  # not every error of Dagster can go from process to process
        raise explained(error, where="the record") from error
    return list(recorded.problems), list(recorded.warnings)
