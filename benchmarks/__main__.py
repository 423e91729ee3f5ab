"""Measure tokflow on this machine.

python -m benchmarks            time and memory of tokflow, of the raw engine and of the peers
python -m benchmarks jobs       how time scales with --jobs, against runs that share nothing
python -m benchmarks fixed      what tiny datasets, runs with nothing to do and scans cost
python -m benchmarks formats    what each export format costs, once the tokens are there
python -m benchmarks disk       what a dataset takes on the disk, and what a change of it writes
python -m benchmarks packing    how full rows are by each strategy, and the time it takes
python -m benchmarks loaders    batches a second, resume and orders of loaders, on the same tokens
python -m benchmarks scale      what 44 TB cost on an object store: requests, hours, dollars
python -m benchmarks orders     how random the orders of loaders are, and those of others
python -m benchmarks exact      which libraries give the token ids of which tokenizer
"""

import argparse
import contextlib
import itertools
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks import disk, fixed, formats, jobs, loaders, many_files, scale, speed
from benchmarks.peer_programs import PEERS
from benchmarks.process import measure
from benchmarks.programs import CORE, KINDS, OWN, ROOT

SIZES = (60, 300)
JOBS_SIZES = (500,)
JOBS_FILES = (8, 1)
FIXED_FILES = (1, 1000)


def main():
    arguments = parse_arguments()
    if (arguments.what != "speed") and (reason := CORE.missing()):
        raise SystemExit(f"{arguments.what}: left out ({reason})")
    say(machine())
    with corpora_folder(arguments.keep) as folder:
        REPORTS[arguments.what](arguments, folder)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=REPORTS, default="speed")
    parser.add_argument("--sizes", nargs="+", type=float, metavar="MB", help="of text")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="jobs: jsonl")
    parser.add_argument("--repeats", type=int, default=3, help="of our own programs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the corpora there")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PROGRAM",
        help="speed, loaders, exact: names in the table; formats: their names",
    )
    parser.add_argument("--peer-repeats", type=int, default=1, help="speed")
    parser.add_argument("--timeout", type=float, default=900, help="seconds per peer's run")
    parser.add_argument("--files", nargs="+", type=int, help="fixed: 1 1000; jobs: 8 1")
    parser.add_argument("--jobs", nargs="+", type=int, help="jobs: 1 2 4 ... up to the cores")
    parser.add_argument("--documents", type=int, help="packing: lengths to pack")
    parser.add_argument("--seeds", nargs="+", type=int, help="orders: 1 2 3")
    return parser.parse_args()


def report_speed(arguments, folder):
    programs = choose_programs((*OWN, *PEERS), arguments.only)
    blocks = []
    for size, kind in itertools.product(arguments.sizes or SIZES, arguments.kinds or KINDS):
        file = make_file(folder, size, kind)
        reading = [program for program in programs if file.suffix[1:] in program.kinds]
        results = speed.measure_file(
            file,
            reading,
            repeats=arguments.repeats,
            peer_repeats=arguments.peer_repeats,
            timeout=arguments.timeout,
            tell=tell_progress,
        )
        title = f"{size:g} MB of code, {kind}"
        say(f"\n{title}, GPT-2, {counts(results)}", *speed.table(results, text_bytes=size * 1e6))
        blocks.append((title, size * 1e6, results))
    if judged := list(speed.aims(blocks)):
        say("\naims", *judged)


def report_jobs(arguments, folder):
    blocks = []
    for size, num_files, kind in itertools.product(
        arguments.sizes or JOBS_SIZES, arguments.files or JOBS_FILES, arguments.kinds or ("jsonl",)
    ):
        found = jobs.measure_jobs(
            make_file(folder, size, kind, num_files=num_files),
            numbers=arguments.jobs or jobs.numbers_of_jobs(),
            folder=folder,
            repeats=arguments.repeats,
            tell=tell_progress,
        )
        title = f"{size:g} MB of code, {num_files} {kind}"
        heading = f"\n{title}, GPT-2, {counts(found.values())}; median of {arguments.repeats}"
        say(heading, *jobs.table(found, text_bytes=size * 1e6), *jobs.predictions(found))
        blocks.append((title, found))
    say("\naims", *jobs.judged(blocks))


def report_fixed(arguments, folder):
    numbers = arguments.files or FIXED_FILES
    found = {num_files: fixed.measure_fixed(num_files, tell=tell_progress) for num_files in numbers}
    heading = f"\n{fixed.DOCUMENTS_PER_FILE} documents per file, each way after the ones before"
    say(heading, *fixed.table(found))
    ticks = many_files.measure_ticks(many_files.NUM_TICKED)
    say(*many_files.table(ticks))


def report_formats(arguments, folder):
    for size in arguments.sizes or SIZES[:1]:
        file = make_file(folder, size, "parquet")
        names = arguments.only or formats.known_formats()
        written = formats.measure_formats(file, names, repeats=arguments.repeats)
        heading = f"\n{size:g} MB of code, GPT-2, rows of {formats.SEQUENCE_LENGTH} tokens"
        say(heading, *formats.table(written))


def report_disk(arguments, folder):
    num_files = (arguments.files or [100])[0]
    for size, name in itertools.product(arguments.sizes or (10 * num_files,), disk.PARTS):
        pattern = make_file(folder, size, "jsonl", num_files=num_files)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            found = disk.measure_disk(pattern, disk.PARTS[name], Path(own))
            heading = f"\n{num_files} files, {size:g} MB, {name}: bytes, and of those of the tokens"
            say(heading, *disk.table(found))


def report_packing(arguments, folder):
    from benchmarks import packing  # loads libraries; whoever measures processes must stay small

    lengths = packing.make_lengths(arguments.documents or packing.NUM_DOCUMENTS)
    strategies = arguments.only or packing.STRATEGIES
    for length in packing.SEQUENCE_LENGTHS:
        packed = packing.measure_packing(lengths, sequence_length=length, strategies=strategies)
        say(f"\n{len(lengths):,} documents, rows of {length:,} tokens", *packing.table(packed))


def report_orders(arguments, folder):
    from benchmarks import orders  # as packing

    contenders = choose_programs((*orders.WHOLE, *orders.IN_BLOCKS), arguments.only)
    asked = {round(size): orders.WHOLE for size in arguments.sizes or orders.SIZES}
    for size, some in (*asked.items(), (orders.BLOCKS_SIZE, orders.IN_BLOCKS)):
        chosen = [one for one in contenders if one in some]
        found = orders.measure_orders(chosen, size, seeds=arguments.seeds or orders.SEEDS)
        blocks = ", blocks x window" if some is orders.IN_BLOCKS else ""
        say(f"\n{size:,} rows{blocks}", *orders.table(found))


def report_exact(arguments, folder):
    from benchmarks import exact  # as packing

    for line in exact.table(exact.measure_exact(arguments.only, tell_progress)):
        say(line)


def report_scale(arguments, folder):
    say(*scale.report())


def report_loaders(arguments, folder):
    size = (arguments.sizes or SIZES[1:])[0]
    file = make_file(folder, size, "parquet")
    tokens = loaders.make_tokens(file, folder / "loaders")
    ids = loaders.make_ids(folder / "loaders")
    say(f"{size:g} MB of code, GPT-2")
    for report in loaders.REPORTS:
        measured = {}
        for program in report.programs:
            if program.name in (arguments.only or (program.name,)):
                tell_progress(f"{report.title}: {program.name}")
                of = ids if report.of_ids else tokens
                measured[program.name] = program.missing() or report.measure(program, of)
        if measured:
            say(f"\n{report.title}", *report.lines(measured))


REPORTS = {
    "speed": report_speed,
    "jobs": report_jobs,
    "fixed": report_fixed,
    "formats": report_formats,
    "disk": report_disk,
    "packing": report_packing,
    "loaders": report_loaders,
    "orders": report_orders,
    "scale": report_scale,
    "exact": report_exact,
}


def choose_programs(programs, names):
    """Return those of the programs to run; say which are left out, and why."""
    known = {program.name: program for program in programs}
    for name in names or ():
        if name not in known:
            raise SystemExit(f"--only: expected some of {list(known)}, found {name!r}")
    chosen = []
    for name, program in known.items():
        if names and name not in names:
            continue
        if reason := program.missing():
            say(f"left out: {name} ({reason})")
        else:
            chosen.append(program)
            if absent := sorted(set(KINDS) - set(program.kinds)):
                say(f"left out: {name} on {', '.join(absent)} (it does not read it)")
    return chosen


@contextlib.contextmanager
def corpora_folder(keep):
    """Give the folder of the corpora: the one to keep, or one that goes when all is measured."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def make_file(folder, size, kind, *, num_files=1):
    """Return a file with `size` MB of text, or a pattern of several; made unless it is there."""
    made = file = folder / f"code-{size:g}MB.{kind}"
    if num_files > 1:
        made = folder / f"code-{size:g}MB-{num_files}-{kind}"
        file = made / f"*.{kind}"
    if not made.exists():
        options = ["--bytes", round(size * 1e6), "--files", num_files]
        measure(
            [sys.executable, "-m", "benchmarks.corpus", file, *options], folder=ROOT, environment={}
        )
    return file


def counts(results):
    """Return how many tokens there are."""
    made = [one.comparison for one in results if one.comparison]
    return f"{made[0].num_documents:,} documents, {made[0].num_tokens:,} tokens" if made else ""


def machine():
    """Return one line that says where the numbers come from."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def say(*lines):
    print(*lines, sep="\n", flush=True)


def tell_progress(text):
    """Tell how far it is, apart from the tables: a size can take an hour."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
