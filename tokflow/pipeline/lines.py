"""Lines of a log about a build, few enough to be kept, and how far it is."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tokflow.pipeline.output import Stage
from tokflow.pipeline.results import Reporter, StageFailure, StageResult
from tokflow.pipeline.statistics import full, percent_full
from tokflow.shown import counted, duration, size, speed

FILES_SHOWN = 100
"""More files than these have no line each, but one in SECONDS says how far they are."""

SECONDS = 5.0
"""In Dagster a line is a row of its database, and takes some 5 ms."""

PACKING_COUNTS = {
    "num_padding": ("token", "of padding"),
    "num_cut_documents": ("document", "cut"),
    "num_truncated_documents": ("document", "truncated"),
    "num_dropped_documents": ("document", "dropped"),
    "num_dropped_tokens": ("token", "dropped"),
    "num_repeated_tokens": ("token", "repeated"),
}

Say: TypeAlias = Callable[[str], None]


class Pace:
    """How far a stage is, in raw bytes of its files.

    A file's bytes count in full when it is done. Those under way are told by what was tokenized of
    them, which the ratio of the files before, at first the one given, turns into raw bytes, since
    raw files may be compressed.
    """

    def __init__(self, num_bytes: int, *, ratio: float = 1.0) -> None:
        self.total = num_bytes
        """Raw bytes of all files; 0 where that is not known."""
        self.ratio = ratio
        """Raw bytes per byte of text."""
        self.num_documents = self.text_bytes = 0
        """Of the text that was tokenized."""
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
        """Of text; 0 as long as that is not known."""
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
    is_tokenized = made.is_new and made.output.stage == "tokens"
    return int(made.manifest.counts["num_bytes"]) if is_tokenized else 0


def now_and_then(say: Say) -> Callable[[Callable[[], str]], None]:
    """Return what says a text every few seconds, and calls for no other."""
    last = time.monotonic()

    def say_if_due(text: Callable[[], str]) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS:
            say(text())
            last = time.monotonic()

    return say_if_due


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
        self._say_if_due = now_and_then(say)
        self._stage: Stage = "raw"
        self._num_files = self._num_done = 0
        """Of the stage."""
        self._new: list[StageResult] = []
        """Outputs of the stage that were made."""
        self._pace = Pace(0)

    def stage(self, stage: Stage, *, num_outputs: int, num_bytes: int) -> None:
        """Begin to count."""
        self._stage, self._num_files, self._num_done, self._new = stage, num_outputs, 0, []
        self._pace = Pace(num_bytes)

    def more(self, *, num_outputs: int, num_bytes: int) -> None:
        """Count them, too."""
        self._num_files += num_outputs
        self._pace.total += num_bytes

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Count text that was tokenized; say so if it is time."""
        self._pace.advance(num_documents, num_bytes)
        self._say_if_due(self._progress)

    def made(self, made: StageResult) -> None:
        """Say a line where there is one to say."""
        stage = made.output.stage
        if made.output.is_of_file:
            num_bytes = made.graph.raw(made.output.name).num_bytes
            self._pace.count(num_bytes, is_new=made.is_new, text_bytes=text_bytes_of(made))
        self._num_done += 1
        if made.is_new and stage in ("split", "sequences"):
            self._new.append(made)
        elif made.is_new and self._has_line(stage):
            self._say_of(made, described(made))
        if made.output.is_of_file and self._num_done < self._num_files:
            self._say_if_due(self._progress)
        self._end_stage()

    def failed(self, failed: StageFailure) -> None:
        """Count it, and tell who is to be told."""
        if self._fail is not None:
            self._fail(failed)
        self._num_done += 1
        self._end_stage()

    def _has_line(self, stage: Stage) -> bool:
        """Return whether an output of a stage has a line of its own."""
        if stage == "export":
            return self._with_exports
        return stage != "tokens" or self._num_files <= FILES_SHOWN

    def _progress(self) -> str:
        files = f"{self._num_done:,} of {counted(self._num_files, 'file')}"
        return f"{self._stage}: {', '.join([files, *filter(None, [str(self._pace)])])}"

    def _end_stage(self) -> None:
        if self._num_done == self._num_files and self._new:
            seconds = sum(one.run.get("seconds", 0.0) for one in self._new)
            files = f"{counted(len(self._new), 'file')}: {described_parts(self._new)}"
            packing = self._new[0].output.packing
            stage = f"{self._stage} ({packing})" if packing else self._stage
            self._say_of(self._new[0], f"{stage}: {files}, {duration(seconds)}")

    def _say_of(self, made: StageResult, line: str) -> None:
        dataset = made.output.dataset
        self._say(line if self._dataset in (None, dataset) else f"{dataset}: {line}")


def described(made: StageResult) -> str:
    """Return one line about the tokenizer, the tokens of a file or an export."""
    counts, run = made.manifest.counts, made.run
    output = made.output
    seconds = duration(run.get("seconds", 0.0))
    if output.stage == "tokenizer":
        num_ids = of_asked(counts["vocab_size"], made.manifest.config.get("vocab_size"))
        return f"tokenizer: {num_ids} ids, {seconds}"
    name = f"{output.stage} {output.name}"
    if output.stage == "tokens":
        said = [counted(counts[f"num_{noun}s"], noun) for noun in ("document", "token")]
        said += filter(None, [speed(run.get("megabytes_per_second")), run.get("engine")])
        said += [counted(counts["num_rejects"], "reject")] if counts["num_rejects"] else []
        num_left_out = counts.get("num_left_out")
        said += [f"{counted(num_left_out, 'record')} left out"] if num_left_out else []
        return f"{name}: {', '.join(said)}"
    counts = made.manifest.counts
    parts = [f"{part} {described_tokens(counts, part)}" for part in made.manifest.details["parts"]]
    return f"{name}: {', '.join(parts)}, {size(made.manifest.num_bytes)}, {seconds}"


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


def described_tokens(counts: Mapping[str, int], part: str) -> str:
    """Return `72 tokens` of a stream, and of sequences `72 tokens in 9 sequences (...)`."""
    tokens = counted(counts[f"{part}.num_tokens"], "token")
    is_packed = f"{part}.num_sequences" in counts
    return f"{tokens} in {described_sequences(counts, part)}" if is_packed else tokens


def described_sequences(counts: Mapping[str, int], part: str) -> str:
    """Return `12 sequences (98.4 % full, 31 tokens of padding, 2 documents cut)`.

    What is 0 is not said. The percentage is rounded down: with padding it is never 100.
    """
    said = []
    if num_slots := counts[f"{part}.num_tokens"] + counts[f"{part}.num_padding"]:
        fill = full(counts[f"{part}.num_tokens"], num_slots)
        said.append(f"{percent_full(fill):g} % full")
    for name, (noun, what) in PACKING_COUNTS.items():
        if num := counts.get(f"{part}.{name}"):
            said.append(f"{counted(num, noun)} {what}")
    sequences = counted(counts[f"{part}.num_sequences"], "sequence")
    return f"{sequences} ({', '.join(said)})" if said else sequences


def of_asked(number: int, asked: int | None) -> str:
    """Return `427 of 1,024` where another number was asked for than came out, else `427`."""
    return f"{number:,}" if asked in (None, number) else f"{number:,} of {asked:,}"
