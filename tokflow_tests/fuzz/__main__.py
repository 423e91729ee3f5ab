"""Run random cases until the time is up: `make fuzz SECONDS=900 SEED=1`.

Every case is one integer. The first case that differs is printed, and `SEED=<n> CASES=1` runs it
again alone. Exit status 1 on a difference, else 0.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tokflow_tests.fuzz.cases import make_case, tokenizer_of
from tokflow_tests.fuzz.check import Tally, check_case, hurry, yaml_of
from tokflow_tests.fuzz.references import is_available

SHOWN_BYTES = 400


def main() -> int:
    """Run the cases that the arguments ask for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="when to stop (SECONDS)")
    parser.add_argument("--seed", type=int, help="of the first case; default: any (SEED)")
    parser.add_argument("--cases", type=int, help="how many, however long they take (CASES)")
    parser.add_argument("--keep", type=Path, help="build there, and leave it there (KEEP)")
    parser.add_argument("--go-on", action="store_true", help="after a difference, too")
    arguments = parser.parse_args()
    hurry()
    with _folder(arguments.keep) as folder:
        return _run(folder, arguments)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield a folder, in memory if there is one, since nothing in it is to last."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="tokflow-fuzz-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, arguments: argparse.Namespace) -> int:
    first = arguments.seed if arguments.seed is not None else random.randrange(10**6) * 1_000
    print(f"fuzz: from seed {first}", flush=True)
    started = time.monotonic()
    tally, skipped, failed = Tally(), 0, []
    for seed in count(first):
        is_over = time.monotonic() - started >= arguments.seconds
        if is_over if arguments.cases is None else seed - first >= arguments.cases:
            break
        if not is_available(tokenizer_of(seed)):
            skipped += 1
        elif not _passes(folder, seed, tally):
            failed.append(seed)
            if not arguments.go_on:
                break
    numbers = ", ".join(f"{number:,} {name}" for name, number in tally.items())
    print(f"fuzz: {numbers} in {time.monotonic() - started:.0f} s", end="")
    print(f" ({skipped} skipped: their vocabulary is not here)" if skipped else "")
    print(f"fuzz: FAILED: {', '.join(map(str, failed))}" if failed else "fuzz: no difference")
    return 1 if failed else 0


def _passes(folder: Path, seed: int, tally: Tally) -> bool:
    case = None
    try:
        case = make_case(seed, folder)
        tally.update(check_case(case, folder))
    except Exception:  # whatever it is, it is what was looked for
        print(f"\nfuzz: seed {seed} failed ({tokenizer_of(seed)})")
        print(yaml_of(case.attributes) if case else "")
        for file in (*case.files, *(case.later or ())) if case else ():
            shown = repr(file.data[:SHOWN_BYTES]) + ("..." if len(file.data) > SHOWN_BYTES else "")
            print(f"{file.key}: {len(file.data):,} bytes: {shown}")
        traceback.print_exc(file=sys.stdout)
        print(f"\nfuzz: run it again alone: make fuzz SEED={seed} CASES=1", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
