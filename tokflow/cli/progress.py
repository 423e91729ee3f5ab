"""Progress of a run: bars on a terminal; elsewhere lines, few enough for a log to keep."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tokflow.build.output import Stage
from tokflow.build.plan import Plan
from tokflow.build.results import Reporter, StageFailure, StageResult
from tokflow.cli.terminal import (
    console,
    counted,
    described_sequences,
    described_tokens,
    of_asked,
    print_error,
    size,
)
from tokflow.tokenizers.tokenizer import vocab_size_asked

if TYPE_CHECKING:
    from rich.progress import TaskID

FILES_SHOWN = 100
"""More files than these have no line each, but one in SECONDS says how far they are."""

SECONDS = 10.0

FILES_ASKED = 4
LARGE_BYTES = 4_000_000
"""So many files, of those that are large, are asked for the size of their text."""


class Errors(Reporter):
    """Prints what could not be made as soon as it is known, one damage once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def failed(self, failed: StageFailure) -> None:
        """Print the error, unless another output has failed for the same reason."""
        if (message := str(failed.explained)) not in self._told:
            self._told.add(message)
            print_error(message, failed.error)


class Lines(Errors):
    """A line for the tokens of each file and for each export; splits and sequences have one each.

    What was there already has none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_files = self._num_done = 0
        """Of the stage."""
        self._new: list[StageResult] = []
        """Outputs of the stage that were made."""
        self._last_line = time.monotonic()

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """Begin to count."""
        self._num_files, self._num_done, self._new = num_outputs, 0, []

    def made(self, made: StageResult) -> None:
        """Print a line where there is one to print."""
        stage = made.output.stage
        if made.is_new and stage in ("split", "sequences"):
            self._new.append(made)
        elif made.is_new and (stage != "tokens" or self._num_files <= FILES_SHOWN):
            self._print(described(made))
        elif made.is_new and time.monotonic() - self._last_line >= SECONDS:
            name = f"{made.output.dataset}: tokens: file {self._num_done + 1:,} of"
            self._print(f"{name} {self._num_files:,}, {made.output.name}")
        self._count()

    def failed(self, failed: StageFailure) -> None:
        """Print the error."""
        super().failed(failed)
        self._count()

    def _count(self) -> None:
        self._num_done += 1
        if self._num_done == self._num_files and self._new:
            output = self._new[0].output
            seconds = sum(one.run.get("seconds", 0) for one in self._new)
            files = f"{counted(len(self._new), 'file')}: {described_parts(self._new)}"
            self._print(f"{output.dataset}: {output.stage}: {files}, {seconds:,.1f} s")

    def _print(self, line: str) -> None:
        print(line, flush=True)
        self._last_line = time.monotonic()


def described(made: StageResult) -> str:
    """Return one line about the tokenizer, the tokens of a file or an export."""
    counts, run = made.manifest.counts, made.run
    output = made.output
    seconds = f"{run.get('seconds', 0):,.1f} s"
    if output.stage == "tokenizer":
        num_ids = of_asked(counts["vocab_size"], vocab_size_asked(made.manifest))
        return f"{output.dataset}: tokenizer: {num_ids} ids, {seconds}"
    name = f"{output.dataset}: {output.stage} {output.name}"
    if output.stage == "tokens":
        speed = f"{run['megabytes_per_second']:,.1f} MB/s" if run else "unknown speed"
        return (
            f"{name}: {counted(counts['num_documents'], 'document')}, "
            f"{counted(counts['num_tokens'], 'token')}, {speed}, {run.get('engine')}"
        )
    parts = [f"{part} {described_tokens(counts, part)}" for part in made.manifest.details["parts"]]
    return f"{name}: {', '.join(parts)}, {seconds}"


def described_parts(made: Sequence[StageResult]) -> str:
    """Return what the parts of several files' splits, or sequences, hold together."""
    first = made[0]
    counts: Counter[str] = Counter()
    for one in made:
        counts.update(one.manifest.counts)
    described = described_sequences if first.output.stage == "sequences" else described_tokens
    said = [f"{part} {described(counts, part)}" for part in first.manifest.details["parts"]]
    num_left = sum(num for name, num in counts.items() if name.endswith(".num_tail_tokens"))
    said += [f"{counted(num_left, 'leftover token')}, packed at export"] if num_left else []
    return ", ".join(said)


class Bars(Errors):
    """A bar for each stage that has something to make, on a terminal.

    A stage's total is the raw bytes of the files it has to do. Files under way are shown by what
    was tokenized of them, which the ratio of the files before, at first that of which files say
    themselves, turns into raw bytes; a file's bytes count in full when it is done.
    """

    def __init__(self, plan: Plan) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__()
        self._sizes = {(p.stage, p.name): p.num_bytes for p in plan.missing}
        fields = ("{task.fields[stage]:<10}", None, "{task.fields[size]}", "{task.fields[speed]}")
        self._progress = Progress(
            *(TextColumn(text, markup=False) if text else BarColumn() for text in fields),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[name]}", markup=False),
            console=console(),
        )
        self._stage: Stage = "raw"
        self._bar: TaskID | None = None
        self._raw_bytes = self._text_bytes = self._done_bytes = 0
        """Of the files of the stage that are done, and of the text of this stage, of which the last
        is that of the files that are done."""
        self._ratio = raw_per_text(plan)
        """Raw bytes per byte of text."""
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """Begin a bar, if there is something to make."""
        self._stage, self._bar, self._started = stage, None, time.monotonic()
        self._raw_bytes = self._text_bytes = self._done_bytes = 0
        sizes = [num_bytes for (of, _), num_bytes in self._sizes.items() if of == stage]
        if sizes:
            total = max(sum(sizes), 1)
            self._bar = self._progress.add_task(
                "", total=total, stage=stage, size="", speed="", name=""
            )

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Move the bar by text that was tokenized."""
        self._text_bytes += num_bytes
        speed = self._text_bytes / 1e6 / max(time.monotonic() - self._started, 1e-3)
        self._show(speed=f"{speed:8,.1f} MB/s")

    def made(self, made: StageResult) -> None:
        """Count the output's raw bytes in full."""
        if made.is_new and made.output.stage == "tokens":
            self._done_bytes += made.manifest.counts["num_bytes"]
        self._count(made.output.name)
        if self._done_bytes:
            self._ratio = self._raw_bytes / self._done_bytes

    def failed(self, failed: StageFailure) -> None:
        """Print the error above the bars."""
        self._count(failed.name)
        self._progress.stop()
        super().failed(failed)
        self._progress.start()

    def _count(self, name: str) -> None:
        self._raw_bytes += max(self._sizes.get((self._stage, name), 0), 1)  # a tokenizer has none
        self._show(name=name)

    def _show(self, **fields: Any) -> None:
        """Bring the bar of the stage, if it has one, up to date."""
        if self._bar is None:
            return
        [total] = [task.total or 0 for task in self._progress.tasks if task.id == self._bar]
        under_way = max(0, self._text_bytes - self._done_bytes) * self._ratio
        num_bytes = max(self._raw_bytes, min(self._raw_bytes + under_way, 0.99 * total))
        shown = f"{size(num_bytes)} of {size(total)}" if total > 1 else ""
        self._progress.update(self._bar, completed=num_bytes, size=shown, **fields)


def raw_per_text(plan: Plan) -> float:
    """Return about how many raw bytes a byte of text takes, as the largest files to do say."""
    to_do = [of for of in plan.missing if of.stage == "tokens" and of.num_bytes >= LARGE_BYTES]
    largest = sorted(to_do, key=lambda of: of.num_bytes)[-FILES_ASKED:]
    if not largest:
        return 1.0
    from tokflow.documents.text_size import declared_text_bytes

    documents = plan.dataset.documents
    sizes = [of for planned in largest for of in plan.graph.raw(planned.name).sizes.items()]
    num_text_bytes = sum(declared_text_bytes(*of, documents) for of in sizes[:FILES_ASKED])
    return sum(num_bytes for _, num_bytes in sizes[:FILES_ASKED]) / max(num_text_bytes, 1)
