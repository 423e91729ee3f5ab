"""Builds of declared datasets as Dagster runs, and a note of the outputs that Dagster has recorded.

`<store>/<dataset>/recorded.json` says which outputs the last good run left in which instance, so
that a run that finds nothing to do imports nothing.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokflow.errors import ConfigError, message_of
from tokflow.formatting import printable
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.pipeline.project import project_root
from tokflow.store.atomic import new_file

if TYPE_CHECKING:
    from tokflow.components import RecordedBuild

RECORDED_NAME = "recorded.json"


def is_recorded(dataset: Dataset, outputs: Iterable[Output]) -> bool:
    """Return whether Dagster has recorded exactly these outputs."""
    note = _note(outputs)
    try:
        fields = json.loads((dataset.folder / RECORDED_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return bool(fields == note and Path(note["instance"]).is_dir())


def note_recorded(dataset: Dataset, outputs: Iterable[Output]) -> None:
    """Note that Dagster has recorded these outputs, all of a dataset, and that all checks
    passed."""
    with new_file(dataset.folder / RECORDED_NAME) as temporary:
        text = json.dumps(_note(outputs), indent=1, sort_keys=True)
        temporary.write_text(text + "\n", encoding="utf-8")


def _note(outputs: Iterable[Output]) -> dict[str, str]:
    """Return the note: Dagster's folder, which is the same with DAGSTER_HOME set to the project and
    without it, and a digest of the outputs."""
    names = sorted(f"{of.stage}/{of.name} {of.fingerprint}" for of in outputs)
    home = os.environ.get("DAGSTER_HOME")
    inside = Path(home or project_root()) / ".dagster"
    return {
        "instance": home if home and not inside.is_dir() else str(inside),
        "outputs": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
    }


def build_recorded(graph: BuildGraph, **options: Any) -> "RecordedBuild":
    """Build like `build_dataset`, as a run of the Dagster job in this process. `options`:
    those of `BuildOptions`.

    Raises: ConfigError where its history cannot be opened.
    """
    from tokflow.components import BuildOptions, open_instance, run_build_job

    with ExitStack() as stack:
        try:
            instance = stack.enter_context(open_instance())
        except Exception as error:
            raise ConfigError(
                where="the history of Dagster",
                expected="one that can be opened, for this run is recorded in it",
                found=message_of(error, where="DAGSTER_HOME"),
                remedy="correct DAGSTER_HOME or dagster.yaml; `tokflow run --config FILE` needs "
                "no Dagster",
            ) from error
        recorded = run_build_job(instance, graph, BuildOptions(**options))
    for warning in recorded.warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    return recorded


@contextmanager
def own_streams() -> Iterator[None]:
    """Keep printing to the terminal while Dagster redirects the process's stdout and stderr.

    During a run Dagster leads both into files, from which they come late and to no terminal.
    """
    with ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not getattr(sys, f"__{name}__"):
                continue  # not the process's own
            stream.flush()
            copy = os.fdopen(
                os.dup(stream.fileno()),
                "w",
                buffering=1,
                encoding=stream.encoding,
                errors=stream.errors,
            )
            stack.enter_context(copy)
            stack.callback(setattr, sys, name, stream)
            setattr(sys, name, copy)
        yield
