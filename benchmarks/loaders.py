"""Loaders on the same tokens: batches a second, first batches, resume, and what orders take.

    python -m benchmarks loaders

tokflow exports the tokens in each loader's own format. A batch is 64 rows of 2,048 inputs and as
many labels, contiguous int64. Every loader is a process of its own in an environment of its own;
each window of half a second counts by itself, since other programs may take the processor.
"""

import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks import loader_resume
from benchmarks.peer_programs import ENVIRONMENTS, environment_of
from benchmarks.process import OverTimeError, measure
from benchmarks.programs import ROOT, TOKFLOW, absent, dataset_yaml
from benchmarks.speed import judged

SEQUENCE_LENGTH, BATCH_SIZE = 2048, 64
BLOCK = 64
"""Rows of a row group of parquet, and of the blocks that are shuffled."""
HALF_AN_EPOCH = 500
"""Batches."""
MANY_ROWS, PEER_ROWS = 10**9, 10**7
"""Of an order: of those that make no table of it, and of the others."""

EXPORTS = (
    "bin",
    "npy",
    {"format": "parquet", "sequences_per_group": BLOCK},
    "megatron",
    {"format": "mds", "columns": {"tokens": "token_ids"}},
    {"format": "litdata", "block_size": SEQUENCE_LENGTH + 1},
    {"format": "hf_dataset", "columns": []},
)

ID_EXPORTS = (
    "bin",
    {"format": "parquet", "shard_size": 800 * (13 * loader_resume.ROW_TOKENS + 16)},
    {"format": "mds", "columns": {"tokens": "token_ids"}, "shard_size": 40_000},
    {"format": "litdata", "block_size": loader_resume.ROW_TOKENS, "shard_size": 12_800},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderProgram:
    """One line of a table: a module of `benchmarks/loader_peers` and one of its functions."""

    name: str
    module: str
    variant: str = ""
    peer: str | None = None
    """Its environment; None: the one that this runs in."""
    workers: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the request."""
    has_an_order: bool = True
    """False: it shuffles in any case."""

    @property
    def command(self):
        python = ENVIRONMENTS / self.peer / "bin/python" if self.peer else sys.executable
        return [python, "-P", "-m", f"benchmarks.loader_peers.{self.module}"]

    @property
    def has_workers(self):
        return self.workers > 0

    def environment(self, folder):
        """Keep it off the network, and give it empty caches."""
        return {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}

    def missing(self):
        """Return why it cannot run here; None where it can."""
        return absent([environment_of(self.peer)] if self.peer else [])


own = functools.partial(LoaderProgram, module="tokflow")
torch_data = functools.partial(LoaderProgram, module="torch_data", peer="torch_data")
grain = functools.partial(LoaderProgram, module="grain", peer="orders_grain")
litdata = functools.partial(LoaderProgram, module="litdata", peer="litdata")
streaming = functools.partial(LoaderProgram, module="streaming", peer="streaming")
datasets = functools.partial(LoaderProgram, module="hf_datasets", peer="tokenizers_datasets")
megatron = functools.partial(LoaderProgram, module="megatron", peer="megatron")
torchtitan = functools.partial(LoaderProgram, module="torchtitan", peer="torchtitan")

SPEED = (
    own(name="tokflow, bin", variant="bin"),
    own(name="tokflow, bin, prefetch=0", variant="bin, no thread"),
    own(name="tokflow, bin, torch", variant="bin, torch", peer="tokflow"),
    own(name="tokflow, bin, all fields", variant="bin, all fields"),
    own(name="tokflow, npy", variant="npy"),
    own(name="tokflow, megatron", variant="megatron"),
    own(name="tokflow, parquet, blocks=64", variant="parquet"),
    torch_data(name="nanoGPT's get_batch", variant="get_batch", has_an_order=False),
    torch_data(name="torch DataLoader", variant="DataLoader"),
    torch_data(name="torch DataLoader, 2 workers", variant="DataLoader", workers=2),
    grain(name="grain", variant="threads"),
    grain(name="grain, no threads", variant="no threads"),
    litdata(name="litdata", variant="StreamingDataLoader"),
    litdata(name="litdata, 2 workers", variant="StreamingDataLoader", workers=2),
    streaming(name="streaming", variant="StreamingDataLoader"),
    streaming(name="streaming, 2 workers", variant="StreamingDataLoader", workers=2),
    datasets(name="datasets", variant="iter"),
    megatron(name="Megatron GPTDataset", variant="GPTDataset", has_an_order=False),
    megatron(name="Megatron, 2 workers", variant="GPTDataset", workers=2, has_an_order=False),
)

RESUME = (
    own(name="tokflow", variant="parquet"),
    torch_data(name="StatefulDataLoader", variant="StatefulDataLoader", workers=2),
    grain(name="grain MapDataset", variant="MapDataset"),
    grain(name="grain DataLoader", variant="DataLoader"),
    litdata(name="litdata StreamingDataset", variant="StreamingDataset", workers=2),
    litdata(name="litdata Combined", variant="CombinedStreamingDataset", workers=2),
    streaming(name="streaming", variant="StreamingDataset", workers=2),
    datasets(name="datasets streaming", variant="streaming"),
    torchtitan(name="torchtitan", variant="ParallelAwareDataloader"),
)

NOT_TIMED = ("tokflow", "grain DataLoader", "litdata Combined", "torchtitan")
TIMED_RESUME = (
    own(name="tokflow", variant="bin"),
    *(program for program in RESUME if program.name not in NOT_TIMED),
)
FAR = (own(name="tokflow, at 10^9", variant="far"), grain(name="grain, at 10^9", variant="far"))

ORDERS = (
    own(name="tokflow", options={"num_rows": MANY_ROWS}),
    grain(name="grain", options={"num_rows": MANY_ROWS}),
    torch_data(name="torch", options={"num_rows": PEER_ROWS}),
    streaming(name="streaming", options={"num_rows": PEER_ROWS}),
    datasets(name="datasets", options={"num_rows": PEER_ROWS}),
    megatron(name="Megatron", options={"num_rows": PEER_ROWS}),
)


def ask(program, command, folder, *, timeout=600, **request):
    """Return what a program answers; a text, the reason, where it fails."""
    asked = {
        "folder": str(folder),
        "variant": program.variant,
        "sequence_length": SEQUENCE_LENGTH,
        "batch_size": BATCH_SIZE,
        "workers": program.workers,
        **program.options,
        **request,
    }
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary) / "answer.json"
        state = Path(temporary) / "answer.state"
        try:
            measure(
                [*program.command, command, json.dumps(asked), answer],
                folder=ROOT,
                environment=program.environment(Path(temporary)),
                timeout=timeout,
            )
        except (RuntimeError, OverTimeError) as error:
            return str(error).strip().splitlines()[-1]
        found = json.loads(answer.read_text())
        if state.exists():
            found["state"] = state.read_bytes()
        return found


def measure_speed(program, folder, *, is_shuffled):
    """Return what the windows gave, and the seconds of a first batch that is in no cache."""
    forget(folder)
    cold = ask(program, "speed", folder, is_shuffled=is_shuffled, windows=0)
    remember(folder)
    warm = ask(program, "speed", folder, is_shuffled=is_shuffled)
    if isinstance(cold, str) or isinstance(warm, str):
        return warm if isinstance(warm, str) else cold
    return {**warm, "cold_seconds": cold["first_seconds"]}


def measure_going_on(program, folder, *, num_batches=0):
    """Return the seconds until the first batch of a run that goes on after so many, or why not."""
    with tempfile.NamedTemporaryFile() as state:
        request = {"num_batches": 1}
        if num_batches:
            before = ask(program, "resume", folder, num_batches=num_batches)
            if isinstance(before, str) or before["refused"]:
                return before if isinstance(before, str) else before["refused"]
            state.write(before["state"])
            state.flush()
            request["state"] = state.name
        after = ask(program, "resume", folder, **request)
    return after if isinstance(after, str) else after["refused"] or after["first_seconds"]


def measure_order(program, folder):
    """Return the bytes that the order of 10^9 rows takes, by what is measured a row."""
    found = ask(program, "order", folder)
    if isinstance(found, str):
        return found
    return {**found, "num_rows": program.options["num_rows"]}


def files_of(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def forget(folder):
    """Take the files out of the page cache."""
    for path in files_of(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(folder):
    """Bring the files into the page cache."""
    for path in files_of(folder):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def make_tokens(file, store):
    """Return the dataset of a text in all formats."""
    packing = {"strategy": "concat", "sequence_length": SEQUENCE_LENGTH, "label_token": True}
    build(store, dataset_yaml(file, name="tokens", exports=[*EXPORTS], packing=packing))
    return store / "tokens"


def make_ids(store, *, has_halves=True):
    """Return the dataset of numbered rows, with its halves beside it and its texts in `raw`."""
    raw = store / "raw"
    texts = [f"{number:08}" for number in range(loader_resume.NUM_ROWS)]
    halves = {"a": texts[: len(texts) // 2], "b": texts[len(texts) // 2 :]}
    for half, of_half in halves.items():
        (raw / half).mkdir(parents=True, exist_ok=True)
        for number in range(0, len(of_half), 800):
            lines = [json.dumps({"text": text}) for text in of_half[number : number + 800]]
            (raw / half / f"ids-{number:05}.jsonl").write_text("\n".join(lines) + "\n")
    beside = {"ids-a": "a/*", "ids-b": "b/*"} if has_halves else {}
    for name, pattern in {"ids": "*/*", **beside}.items():
        text = dataset_yaml(
            raw / f"{pattern}.jsonl",
            name=name,
            tokenizer={"kind": "bytes", "eos": "none"},
            packing={"strategy": "concat", "sequence_length": loader_resume.ROW_TOKENS},
            exports=[*ID_EXPORTS],
        )
        build(store, text)
    return store / "ids"


def build(store, text):
    config = store / "loaders.yaml"
    store.mkdir(parents=True, exist_ok=True)
    config.write_text(text)
    command = [*TOKFLOW, "run", "--config", config, "--store", store]
    measure(command, folder=store, environment={"PYTHONPATH": str(ROOT)})


def speed_lines(found):
    """Yield a line per loader: the best window, the median one, and so on; then the aim, twice the
    rows of the fastest other."""
    headings = ("rows/s", "median", "Mtok/s", "us cpu", "first ms", "cold ms", "import s", "MB")
    yield f"  {'':30}" + "".join(f"{heading:>10}" for heading in headings)
    for name, one in found.items():
        if isinstance(one, str):
            yield f"  {name:30}  {one}"
            continue
        best = max(one["rows_per_second"])
        numbers = (
            f"{best:,.0f}",
            f"{statistics.median(one['rows_per_second']):,.0f}",
            f"{best * SEQUENCE_LENGTH / 1e6:,.0f}",
            f"{1e6 * min(one['cpu_seconds_per_row']):.1f}",
            f"{1e3 * one['first_seconds']:.0f}",
            f"{1e3 * one['cold_seconds']:.0f}",
            f"{one['import_seconds']:.1f}",
            f"{one['own_bytes'] / 1e6:.0f}",
        )
        yield f"  {name:30}" + "".join(f"{number:>10}" for number in numbers)
    best = {
        name: max(one["rows_per_second"]) for name, one in found.items() if isinstance(one, dict)
    }
    ours = [name for name in best if name.startswith("tokflow, bin")]
    others = [name for name in best if not name.startswith("tokflow")]
    if ours and others:
        first, following = max(ours, key=best.get), max(others, key=best.get)
        ratio = best[first] / best[following]
        yield judged(ratio >= 2, f"{first}: {ratio:.1f} times {following}, aim 2")


def resume_lines(found):
    """Yield a line per loader: what was lost and repeated for each change."""
    changes = ["epoch", *loader_resume.AFTER]
    yield f"  {'':26}" + "".join(f"{change:>16}" for change in changes)
    refusals = []
    for name, outcomes in found.items():
        if isinstance(outcomes, str):
            yield f"  {name:26}  {outcomes}"
            continue
        cells = []
        for change in changes:
            one = outcomes.get(change)
            if one and one.refused:
                if one.refused not in refusals:
                    refusals.append(one.refused)
                cells.append(f"refused ({refusals.index(one.refused) + 1})")
            elif one and (one.num_lost or one.num_repeated):
                cells.append(f"-{one.num_lost:,} +{one.num_repeated:,}")
            else:
                cells.append({"same": "whole"}.get(one.order, one.order) if one else "-")
        yield f"  {name:26}" + "".join(f"{text:>16}" for text in cells)
    yield "  -lost +repeated; whole: all rows once, in the order of a run that was never stopped;"
    yield "  batches: once, in each batch the rows that it has in such a run; other: another order"
    for number, text in enumerate(refusals, 1):
        yield f"  ({number}) {' '.join(text.split())[:200]}"


def order_lines(found):
    yield f"  {'':26}{'rows':>14}{'seconds':>10}{'bytes/row':>11}{'GB of 10^9':>12}"
    for name, one in found.items():
        if isinstance(one, str):
            yield f"  {name:26}  {one}"
            continue
        num_rows, a_row = one["num_rows"], one["peak_bytes"] / one["num_rows"]
        yield f"  {name:26}{num_rows:>14,}{one['seconds']:>10.4f}{a_row:>11.1f}{a_row:>12.1f}"


def seconds_lines(found):
    for name, one in found.items():
        yield f"  {name:26}{one if isinstance(one, str) else f'{1e3 * one:10.1f} ms'}"


class LoaderReport(NamedTuple):
    """One table."""

    title: str
    programs: Sequence[LoaderProgram]
    measure: Callable[[LoaderProgram, Path], object]
    """Gives what `lines` takes by program; a text where it failed."""
    lines: Callable[[Mapping[str, object]], Iterator[str]]
    of_ids: bool = False
    """It reads the numbered rows, not the tokens."""


shuffled = functools.partial(measure_speed, is_shuffled=True)
in_order = functools.partial(measure_speed, is_shuffled=False)
measure_half = functools.partial(measure_going_on, num_batches=HALF_AN_EPOCH)
WITH_AN_ORDER = [program for program in SPEED if program.has_an_order]
BATCHES, FIRST = "batches of 64 x 2,048", "the first batch of a run that goes on at"
LOST = "2 ranks, batches of 32: what another run, after 102 batches, loses and repeats"
REPORTS = (
    LoaderReport(f"{BATCHES}, shuffled", SPEED, shuffled, speed_lines),
    LoaderReport(f"{BATCHES}, in order", WITH_AN_ORDER, in_order, speed_lines),
    LoaderReport(f"{FIRST} half of an epoch", TIMED_RESUME, measure_half, seconds_lines),
    LoaderReport(f"{FIRST} sample 10^9", FAR, measure_going_on, seconds_lines),
    LoaderReport("the order of rows, and its first", ORDERS, measure_order, order_lines),
    LoaderReport(LOST, RESUME, loader_resume.measure_resume, resume_lines, of_ids=True),
)
