"""Lines of a run where no terminal shows bars: few of them, as a log keeps them."""

import time
from collections import Counter
from collections.abc import Sequence

from tokflow.build.graph import Stage
from tokflow.build.results import Reporter, StageFailure, StageResult
from tokflow.cli.output import counted, of_asked, print_error
from tokflow.cli.packing import described_rows, described_tokens
from tokflow.tokenizers.tokenizer import vocab_size_asked

FILES_SHOWN = 100
"""More files than these have no line each, but one in SECONDS says how far they are."""

SECONDS = 10.0


class Errors(Reporter):
    """Prints what could not be made as soon as it is known."""

    def failed(self, failed: StageFailure) -> None:
        """Print the error."""
        print_error(str(failed.explained), failed.error)


class Lines(Errors):
    """A line for the tokens of each file and for each export; splits and sequences have one each.

    What was there already has none.
    """

    def __init__(self) -> None:
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
        is_of_file = made.output.stage in ("tokens", "split", "sequences")
        if made.is_new and is_of_file:
            self._new.append(made)
        if made.is_new and not is_of_file:
            self._print(described(made))
        elif made.is_new and made.output.stage == "tokens":
            self._print_tokens(made)
        self._count()

    def failed(self, failed: StageFailure) -> None:
        """Print the error."""
        super().failed(failed)
        self._count()

    def _print_tokens(self, made: StageResult) -> None:
        if self._num_files <= FILES_SHOWN:
            self._print(described(made))
        elif time.monotonic() - self._last_line >= SECONDS:
            name = f"{made.output.dataset}: tokens: file {self._num_done + 1:,} of"
            self._print(f"{name} {self._num_files:,}, {made.output.name}")

    def _count(self) -> None:
        self._num_done += 1
        is_told = not self._new or self._new[0].output.stage == "tokens"
        if self._num_done == self._num_files and not is_told:
            self._print(described_stage(self._new))

    def _print(self, line: str) -> None:
        print(line, flush=True)
        self._last_line = time.monotonic()


def described(made: StageResult) -> str:
    """Return one line about the tokenizer, the tokens of a file or an export."""
    counts, run = made.manifest.counts, made.run
    output = made.output
    seconds = f"{run.get('seconds', 0):,.1f} s"
    if output.stage == "tokenizer":
        size = of_asked(counts["vocab_size"], vocab_size_asked(made.manifest))
        return f"{output.dataset}: tokenizer: {size} ids, {seconds}"
    name = f"{output.dataset}: {output.stage} {output.name}"
    if output.stage == "tokens":
        speed = f"{run['megabytes_per_second']:,.1f} MB/s" if run else "unknown speed"
        return (
            f"{name}: {counted(counts['num_documents'], 'document')}, "
            f"{counted(counts['num_tokens'], 'token')}, {speed}, {run.get('engine')}"
        )
    parts = [f"{part} {described_tokens(counts, part)}" for part in made.manifest.details["parts"]]
    return f"{name}: {', '.join(parts)}, {seconds}"


def described_stage(made: Sequence[StageResult]) -> str:
    """Return one line about the splits, or the sequences, of several files."""
    output = made[0].output
    seconds = sum(one.run.get("seconds", 0) for one in made)
    files = counted(len(made), "file")
    return f"{output.dataset}: {output.stage}: {files}: {described_parts(made)}, {seconds:,.1f} s"


def described_parts(made: Sequence[StageResult]) -> str:
    """Return what the parts of several files' splits, or sequences, hold together."""
    first = made[0]
    counts: Counter[str] = Counter()
    for one in made:
        counts.update(one.manifest.counts)
    of_part = described_rows if first.output.stage == "sequences" else described_tokens
    said = [f"{part} {of_part(counts, part)}" for part in first.manifest.details["parts"]]
    tail = sum(num for name, num in counts.items() if name.endswith(".num_tail_tokens"))
    said += [f"{counted(tail, 'token')} for the rows of all files' tails"] if tail else []
    return ", ".join(said)
