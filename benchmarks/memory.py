"""Peak memory of the tokens stage on a small and a large file: it should not depend on the size."""

import sys
import tempfile
from pathlib import Path

from benchmarks.process import measure
from benchmarks.programs import GPT2, ROOT

AIM_BYTES = 100_000_000
"""The large file may take this much more than the small one."""


def measure_kind(kind, *, small, large):
    """Return the measurement of a file of `kind` with `small` and with `large` bytes of text."""
    return measure_size(kind, small), measure_size(kind, large)


def measure_size(kind, num_bytes):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"corpus.{kind}"
        corpus = [sys.executable, "-m", "benchmarks.corpus", file, "--bytes", num_bytes]
        measure(corpus, folder=ROOT, environment={})
        options = ["--tokenizer", GPT2, "--store", Path(folder) / "store", "--until", "tokens"]
        command = [sys.executable, "-m", "benchmarks.core", file, *options]
        return measure(command, folder=ROOT, environment={})


def line(kind, pair):
    small, large = (one.peak_bytes / 1e6 for one in pair)
    verdict = "within" if large - small <= AIM_BYTES / 1e6 else "NOT within"
    return (
        f"  {kind:12}{small:10.0f}{large:10.0f}{large - small:+12.0f}   {verdict} the aim of "
        f"{AIM_BYTES / 1e6:.0f} MB"
    )
