"""Run the examples on small data, from nothing, and print how long each takes: `make examples`.

python -m examples            all of them but those with torch, in a folder that is removed
python -m examples sst2       some
python -m examples --keep DIR where what was made stays, and nothing is yet
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

from examples.running import EXAMPLES, WITH_TORCH, run_example


def main():
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    known = (*EXAMPLES, *WITH_TORCH)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--keep", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="tokflow-examples.")
        folder = arguments.keep or Path(stack.enter_context(made))
        names = arguments.names or EXAMPLES
        if unknown := sorted({*names} - {*known}):
            parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")
        if there := [name for name in names if (folder / name).exists()]:
            parser.error(f"--keep: {folder / there[0]} is there already")
        times = {name: run_example(name, folder / name, say=print) for name in names}
    print(f"\n{'example':12} {'built':>8} {'again':>8} {'read':>8}")
    for name, seconds in times.items():
        print(f"{name:12}", *(f"{of:6.1f} s" for of in seconds))


if __name__ == "__main__":
    main()
