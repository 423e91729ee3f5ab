"""Measure tokflow on this machine.

python -m benchmarks            speed, against the raw engine and the usual script
python -m benchmarks memory     peak memory on 100 MB against 1 GB
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks import memory, speed
from benchmarks.process import measure
from benchmarks.programs import NEEDS_GPT2, PROGRAMS, ROOT

KINDS = ("jsonl", "parquet")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("speed", "memory"), default="speed")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", action="store_true", help="print numbers for a program")
    parser.add_argument("--repeats", type=int, default=3, help="speed")
    parser.add_argument("--bytes", type=int, default=60_000_000, help="speed: text in the file")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM", help="speed: names in the table")
    parser.add_argument("--small", type=int, default=100_000_000, help="memory: bytes of text")
    parser.add_argument("--large", type=int, default=1_000_000_000, help="memory: bytes of text")
    arguments = parser.parse_args()
    report = print_memory if arguments.what == "memory" else print_speed
    report(arguments)


def print_speed(arguments):
    say = quiet if arguments.json else print
    say(machine())
    programs = choose_programs(arguments.only, say)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            file = Path(folder) / f"corpus.{kind}"
            corpus = [sys.executable, "-m", "benchmarks.corpus", file, "--bytes", arguments.bytes]
            measure(corpus, folder=ROOT, environment={})
            runs, num_tokens = speed.measure_file(
                file, repeats=arguments.repeats, programs=programs
            )
            say(
                f"\n{kind}, {arguments.bytes / 1e6:.0f} MB of text, GPT-2: {num_tokens:,} tokens, "
                f"the same from all; median of {arguments.repeats}"
            )
            say("\n".join(speed.table(runs)))
            found[kind] = as_json(runs)
    if arguments.json:
        print(json.dumps({"machine": machine(), "speed": found}, indent=1))


def print_memory(arguments):
    say = quiet if arguments.json else print
    say(machine())
    path, remedy = NEEDS_GPT2
    if not path.exists():
        raise SystemExit(f"memory: left out (no {path}: {remedy})")
    say(
        f"\npeak MB of the tokens stage on {arguments.small / 1e6:.0f} and "
        f"{arguments.large / 1e6:.0f} MB of text, GPT-2"
    )
    found = {}
    for kind in arguments.kinds:
        small, large = memory.measure_kind(kind, small=arguments.small, large=arguments.large)
        say(memory.line(kind, (small, large)))
        found[kind] = as_json({"small": [small], "large": [large]})
    if arguments.json:
        print(json.dumps({"machine": machine(), "memory": found}, indent=1))


def choose_programs(names, say):
    """Return the programs to run; say which are left out, and why."""
    known = {program.name: program for program in PROGRAMS}
    for name in names or ():
        if name not in known:
            raise SystemExit(f"--only: expected some of {list(known)}, found {name!r}")
    chosen = []
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        if reason := program.missing():
            say(f"left out: {program.name} ({reason})")
        else:
            chosen.append(program)
    return chosen


def machine():
    """Return one line that says where the numbers come from."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def as_json(runs):
    return {name: [dataclasses.asdict(one) for one in many] for name, many in runs.items()}


def quiet(text):
    """Say nothing: the JSON says it all."""


if __name__ == "__main__":
    main()
