"""Results of a build: outputs that were made, those that could not be, and who hears of them."""

from dataclasses import dataclass
from typing import Any

from tokflow.errors import TokflowError, explained
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.notices import Notice, Totals
from tokflow.pipeline.output import SOURCE_STAGES, Output, Stage
from tokflow.raw import LeftOut, RawPartition
from tokflow.store.store import InStore, StoredOutput


@dataclass(frozen=True, slots=True)
class StageResult(InStore):
    """One output, and whether this call made it."""

    graph: BuildGraph
    """That which has the output."""
    output: Output
    stored: StoredOutput
    is_new: bool
    run: dict[str, Any]
    """Seconds, engine and speed of the run that made it, whenever that was."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """One output that could not be made."""

    stage: Stage
    name: str
    error: Exception
    packing: str = ""
    """Of sequences: as in `Output`."""

    @property
    def explained(self) -> TokflowError:
        """The error as the user is told of it."""
        return explained(self.error, where=f"{self.stage} {self.name}")

    def as_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"stage": self.stage, "name": self.name, "error": self.explained.fields()}


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Everything that `build_dataset` made, and what it could not make."""

    partitions: dict[str, RawPartition]
    """Those of which nothing failed, by their keys."""
    made: tuple[StageResult, ...]
    """Every output that is there now, in the order of the stages."""
    failed: tuple[StageFailure, ...]
    """Empty if all is well."""
    left_out: tuple[LeftOut, ...]
    """Files that the patterns of the raw files match and that were not read."""
    seconds: float

    @property
    def num_files(self) -> int:
        """Raw files of the partitions."""
        return sum(len(raw.files) for raw in self.partitions.values())

    @property
    def num_new(self) -> int:
        """Outputs that were not there before."""
        return sum(made.is_new for made in self.made)

    @property
    def notices(self) -> list[Notice]:
        """Notices about the outputs that are there now, and about a mixture's sources."""
        totals = Totals()
        for made in self.made:
            totals.add(made.manifest, made.output.name)
        graphs = self.made[0].graph.of_sources.values() if self.made else ()
        for output in (of for graph in graphs for of in graph.outputs()):
            if output.stage in SOURCE_STAGES:
                totals.add(output.manifest(), output.name)
        return totals.notices()

    def of(self, stage: Stage) -> list[StageResult]:
        """Return the outputs of one stage."""
        return [made for made in self.made if made.output.stage == stage]

    def export(self, name: str) -> StageResult:
        """Return one export.

        Raises: the error that kept it from being made.
        """
        for made in self.of("export"):
            if made.output.name == name:
                return made
        for failed in self.failed:
            raise failed.error
        raise KeyError(name)


class Reporter:
    """Events of a build, each a method; a progress display overrides those that it shows."""

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """A stage begins, with the raw bytes of the files it has to do."""

    def more(self, *, num_outputs: int, num_bytes: int) -> None:
        """The stage has so many more outputs to make, of files of so many raw bytes."""

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Documents with so many bytes of text were tokenized."""

    def made(self, made: StageResult) -> None:
        """An output is there."""

    def failed(self, failed: StageFailure) -> None:
        """An output could not be made."""

    def may_export(self) -> bool:
        """Return whether exports may be made, now that all else is there."""
        return True
