"""Progress on a terminal: a bar per stage with bytes, MB/s and the time that is left."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tokflow.build.graph import Stage
from tokflow.build.plan import Plan
from tokflow.build.results import Reporter, StageFailure, StageResult
from tokflow.cli.output import print_error, size


class Bars(Reporter):
    """A bar for each stage that has something to make.

    A stage's total is the raw bytes of the files it has to do. Within a file, tokenized text is
    turned into raw bytes by the ratio that the files before it had, since raw files may be
    compressed; a file's bytes count in full when it is done.
    """

    def __init__(self, plan: Plan) -> None:
        self._sizes = {(p.stage, p.name): p.num_bytes for p in plan.missing}
        self._progress = Progress(
            TextColumn("{task.fields[stage]:<10}"),
            BarColumn(),
            _Bytes(),
            _Speed(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[current]}"),
            console=Console(),
        )
        self._task: TaskID | None = None
        self._stage: Stage = "raw"
        self._name = ""
        self._done = 0
        """Raw bytes of the files of the stage that are done."""
        self._text_bytes = 0
        """Of the file under way."""
        self._all_text = 0
        self._all_raw = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """Open the stage's bar."""
        self._open(stage)

    def start(self, stage: Stage, name: str) -> None:
        """Show the output under way."""
        if stage != self._stage:
            self._open(stage)
        self._name, self._text_bytes = name, 0
        if self._task is not None:
            self._progress.update(self._task, current=name)

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Move the bar by text that was tokenized."""
        if self._task is None:
            return
        self._text_bytes += num_bytes
        ratio = self._all_raw / self._all_text if self._all_text else 1.0
        of_file = min(self._text_bytes * ratio, 0.99 * self._size())
        task = self._progress.tasks[self._progress.task_ids.index(self._task)]
        text = task.fields["text_bytes"] + num_bytes
        self._progress.update(self._task, completed=self._done + of_file, text_bytes=text)

    def made(self, made: StageResult) -> None:
        """Count the output's raw bytes in full."""
        if made.is_new and made.output.stage == "tokens":
            self._all_raw += self._size()
            self._all_text += made.manifest.counts["num_bytes"]
        self._finish()

    def failed(self, failed: StageFailure) -> None:
        """Print the error above the bars."""
        self._finish()
        self._progress.stop()
        print_error(str(failed.explained), failed.error)
        self._progress.start()

    def _open(self, stage: Stage) -> None:
        if self._task is not None:
            self._progress.update(self._task, current="")
        self._stage, self._done, self._task = stage, 0, None
        total = sum(num_bytes for (of, _), num_bytes in self._sizes.items() if of == stage)
        if any(of == stage for of, _ in self._sizes):
            self._task = self._progress.add_task(
                "", total=max(total, 1), stage=stage, current="", text_bytes=0
            )

    def _finish(self) -> None:
        self._done += self._size()
        if self._task is not None:
            self._progress.update(self._task, completed=self._done)

    def _size(self) -> int:
        return self._sizes.get((self._stage, self._name), 0)


class _Bytes(ProgressColumn):
    """Raw bytes done, of all that the stage has to do."""

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        return Text(f"{size(task.completed)} of {size(task.total or 0)}", style="progress.download")


class _Speed(ProgressColumn):
    """Text per second, where text is tokenized; else nothing."""

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        elapsed = task.finished_time or task.elapsed
        num_bytes = task.fields["text_bytes"]
        speed = f"{num_bytes / 1e6 / elapsed:,.1f} MB/s" if elapsed and num_bytes else ""
        return Text(f"{speed:>11}", style="progress.data.speed")
