"""Put each fault of the table into a copy of the product and run its test there, which must fail.

python -m tokflow_tests.mutants [--jobs 2] [--marks "not slow"] [room, or words of a fault ...]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tokflow_tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]

TEST_SECONDS = 120
"""Of one test, after which it has failed: a mutation may make a loop that does not end."""

PASSED, FAILED = 0, 1
"""Exit statuses of pytest; others mean that tests did not run."""


def problem_of(mutant: Mutant) -> str | None:
    """Return why a mutation cannot be made, or not be tried, any more; None where it can."""
    if (num := len(places_of(mutant))) != 1:
        return f"expected once in tokflow/{mutant.room}, found {num} times: {mutant.old!r}"
    if (num := len(files_with(mutant.test))) != 1:
        return f"expected one test called {mutant.test}, found {num}"
    return None


def places_of(mutant: Mutant) -> list[Path]:
    """Return the modules of its room that have the old text, each as often as it has it."""
    texts = {path: path.read_text() for path in (ROOT / "tokflow" / mutant.room).rglob("*.py")}
    return [path for path, text in texts.items() for _ in range(text.count(mutant.old))]


def files_with(test: str) -> list[Path]:
    """Return the files that have a test of this name."""
    return [path for path, text in _test_files().items() if f"def {test}(" in text]


@cache
def _test_files() -> dict[Path, str]:
    return {path: path.read_text() for path in (ROOT / "tokflow_tests").rglob("test_*.py")}


def main() -> int:
    """Print which faults were found; return 1 where one was not, or could not be tried."""
    parser = argparse.ArgumentParser(prog="make test-mutants")
    parser.add_argument("words", nargs="*", help="rooms, or words of faults; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--marks", default="", help="pytest's expression for the tests to run")
    given = parser.parse_args()
    chosen = [
        of
        for of in MUTANTS
        if not given.words or any(word == of.room or word in of.fault for word in given.words)
    ]
    problems = {of: problem for of in chosen if (problem := problem_of(of))}
    known = [of for of in chosen if of not in problems]
    with TemporaryDirectory(prefix="tokflow-mutants-") as folder:
        trees = Trees(Path(folder), given.jobs, given.marks)
        problems |= dict.fromkeys(trees.not_found(known), "NOT FOUND")
        problems |= dict.fromkeys(trees.failing_without(known), "its test fails without it, too")
    for of, problem in problems.items():
        print(f"{of.room}: {of.fault}: {problem}")
    print(f"found {len(chosen) - len(problems)} of {len(chosen)}")
    return 1 if problems else 0


class Trees:
    """Copies of the working tree, which itself stays as it is, to be mutated in turn."""

    def __init__(self, folder: Path, num: int, marks: str) -> None:
        self._num, self._marks = num, marks
        self._idle = SimpleQueue[Path]()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"))
        there = [name for name in names if (ROOT / name).is_file()]
        for tree in (folder / str(number) for number in range(num)):
            for name in there:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            self._idle.put(tree)

    def not_found(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        """Return the mutations with which their tests pass."""

        def is_found(mutant: Mutant) -> bool:
            tree = self._idle.get()
            try:
                with _mutated(tree / places_of(mutant)[0].relative_to(ROOT), mutant):
                    found = bool(self._failing(tree, [mutant]))
            finally:
                self._idle.put(tree)
            print(f"{mutant.room}: {mutant.fault}: {mutant.test if found else 'NOT FOUND'}")
            sys.stdout.flush()
            return found

        with ThreadPoolExecutor(self._num) as pool:
            found = list(pool.map(is_found, mutants))
        return [of for of, is_it in zip(mutants, found, strict=True) if not is_it]

    def failing_without(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        """Return the mutations whose tests fail although nothing is mutated."""
        return self._failing(self._idle.get(), mutants) if mutants else []

    def _failing(self, tree: Path, mutants: Sequence[Mutant]) -> list[Mutant]:
        """Return the mutations whose tests fail in a tree; processes that these start import the
        product from it, too."""
        files = {of.test: files_with(of.test)[0].relative_to(ROOT) for of in mutants}
        options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", self._marks]
        options += [f"--timeout={TEST_SECONDS}", *["-x"] * (len(mutants) == 1)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options]
            + [f"{file}::{test}" for test, file in files.items()],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (PASSED, FAILED):
            raise SystemExit(f"{done.stdout}{done.stderr}\n{' '.join(files)} did not run")
        failed = re.findall(r"^(?:FAILED|ERROR) [^:]+::(\w+)", done.stdout, re.MULTILINE)
        return [of for of in mutants if of.test in failed]


@contextmanager
def _mutated(path: Path, mutant: Mutant) -> Iterator[None]:
    """Put a mutation into a file for as long as the block runs."""
    status, text = path.stat(), path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as its compiled form has it


if __name__ == "__main__":
    raise SystemExit(main())
