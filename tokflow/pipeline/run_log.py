"""Lines of a log about a build, few enough to be kept, and how far it is."""

import time
from collections.abc import Callable
from typing import TypeAlias

from tokflow.formatting import counted, duration, size, speed
from tokflow.pipeline.describe import describe, describe_all
from tokflow.pipeline.results import Reporter, StageBegun, StageFailure, StageResult

FILES_SHOWN = 100
"""More files than these have no line each, but one in SECONDS says how far they are."""

SECONDS = 5.0
"""In Dagster a line is a row of its database, and takes some 5 ms."""

Say: TypeAlias = Callable[[str], None]


class Pace:
    """Progress of a stage, in raw bytes of its files.

    A file's bytes count in full when it is done. Of a file under way the tokenized text counts,
    multiplied by the raw bytes per byte of text of the files before (at first by `ratio`), since
    raw files can be compressed.
    """

    def __init__(self, num_bytes: int, *, ratio: float = 1.0) -> None:
        self.total = num_bytes
        """Raw bytes of all files; 0 where that is not known."""
        self.ratio = ratio
        """Raw bytes per byte of text."""
        self.num_documents = self.text_bytes = 0
        """Documents and bytes of the text that was tokenized."""
        self._done_bytes = self._new_bytes = self._done_text_bytes = 0
        """Bytes of files done, of files newly built, and of the text of the newly built."""
        self._started = time.monotonic()
        self._before: tuple[float, int] = 0.0, 0
        """Raw bytes made, and text, when speed began to be measured: with the first text, before
        which workers start."""

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Count text that was tokenized."""
        is_first = not self.text_bytes
        self.num_documents += num_documents
        self.text_bytes += num_bytes
        if is_first:
            self._started, self._before = time.monotonic(), (self._made, num_bytes)

    def count(self, num_bytes: int, *, is_new: bool, text_bytes: int = 0) -> None:
        """Count a file that is done, by its raw bytes, and what was tokenized of it."""
        self._done_bytes += num_bytes
        self._done_text_bytes += text_bytes
        self._new_bytes += num_bytes if is_new else 0
        if self._done_text_bytes:
            self.ratio = self._new_bytes / self._done_text_bytes

    @property
    def num_bytes(self) -> float:
        """Raw bytes that are done, with those under way; below the total until all are."""
        under_way = max(0, self.text_bytes - self._done_text_bytes) * self.ratio
        return max(self._done_bytes, min(self._done_bytes + under_way, 0.99 * self.total))

    @property
    def megabytes_per_second(self) -> float:
        """Speed in text; 0 as long as it is not known."""
        return (self.text_bytes - self._before[1]) / 1e6 / self._seconds

    @property
    def _made(self) -> float:
        """Raw bytes that were made here."""
        return self.num_bytes - (self._done_bytes - self._new_bytes)

    def __str__(self) -> str:
        """Return `41 %, 1,204 documents, 310.0 MB, 62.1 MB/s, 7 s left`, or what is known of it."""
        said = []
        if self.total:
            said.append(f"{int(100 * self.num_bytes / self.total)} %")
        if self.text_bytes:
            said.append(counted(self.num_documents, "document"))
            said.append(size(self.text_bytes))
            said.append(speed(self.megabytes_per_second))
        made = self._made - self._before[0]
        if self.total and made > 0:
            left = (self.total - self.num_bytes) * self._seconds / made
            said.append(f"{duration(round(left))} left")
        return ", ".join(filter(None, said))

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-3)


def text_bytes_of(made: StageResult) -> int:
    """Return the text that was tokenized for an output."""
    is_tokenized = made.is_new and made.output.step.has_engine
    return int(made.manifest.counts["num_bytes"]) if is_tokenized else 0


class Lines(Reporter):
    """A line for the tokens of each file and for each export; splits and sequences have one each.

    What was there already has none. What takes long has a line every few seconds.
    """

    def __init__(
        self,
        say: Say,
        fail: Callable[[StageFailure], None] | None = None,
        *,
        dataset: str | None = None,
        with_exports: bool = True,
    ) -> None:
        """`dataset`: the one whose lines they are; those of a mixture's sources begin with their
        names. `with_exports`: False where a table of exports follows."""
        self._with_exports = with_exports
        self._say = say
        self._dataset = dataset
        self._fail = fail
        self._last = time.monotonic()
        self._stage = "raw"
        self._num_files = self._num_done = 0
        """Files of the stage, and those that are done."""
        self._new: list[StageResult] = []
        """Outputs of the stage that were made."""
        self._pace = Pace(0)

    def _say_if_due(self, text: Callable[[], str]) -> None:
        """Say a text, which is made for nothing else, unless another was said just now."""
        if time.monotonic() - self._last >= SECONDS:
            self._say(text())
            self._last = time.monotonic()

    def recorded(self, num_files: int, of_files: int) -> None:
        """Say how many there are, if it is time."""
        self._say_if_due(lambda: f"raw: {num_files:,} of {counted(of_files, 'file')} recorded")

    def begun(self, begun: StageBegun) -> None:
        """Begin to count, or count these, too."""
        if begun.is_more:
            self._num_files += begun.num_outputs
            self._pace.total += begun.num_bytes
            return
        self._stage, self._num_files = begun.stage, begun.num_outputs
        self._num_done, self._new, self._pace = 0, [], Pace(begun.num_bytes)

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Count text that was tokenized; say so if it is time."""
        self._pace.advance(num_documents, num_bytes)
        self._say_if_due(self._progress)

    def made(self, made: StageResult) -> None:
        """Say a line where there is one to say."""
        step = made.output.step
        if step.is_of_file:
            num_bytes = made.output.graph.raw(made.output.name).num_bytes
            self._pace.count(num_bytes, is_new=made.is_new, text_bytes=text_bytes_of(made))
        self._num_done += 1
        is_shown = not step.has_engine or self._num_files <= FILES_SHOWN
        if made.is_new and step.is_of_file and not step.has_engine:
            self._new.append(made)
        elif made.is_new and (self._with_exports if step.has_latest else is_shown):
            self._say_of(made, line_of(made))
        if step.is_of_file and self._num_done < self._num_files:
            self._say_if_due(self._progress)
        self._end_stage()

    def failed(self, failed: StageFailure) -> None:
        """Count it, and pass it on."""
        if self._fail is not None:
            self._fail(failed)
        self._num_done += 1
        self._end_stage()

    def _progress(self) -> str:
        files = f"{self._num_done:,} of {counted(self._num_files, 'file')}"
        return f"{self._stage}: {', '.join([files, *filter(None, [str(self._pace)])])}"

    def _end_stage(self) -> None:
        if self._num_done == self._num_files and self._new:
            seconds = sum(one.run.get("seconds", 0.0) for one in self._new)
            described = describe_all(one.manifest for one in self._new)
            files = f"{counted(len(self._new), 'file')}: {described}"
            packing = self._new[0].output.packing
            stage = f"{self._stage} ({packing})" if packing else self._stage
            self._say_of(self._new[0], f"{stage}: {files}, {duration(seconds)}")

    def _say_of(self, made: StageResult, line: str) -> None:
        dataset = made.output.graph.dataset.name
        self._say(line if self._dataset in (None, dataset) else f"{dataset}: {line}")


def line_of(made: StageResult) -> str:
    """Return the line of one output, `tokens a.jsonl: 4 documents, 29 tokens, 62.1 MB/s`."""
    output, described = made.output, describe(made.manifest, made.run)
    name = f"{output.stage} {output.key or output.variant}".strip()
    if output.step.is_of_file:
        return f"{name}: {described}"
    num_bytes = [size(made.manifest.num_bytes)] if described.parts else []
    seconds = duration(made.run.get("seconds", 0.0))
    return f"{name}: {', '.join([str(described), *num_bytes, seconds])}"
