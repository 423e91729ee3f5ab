"""What a corpus of 27,000 files and 44 TB costs: tasks, requests, bytes, seconds and dollars.

    python -m benchmarks scale

The model of requests (`scale_requests`, which a test holds exact), measured unit costs and list
prices (`scale_costs`), and workers before a simulated object store (`scale_simulation`), make the
tables of docs/scale.md. Nothing asks the internet.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

from benchmarks.scale_costs import (
    CLOUDS,
    FINEWEB,
    GB,
    HOUR,
    TB,
    UNITS,
    WORKSTATION,
    StoreSpeed,
    tiered,
)
from benchmarks.scale_requests import (
    CHEAP,
    DEAR,
    Shape,
    built,
    got,
    pages,
    planned,
    read_raw,
    times,
    total,
)
from benchmarks.scale_simulation import Task, simulate
from tokflow.build.output_tasks import KEPT_HERE_BYTES

NUM_MACHINES = (1, 4, 16, 64)
SPEED = StoreSpeed()
START_SECONDS = 120
"""Until machines that were asked for have booted and imported; assumed."""
WORTH = 0.5
"""Four machines are worth it where they take this part of the time of one, or less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """All tasks of one stage, of all datasets."""

    name: str
    num_tasks: int
    task: Task
    requests: Counter
    driver_seconds: float = 0.0
    """Of each task, in the one process that hands out those of a dataset."""
    num_events: int = 0
    """Of Dagster's history, if it is kept."""
    num_fetched: int = 0
    """Manifests and logs of each task that this process asks for if another machine does it, many
    at once."""

    def seconds(self, num_machines, machine, *, num_drivers):
        """Return how long so many machines take."""
        sizes = {"num_machines": num_machines, "machine": machine, "speed": SPEED}
        fetched = self.num_fetched if num_drivers < num_machines else 0
        waits = fetched * SPEED.first_byte_seconds / UNITS.requests_at_once
        each = self.driver_seconds + waits
        driven = self.num_tasks * each / num_drivers
        return max(driven, simulate(self.task, self.num_tasks, **sizes))


def shape_of(corpus, *, is_of_cluster=False):
    """Return the outputs of one of the datasets, with one export that is packed; made by one
    machine, or by those of a cluster, which put all segments at the URL."""
    of_dataset = corpus.text_bytes / corpus.num_datasets
    of_file = corpus.text_bytes / corpus.num_files
    sizes = {"tokens": of_file, "export": of_dataset}
    tokens = corpus.num_tokens / corpus.num_datasets
    num_files = math.ceil(tokens / UNITS.tokens_per_export_file)
    file_bytes = tokens / num_files * UNITS.export_bytes_per_token
    index_bytes = corpus.num_documents / corpus.num_datasets * UNITS.index_bytes
    return Shape(
        num_files=round(corpus.num_files / corpus.num_datasets),
        num_ranges=corpus.ranges_per_file if corpus.ranges_per_file > 1 else 0,
        token_bytes=corpus.token_bytes / (corpus.num_files * corpus.ranges_per_file),
        tokenizer_files=2,
        export_files=((file_bytes,) * num_files + (index_bytes,),),
        has_export_segments=True,
        published=[of for of, size in sizes.items() if is_of_cluster or size > KEPT_HERE_BYTES],
    )


def stages_of(corpus, *, is_of_cluster=False):
    """Return the stages, as workers do them that have nothing in their caches: of machines that
    build datasets of their own, or of a cluster with one process that hands out the work."""
    shape = shape_of(corpus, is_of_cluster=is_of_cluster)
    requests = {name: times(of, corpus.num_datasets) for name, of in built(shape).items()}
    stages = [_raw(corpus, shape), _tokens(corpus, shape, requests)]
    if "tokens" in shape.published and shape.num_ranges:
        stages.append(_join(corpus, requests))
    return [
        *stages,
        _rows(corpus, requests),
        _export(corpus, shape, requests),
        _index(corpus),
    ]


def _puts(requests, num_tasks):
    """Return how many requests of a task write something, but for its manifest."""
    kinds = ("PUT", "COPY", "BEGIN", "PART", "COMPLETE")
    return sum(requests[kind] for kind in kinds) / num_tasks - 1


def _raw(corpus, shape):
    """The files are listed, with their sizes and ETags."""
    num = corpus.num_datasets
    listed = pages(shape.num_files)
    return Stage(
        name="raw",
        num_tasks=num,
        task=Task(read_requests=listed),
        requests=Counter(LIST=num * listed),
        num_events=corpus.num_files,
    )


def _tokens(corpus, shape, requests):
    """Segments that stay on the machine are joined there, and put at the URL once."""
    num = corpus.num_files * corpus.ranges_per_file
    raw = read_raw(num, corpus.raw_bytes)
    made = requests["tokens"] if "tokens" not in shape.published else Counter()
    made = total([made, requests.get("segments of tokens", Counter())])
    task = Task(
        read_bytes=corpus.raw_bytes / num,
        read_requests=raw["GET"] / num,
        seconds=corpus.text_bytes / num * UNITS.tokens_seconds_per_text_byte + UNITS.output_seconds,
        write_bytes=(corpus.token_bytes + corpus.num_documents * UNITS.document_bytes) / num,
        num_puts=_puts(made, num),
    )
    return Stage(
        name="tokens",
        num_tasks=num,
        task=task,
        requests=total([raw, made]),
        driver_seconds=UNITS.driver_seconds,
        num_events=corpus.num_files,
    )


def _join(corpus, requests):
    """A worker asks for the manifests and logs of segments, lets the server copy their files, many
    at once, and removes them."""
    num, num_ranges = corpus.num_files, corpus.ranges_per_file
    made = requests["tokens"] + Counter(GET=num * num_ranges)
    rounds = math.ceil(2 * num_ranges / UNITS.requests_at_once)
    waits = 2 * rounds * SPEED.first_byte_seconds + rounds * SPEED.put_seconds
    task = Task(
        read_requests=made["GET"] / num,
        seconds=(waits + 4 * SPEED.first_byte_seconds) * CLOUDS[0].machine.core_speed,
        num_puts=_puts(made, num),
    )
    return Stage(
        name="join",
        num_tasks=num,
        task=task,
        requests=made,
        driver_seconds=UNITS.driver_seconds,
        num_fetched=2,
    )


def _rows(corpus, requests):
    documents, num = corpus.num_documents / corpus.num_files, corpus.num_files
    made = total([requests["split"], requests["sequences"]])
    task = Task(
        read_bytes=documents * UNITS.document_bytes,
        read_requests=corpus.ranges_per_file,
        seconds=documents * UNITS.rows_seconds_per_document + 2 * UNITS.output_seconds,
        write_bytes=documents * UNITS.span_bytes,
        num_puts=_puts(made, num),
    )
    return Stage(
        name="split, sequences",
        num_tasks=num,
        task=task,
        requests=made + Counter(GET=num * corpus.ranges_per_file),
        driver_seconds=2 * UNITS.driver_seconds,
        num_events=2 * num,
        num_fetched=4,
    )


def _export(corpus, shape, requests):
    """Token files are read whole, each by the tasks whose sequences it has: a cache has not room
    for all."""
    num = corpus.num_datasets * (len(shape.export_files[0]) - 1)
    of_one = corpus.token_bytes / (corpus.num_files * corpus.ranges_per_file)
    read_files = corpus.token_bytes / num / of_one + 1
    read = Counter(GET=round(num * read_files * (got(of_one)["GET"] + 1)))
    made = total(each for name, each in requests.items() if "export" in name)
    task = Task(
        read_bytes=read_files * of_one,
        read_requests=read["GET"] / num,
        seconds=corpus.num_tokens / num * UNITS.export_seconds_per_token + UNITS.output_seconds,
        write_bytes=corpus.num_tokens / num * UNITS.export_bytes_per_token,
        num_puts=_puts(made, num),
    )
    return Stage(
        name="export",
        num_tasks=num,
        task=task,
        requests=total([read, made]),
        driver_seconds=UNITS.driver_seconds,
        num_events=corpus.num_datasets,
        num_fetched=2,
    )


def _index(corpus):
    """One task of each dataset, beside those of the export, which counts what it puts."""
    documents = corpus.num_documents / corpus.num_datasets
    files = corpus.num_files / corpus.num_datasets
    read_files = round(files * (2 + corpus.ranges_per_file))
    task = Task(
        read_bytes=documents * (UNITS.document_bytes + UNITS.span_bytes),
        read_requests=read_files,
        seconds=documents * UNITS.index_seconds_per_document,
        write_bytes=documents * UNITS.index_bytes,
    )
    read = Counter(GET=corpus.num_datasets * read_files)
    return Stage(name="index", num_tasks=corpus.num_datasets, task=task, requests=read)


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


def crossing(corpus, machine):
    """Return the least tokens of which four machines take `WORTH` of the time of one, or less."""
    for step in range(30):
        tokens = 1e10 * 1.25**step
        stages = stages_of(scaled(corpus, tokens))
        one, four = (hours_of(stages, num, machine, num_drivers=num) for num in (1, 4))
        if four <= WORTH * one:
            return tokens
    return math.inf


def stage_table(corpus):
    """Yield a line for each stage."""
    written = ("PUT", "BEGIN", "PART", "COMPLETE")
    kinds = {"PUT k": written, "COPY k": ("COPY",), "LIST k": ("LIST",), "GET k": ("GET",)}
    heads = ("tasks", *kinds, "events", "read TB", "write TB", "core h", "h on 1", "on 16")
    yield f"  {'':16}" + "".join(f"{head:>10}" for head in heads)
    for stage in stages_of(corpus):
        task, machine = stage.task, CLOUDS[0].machine
        sums = (sum(stage.requests[kind] for kind in some) for some in kinds.values())
        counts = "".join(f"{num / 1e3:10,.0f}" for num in sums)
        bytes_ = (stage.num_tasks * each for each in (task.read_bytes, task.write_bytes))
        size = "".join(f"{each / TB:10.2f}" for each in bytes_)
        hours = (stage.seconds(num, machine, num_drivers=num) / HOUR for num in (1, 16))
        times_ = "".join(
            f"{each:10.2f}" for each in (stage.num_tasks * task.seconds / HOUR, *hours)
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
    seconds = sum(stage.num_tasks * stage.task.seconds for stage in stages)
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
    kept = sum(stage.num_tasks * stage.task.write_bytes for stage in stages) / GB
    raw = trillion.raw_bytes / GB
    at_rest = [tiered(size, prices.storage_per_gb_month) for size in (kept, raw)]
    dollars = num_machines * hours * rate
    yield f"  machines  {num_machines} x {hours:.2f} h x ${rate} = ${dollars:.2f}"
    yield (
        f"  requests  {dear / 1e6:.2f} M x ${prices.put_per_1000} + {cheap / 1e6:.2f} M x "
        f"${prices.get_per_1000}, each by 1,000 = ${dollars_of(requests, prices):.2f}"
    )
    yield f"  outputs   {kept / 1000:.2f} TB: ${at_rest[0]:.0f} a month"
    egress = tiered(raw, prices.egress_per_gb)
    yield f"  raw       {raw / 1000:.2f} TB: ${at_rest[1]:.0f} a month; to elsewhere ${egress:.0f}"


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
    """Yield from where on four machines are worth it."""
    tokens = crossing(corpus, prices.machine)
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
