"""Results of a build: outputs that were made, those that could not be, and who hears of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.build.output import Output, Stage
from tokflow.errors import TokflowError, explained
from tokflow.raw import LeftOut, RawFile
from tokflow.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StageResult:
    """One output, and whether this call made it."""

    output: Output
    manifest: Manifest
    is_new: bool
    run: dict[str, Any]
    """Seconds, engine and speed of the run that made it, whenever that was."""

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.output.folder


@dataclass(frozen=True, slots=True)
class StageFailure:
    """One output that could not be made."""

    stage: Stage
    name: str
    error: Exception

    @property
    def explained(self) -> TokflowError:
        """What to tell the user."""
        return explained(self.error, where=f"{self.stage} {self.name}")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What `build_dataset` did."""

    raw_files: dict[str, RawFile]
    made: tuple[StageResult, ...]
    """Every output that is there now, in the order of the stages."""
    failed: tuple[StageFailure, ...]
    """Empty if all is well."""
    left_out: tuple[LeftOut, ...]
    """What the patterns of the raw files match and was not read."""
    seconds: float

    @property
    def num_new(self) -> int:
        """Outputs that were not there before."""
        return sum(made.is_new for made in self.made)

    def export(self, name: str) -> StageResult:
        """Return one export.

        Raises: the error that kept it from being made.
        """
        for made in self.made:
            if made.output.stage == "export" and made.output.name == name:
                return made
        for failed in self.failed:
            raise failed.error
        raise KeyError(name)


class Reporter:
    """Hears how a build goes on; a progress display overrides what it shows."""

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """Say that a stage begins, with the raw bytes of the files it has to do."""

    def start(self, stage: Stage, name: str) -> None:
        """Say that an output is looked at."""

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Say that documents with so many bytes of text were tokenized."""

    def made(self, made: StageResult) -> None:
        """Say that an output is there."""

    def failed(self, failed: StageFailure) -> None:
        """Say that an output could not be made."""
