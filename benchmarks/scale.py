"""What a corpus of 27,000 files and 44 TB costs: tasks, requests, bytes, seconds and dollars.

    python -m benchmarks scale

The stages of a build (`scale_stages`), the model of their requests (`scale_requests`, which a test
holds exact), and measured unit costs and list prices (`scale_costs`) make the tables of
docs/scale.md. Nothing asks the internet.
"""

import math
from collections import Counter
from dataclasses import replace

from benchmarks.scale_costs import CLOUDS, FINEWEB, GB, HOUR, TB, UNITS, WORKSTATION, tiered
from benchmarks.scale_requests import CHEAP, DEAR, pages, planned, times, total
from benchmarks.scale_stages import SPEED, shape_of, stages_of

NUM_MACHINES = (1, 4, 16, 64)
START_SECONDS = 120
"""Until machines that were asked for have booted and imported; assumed."""
WORTH = 0.5
"""Four machines are worth it where they take this part of the time of one, or less."""


def hours_of(stages, num_machines, machine, *, num_drivers):
    """Return the hours of a build; an index is made beside its export."""
    many = {"num_machines": num_machines, "machine": machine, "num_drivers": num_drivers}
    seconds = {stage.name: stage.seconds(**many) for stage in stages}
    start = START_SECONDS if num_machines > 1 else 0
    tokens = seconds["tokens"] + seconds.get("join", 0)
    export = max(seconds["export"], seconds["index"])
    return (start + seconds["raw"] + tokens + seconds["split, sequences"] + export) / HOUR


def dear_and_cheap(requests):
    """Return how many requests cost as much as PUT, and as much as GET."""
    return [sum(requests[kind] for kind in kinds) for kinds in (DEAR, CHEAP)]


def dollars_of(requests, prices):
    """Return what requests cost."""
    dear, cheap = dear_and_cheap(requests)
    return (dear * prices.put_per_1000 + cheap * prices.get_per_1000) / 1000


def scaled(corpus, num_tokens):
    """Return a corpus of other size with files as these."""
    part = num_tokens / corpus.num_tokens
    return replace(
        corpus,
        num_datasets=max(1, round(corpus.num_datasets * part)),
        num_files=max(1, round(corpus.num_files * part)),
        raw_bytes=corpus.raw_bytes * part,
        num_tokens=num_tokens,
    )


def stage_table(corpus):
    """Yield a line for each stage."""
    written = ("PUT", "BEGIN", "PART", "COMPLETE")
    kinds = {"PUT k": written, "COPY k": ("COPY",), "LIST k": ("LIST",), "GET k": ("GET",)}
    heads = ("tasks", *kinds, "events", "read TB", "write TB", "core h", "h on 1", "on 16")
    yield f"  {'':16}" + "".join(f"{head:>10}" for head in heads)
    for stage in stages_of(corpus):
        machine = CLOUDS[0].machine
        sums = (sum(stage.requests[kind] for kind in some) for some in kinds.values())
        counts = "".join(f"{num / 1e3:10,.0f}" for num in sums)
        bytes_ = (stage.num_tasks * each for each in (stage.read_bytes, stage.write_bytes))
        size = "".join(f"{each / TB:10.2f}" for each in bytes_)
        hours = (stage.seconds(num, machine, num_drivers=num) / HOUR for num in (1, 16))
        times_ = "".join(
            f"{each:10.2f}" for each in (stage.num_tasks * stage.cpu_seconds / HOUR, *hours)
        )
        numbers = f"{counts}{stage.num_events:10,}{size}{times_}"
        yield f"  {stage.name:16}{stage.num_tasks:10,}{numbers}"


def time_table(corpus, prices):
    """Yield a line for each number of machines, with a driver on each or, by Ray, one."""
    machine = prices.machine
    heads = ("machines", "hours", "machines $", "requests $", "one driver: hours", "requests $")
    yield "  " + "".join(f"{head:>19}" for head in heads)
    for num in NUM_MACHINES:
        line = f"  {num:19}"
        for drivers, is_one_driver in ((num, False), (1, True)):
            stages = stages_of(corpus, is_of_cluster=drivers < num)
            hours = hours_of(stages, num, machine, num_drivers=drivers)
            requests = dollars_of(total(stage.requests for stage in stages), prices)
            machines = num * hours * machine.dollars_per_hour
            dollars = "" if is_one_driver else f"{machines:19.0f}"
            line += f"{hours:19.1f}{dollars}{requests:19.0f}"
        yield line


def own_lines(corpus):
    """Yield how long one's own machine takes."""
    stages, machine = stages_of(corpus), WORKSTATION
    there = hours_of(stages, 1, machine, num_drivers=1) / 24
    seconds = sum(stage.num_tasks * stage.cpu_seconds for stage in stages)
    here = seconds / machine.num_cores / HOUR / 24
    line = machine.bytes_per_second * 8 / 1e9
    yield (
        f"  {machine.num_cores} cores: {there:.1f} days at {line:g} Gbit/s from the store, "
        f"{here:.1f} days on its own disks"
    )


def bill(corpus, prices, num_machines=4):
    """Yield what a trillion tokens of such a corpus cost, with the arithmetic."""
    trillion = scaled(corpus, 1e12)
    stages = stages_of(trillion)
    requests = total(stage.requests for stage in stages)
    dear, cheap = dear_and_cheap(requests)
    hours = hours_of(stages, num_machines, prices.machine, num_drivers=num_machines)
    rate = prices.machine.dollars_per_hour
    kept = sum(stage.num_tasks * stage.write_bytes for stage in stages) / GB
    raw = trillion.raw_bytes / GB
    at_rest = [tiered(size, prices.storage_per_gb_month) for size in (kept, raw)]
    dollars = num_machines * hours * rate
    yield f"  machines  {num_machines} x {hours:.2f} h x ${rate} = ${dollars:.2f}"
    yield (
        f"  requests  {dear / 1e6:.2f} M x ${prices.put_per_1000} + {cheap / 1e6:.2f} M x "
        f"${prices.get_per_1000}, each by 1,000 = ${dollars_of(requests, prices):.2f}"
    )
    yield f"  outputs   {kept / 1000:.2f} TB: ${at_rest[0]:.0f} a month"
    egress = f"to the internet ${tiered(raw, prices.egress_per_gb):.0f}"
    yield f"  raw       {raw / 1000:.2f} TB: ${at_rest[1]:.0f} a month; {egress}"


def plan_lines(corpus):
    """Yield what a plan of all datasets costs that finds everything built."""
    shape = shape_of(corpus)
    for name, is_known in (("warm", True), ("empty", False)):
        raw = Counter(LIST=pages(shape.num_files))
        requests = times(planned(shape, is_known=is_known) + raw, corpus.num_datasets)
        waits = requests["LIST"] + requests["GET"] / UNITS.requests_at_once
        seconds = waits * SPEED.first_byte_seconds
        counts = ", ".join(f"{num:,} {kind}" for kind, num in sorted(requests.items()) if num)
        yield f"  {name} cache: {counts}; {seconds:.0f} s of waiting"


def dagster_lines(corpus):
    """Yield what Dagster keeps of one build."""
    size = corpus.num_files * UNITS.history_bytes
    seconds = corpus.num_files * UNITS.history_seconds
    num_events = sum(stage.num_events for stage in stages_of(corpus))
    yield (
        f"  {corpus.num_files:,} partitions of each asset in {corpus.num_datasets} datasets, "
        f"{num_events:,} events, {size / GB:.1f} GB, {seconds / 60:.0f} min on one core"
    )


def of_each_cloud(table):
    """Return a function that yields the lines of a table for each cloud."""

    def lines(corpus):
        for prices in CLOUDS:
            yield f"{prices.cloud}, {prices.machine.name}"
            yield from table(corpus, prices)

    return lines


def crossing_lines(corpus, prices):
    """Yield from where on four machines take `WORTH` of the time of one, or less."""
    tokens, one, four = 1e10, 0.0, math.inf
    while four > WORTH * one:
        tokens *= 1.25
        stages = stages_of(scaled(corpus, tokens))
        one, four = (hours_of(stages, num, prices.machine, num_drivers=num) for num in (1, 4))
    text = tokens * corpus.text_bytes_per_token
    yield f"  from {tokens / 1e9:.0f} G tokens on, {text / TB:.1f} TB of text"


TABLES = {
    "stages": stage_table,
    "hours and dollars": of_each_cloud(time_table),
    "on one's own machine": own_lines,
    "a trillion tokens": of_each_cloud(bill),
    "a plan that finds all built": plan_lines,
    "four machines in half the time of one": of_each_cloud(crossing_lines),
    "Dagster": dagster_lines,
}
"""The lines of each, by its title; docs/scale.md has them in this order."""


def report(corpus=FINEWEB):
    """Yield the lines of all tables."""
    yield f"{corpus.name}: {corpus.num_files:,} files, {corpus.raw_bytes / TB:.0f} TB, " + (
        f"{corpus.num_tokens / 1e12:g} T tokens of {corpus.num_documents / 1e9:.1f} G documents"
    )
    for title, table in TABLES.items():
        yield f"\n{title}"
        yield from table(corpus)
