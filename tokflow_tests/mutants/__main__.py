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


class StaleError(LookupError):
    """A mutation cannot be made any more, or its test is gone."""


def locate(mutant: Mutant, root: Path) -> tuple[Path, Path]:
    """Return the module that has the old text, and the file of the test, both from the root on.

    Raises: StaleError.
    """
    texts = _texts(root / "tokflow" / mutant.room, "*.py").items()
    modules = [path for path, text in texts for _ in range(text.count(mutant.old))]
    if len(modules) != 1:
        found = f"found {len(modules)} times: {mutant.old!r}"
        raise StaleError(f"expected once in tokflow/{mutant.room}, {found}")
    tests = _texts(root / "tokflow_tests", "test_*.py").items()
    files = [path for path, text in tests if f"def {mutant.test}(" in text]
    if len(files) != 1:
        raise StaleError(f"expected one test called {mutant.test}, found {len(files)}")
    return modules[0].relative_to(root), files[0].relative_to(root)


@cache
def _texts(folder: Path, pattern: str) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob(pattern)}


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
    with TemporaryDirectory(prefix="tokflow-mutants-") as folder:
        problems = Trees(Path(folder), given.jobs, given.marks).problems(chosen)
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

    def problems(self, mutants: Sequence[Mutant]) -> dict[Mutant, str]:
        """Try mutations; return those that were not found, or prove nothing, and why."""
        problems, places = dict[Mutant, str](), dict[Mutant, tuple[Path, Path]]()
        tree = self._idle.get()
        for mutant in mutants:
            try:
                places[mutant] = locate(mutant, tree)
            except StaleError as error:
                problems[mutant] = str(error)
        failing = self._failing(tree, list(places.items())) if places else []
        problems |= dict.fromkeys(failing, "its test fails without it, too")
        self._idle.put(tree)
        tried = [of for of in places if of not in problems]
        with ThreadPoolExecutor(self._num) as pool:
            found = list(pool.map(lambda of: self._is_found(of, places[of]), tried))
        lost = [of for of, is_it in zip(tried, found, strict=True) if not is_it]
        return problems | dict.fromkeys(lost, "NOT FOUND")

    def _is_found(self, mutant: Mutant, place: tuple[Path, Path]) -> bool:
        tree = self._idle.get()
        try:
            with _mutated(tree / place[0], mutant):
                found = bool(self._failing(tree, [(mutant, place)]))
        finally:
            self._idle.put(tree)
        print(f"{mutant.room}: {mutant.fault}: {mutant.test if found else 'NOT FOUND'}")
        sys.stdout.flush()
        return found

    def _failing(
        self, tree: Path, mutants: Sequence[tuple[Mutant, tuple[Path, Path]]]
    ) -> list[Mutant]:
        """Return the mutations whose tests fail in a tree; processes that these start import the
        product from it, too."""
        tests = {f"{file}::{of.test}" for of, (_, file) in mutants}
        options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", self._marks]
        options += [f"--timeout={TEST_SECONDS}", *["-x"] * (len(mutants) == 1)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *sorted(tests)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (PASSED, FAILED):
            raise SystemExit(f"{done.stdout}{done.stderr}\n{' '.join(tests)} did not run")
        failed = re.findall(r"^(?:FAILED|ERROR) [^:]+::(\w+)", done.stdout, re.MULTILINE)
        return [of for of, _ in mutants if of.test in failed]


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
