"""Run the examples on small data, from nothing, and print how long each takes: `make examples`.

python -m examples            all of them, in a folder that is removed
python -m examples sst2       some
python -m examples --keep DIR where what was made stays
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

from examples.running import EXAMPLES, run_example


def main():
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *EXAMPLES], metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="tokflow-examples.")
        folder = arguments.keep or Path(stack.enter_context(made))
        times = {
            name: run_example(name, folder / name, say=print)
            for name in arguments.names or EXAMPLES
        }
    print(f"\n{'example':12} {'built':>8} {'again':>8} {'read':>8}")
    for name, seconds in times.items():
        print(f"{name:12}", *(f"{of:6.1f} s" for of in seconds))


if __name__ == "__main__":
    main()
