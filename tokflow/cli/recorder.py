"""The process that tells Dagster what a run built.

    python -m tokflow.cli.recorder NAME

It is started before the build, since importing Dagster and opening its history take three seconds
of one core. On its standard input it gets one line, the keys to record as JSON, or the end of the
input, upon which it leaves. On its standard output it writes one line of JSON: `Told`, or the
error.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokflow.build.dataset import Dataset
from tokflow.build.declared import load_declared
from tokflow.errors import TokflowError, explained


class RecorderError(TokflowError):
    """The process could not record; what was built is complete all the same."""


@dataclass(frozen=True, slots=True)
class Told:
    """What Dagster's asset checks said of what they were told."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class Recorder:
    """The process, getting ready while the declared dataset `name` is being built."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        # Never killed: it may be creating the database of Dagster's history.
        self._process.communicate()

    def tell(self, keys: Sequence[str]) -> Told:
        """Record what there is of the raw files `keys`, of the tokenizer and of the exports.

        Raises: RecorderError where the process reports an error or has died.
        """
        # It may have ended already, and then its last line, if any, says why.
        answer, _ = self._process.communicate(json.dumps(list(keys)) + "\n")
        if not answer:
            raise self._death()
        fields = json.loads(answer)
        if "error" in fields:
            raise RecorderError(**fields["error"])
        return Told(tuple(fields["problems"]), tuple(fields["warnings"]))

    def _death(self) -> RecorderError:
        return RecorderError(
            where="the process that records",
            expected="an answer",
            found=f"none, and exit status {self._process.returncode}",
            remedy="run again; if it ends like this again, its output above says why",
        )


def tell(dataset: Dataset, keys: Sequence[str]) -> Told:
    """Do in this process what `Recorder.tell` has done in its own."""
    from tokflow.components.instance import open_instance

    with open_instance() as instance:
        return _tell(instance, dataset, keys)


def _tell(instance: Any, dataset: Dataset, keys: Sequence[str]) -> Told:
    from tokflow.components.records import record_build
    from tokflow.components.sources import sync_files

    sync_files(instance, dataset)
    recorded = record_build(instance, dataset, keys)
    return Told(tuple(recorded.problems), tuple(recorded.warnings))


def _answer(name: str) -> dict[str, Any] | None:
    """Return what to say once the keys have come, None if none come."""
    from tokflow.components import records  # noqa: F401 (what takes long, before it is needed)
    from tokflow.components.instance import open_instance

    with open_instance() as instance:
        line = sys.stdin.readline()
        return asdict(_tell(instance, load_declared(name), json.loads(line))) if line else None


def main() -> None:
    """Be the process."""
    output, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    try:
        answer = _answer(sys.argv[1])
    except KeyboardInterrupt:
        return
    except Exception as error:
        answer = {"error": explained(error, where="the process that records").fields()}
    if answer is not None:
        output.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
