"""Progress of a run: bars on a terminal, otherwise a few lines of a log."""

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

from tokflow.cli.terminal import console, print_error, print_styled
from tokflow.documents import DocumentsConfig
from tokflow.formatting import printable, size, speed
from tokflow.pipeline.plan import Plan
from tokflow.pipeline.results import Reporter, StageBegun, StageFailure, StageResult
from tokflow.pipeline.run_log import Lines, Pace, text_bytes_of

if TYPE_CHECKING:
    from rich.progress import TaskID


FILES_ASKED = 4
LARGE_BYTES = 4_000_000
"""Number and size of the files that are asked for the size of their text."""


class Errors(Reporter):
    """Errors of a run, each message once, to be printed at its end."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}

    def failed(self, failed: StageFailure) -> None:
        """Keep the error."""
        self.keep(failed)

    def keep(self, failed: StageFailure) -> str | None:
        """Keep the error; return the line to print now, None if another output failed for the same
        reason."""
        message = str(failed.explained)
        if failed.is_left_out:
            return f"{failed.stage} {failed.name}: left out, {message}"
        if message in self._found:
            return None
        self._found[message] = failed.error
        return f"{failed.stage} {failed.name}: failed"

    def print_all(self) -> None:
        """Print the errors in the order in which they were found."""
        sys.stdout.flush()
        for message, error in self._found.items():
            print_error(message, error)


def printed_lines(dataset: str, errors: Errors) -> Lines:
    """Return a reporter that prints the lines of a log and keeps errors."""

    def say(line: str) -> None:
        print_styled(f"{dataset}: {line}")

    def fail(failed: StageFailure) -> None:
        if line := errors.keep(failed):
            say(line)

    return Lines(say, fail, dataset=dataset, with_exports=False)


class Bars(Errors):
    """A bar for each stage that has something to make, on a terminal.

    A stage's total is the raw bytes of the files it has to do.
    """

    def __init__(self, plan: Plan) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__()
        self._sizes = defaultdict[str, dict[str, int]](dict)
        for of in plan.missing:
            self._sizes[of.stage][of.name] = of.num_bytes
        fields = ("{task.fields[stage]:<10}", None, "{task.fields[size]}", "{task.fields[speed]}")
        self._progress = Progress(
            *(TextColumn(text, markup=False) if text else BarColumn() for text in fields),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[name]}", markup=False),
            console=console(),
        )
        self._stage = "raw"
        self._bar: TaskID | None = None
        self._pace = Pace(0, ratio=raw_per_text(plan))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def recorded(self, num_files: int, of_files: int) -> None:
        """Move a bar of its own."""
        if self._bar is None:
            fields: dict[str, Any] = dict.fromkeys(("size", "speed", "name"), "")
            self._bar = self._progress.add_task("", total=of_files, stage="recorded", **fields)
        self._progress.update(self._bar, completed=num_files)

    def begun(self, begun: StageBegun) -> None:
        """Begin a bar, if there is something to make, or make it longer."""
        if begun.is_more:
            self._pace.total += begun.num_bytes
            if self._bar is not None:
                self._progress.update(self._bar, total=self._pace.total)
            return
        self._stage, self._bar = begun.stage, None
        sizes = self._sizes[begun.stage].values()
        self._pace = Pace(max(sum(sizes), 1), ratio=self._pace.ratio)
        if sizes:
            self._bar = self._progress.add_task(
                "", total=self._pace.total, stage=begun.stage, size="", speed="", name=""
            )

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Move the bar by text that was tokenized."""
        self._pace.advance(num_documents, num_bytes)
        self._show(speed=f"{speed(self._pace.megabytes_per_second):>13}")

    def made(self, made: StageResult) -> None:
        """Count the output's raw bytes in full."""
        self._count(made.output.name, is_new=made.is_new, text_bytes=text_bytes_of(made))

    def failed(self, failed: StageFailure) -> None:
        """Keep the error; print above the bars that there is one."""
        self._count(failed.name, is_new=False)
        if line := self.keep(failed):
            self._progress.console.print(printable(line), style="red")

    def _count(self, name: str, *, is_new: bool, text_bytes: int = 0) -> None:
        num_bytes = max(self._sizes[self._stage].get(name, 0), 1)  # a tokenizer has none
        self._pace.count(num_bytes, is_new=is_new, text_bytes=text_bytes)
        self._show(name=printable(name))

    def _show(self, **fields: Any) -> None:
        """Bring the bar of the stage, if it has one, up to date."""
        if self._bar is None:
            return
        num_bytes, total = self._pace.num_bytes, self._pace.total
        shown = f"{size(num_bytes)} of {size(total)}" if total > 1 else ""
        self._progress.update(self._bar, completed=num_bytes, size=shown, **fields)


def raw_per_text(plan: Plan) -> float:
    """Return the estimated raw bytes per byte of text, from the metadata of the largest files."""
    to_do = [of for of in plan.missing if of.output.step.has_engine and of.num_bytes >= LARGE_BYTES]
    largest = sorted(to_do, key=lambda of: of.num_bytes)[-FILES_ASKED:]
    if not largest:
        return 1.0
    from tokflow.documents.ranges import declared_text_bytes

    files = [
        (path, num_bytes, graph.dataset.of(DocumentsConfig))  # of a mixture those of the source
        for graph, key in ((of.output.graph, of.name) for of in largest)
        for path, num_bytes in graph.raw(key).sizes.items()
    ][:FILES_ASKED]
    num_text_bytes = sum(declared_text_bytes(*of) for of in files)
    return sum(num_bytes for _, num_bytes, _ in files) / max(num_text_bytes, 1)
