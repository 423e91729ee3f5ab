"""The three commands that each loader's program has; what they find is written as JSON.

    python -m benchmarks.loader_peers.NAME speed REQUEST ANSWER     batches a second, from the cache
    python -m benchmarks.loader_peers.NAME resume REQUEST ANSWER    the rows that one rank is given
    python -m benchmarks.loader_peers.NAME order REQUEST ANSWER     what an order of rows takes

REQUEST is the JSON of a `Request`. Only the loader is timed; the process's start and its imports
are told apart.
"""

import json
import mmap
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import alive, kernel_bytes, processor_seconds, stat_of

FAR = 10**9
CHECKED_ROWS, CHECKED_TOKENS = 4, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a loader is asked for."""

    folder: str
    """A dataset of a store of tokflow, with its exports."""
    variant: str
    """A key of the program's functions."""
    sequence_length: int
    batch_size: int
    """Rows of a batch, those of all ranks together."""
    is_shuffled: bool = True
    workers: int = 0
    rank: int = 0
    world_size: int = 1
    state: str | None = None
    """Of a file: the state of this rank to go on from."""
    num_batches: int | None = None
    """None: until the epoch ends."""
    windows: int = 6
    """Stretches that are timed; 0: the first batch alone."""
    window_seconds: float = 0.5
    num_rows: int = 0
    """Of the order that is asked for."""

    @property
    def rank_batch_size(self) -> int:
        return self.batch_size // self.world_size

    def export(self, format_: str) -> Path:
        return Path(self.folder) / "exports" / format_ / "latest"

    def sibling(self, suffix: str) -> "Request":
        """Return the request of the dataset beside it whose name ends so."""
        return replace(self, folder=f"{self.folder}-{suffix}")


Batches = Iterable[tuple[Any, Any]]
"""Of inputs and labels, both (rows, sequence_length) of int64, epoch after epoch."""


def run(
    speed: Mapping[str, Callable[[Request], Batches]] = {},
    resume: Mapping[str, Callable[[Request], Any]] = {},
    order: Mapping[str, Callable[[Request], Any]] = {},
) -> None:
    """Do what the command line asks, with functions by variant.

    Those of `resume` return one rank's batches, arrays (rows, at least the tokens of a row), from
    the beginning or from a state, with a method `state` that returns that after the batches given.
    Those of `order` return what finds the row at each place, of so many rows.
    """
    imported = time.time()
    command, request, answer = sys.argv[1:]
    asked = Request(**json.loads(request))
    if command == "speed":
        found = measure_speed(speed[asked.variant], asked, imported)
    elif command == "order":
        found = measure_order(order[asked.variant], asked)
    else:
        found = rows_of_rank(resume[asked.variant], asked, Path(answer))
    Path(answer).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # some peers leave processes and threads that nobody ends


def measure_speed(open_, request, imported):
    """Return rows a second of some windows, and what came before them.

    Raises: RuntimeError where the rows are not those of the tokens.
    """
    began = time.perf_counter()
    batches = iter(open_(request))
    opened = time.perf_counter()
    inputs, labels = next(batches)
    first = time.perf_counter()
    check(inputs, labels, request)
    for _ in range(20 if request.windows else 0):
        next(batches)
    windows = [window(batches, request) for _ in range(request.windows)]
    check(*next(batches), request)
    return {
        "import_seconds": imported - started(),
        "open_seconds": opened - began,
        "first_seconds": first - began,
        "rows_per_second": [rows / seconds for rows, seconds, _ in windows],
        "cpu_seconds_per_row": [cpu / rows for rows, _, cpu in windows],
        "own_bytes": sum(kernel_bytes(pid, "RssAnon") for pid in alive(os.getpid(), {})),
    }


def window(batches, request):
    """Return the rows, the seconds and the processor time of one window."""
    cpu, rows, began = tree_seconds(), 0, time.perf_counter()
    while not rows or (seconds := time.perf_counter() - began) < request.window_seconds:
        rows += len(next(batches)[0])
    return rows, seconds, tree_seconds() - cpu


def tree_seconds():
    """Return the processor time of this process, by the clock, and its descendants."""
    others = [pid for pid in alive(os.getpid(), {}) if pid != os.getpid()]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + ended.ru_utime + ended.ru_stime
    return own + sum(map(processor_seconds, others))


def started():
    """Return when this process started, in seconds since 1970."""
    ticks = int(stat_of("self")[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def check(inputs, labels, request):
    """Find the beginnings of some rows of a batch in the tokens, and all labels one further.

    Of Megatron, which joins the documents anew in another order, one may lie across an edge.
    """
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    shape = (request.batch_size, request.sequence_length)
    for array in (inputs, labels):
        if array.shape != shape or array.dtype != np.int64 or not array.flags.c_contiguous:
            raise RuntimeError(
                f"{request.variant}: expected contiguous int64 {shape}, found {array.dtype} "
                f"{array.shape} of strides {array.strides}"
            )
    is_label = labels[:, 1:] >= 0  # of the last row there may be fewer
    if not np.array_equal(inputs[:, 1:][is_label], labels[:, :-1][is_label]):
        raise RuntimeError(f"{request.variant}: expected labels one token on")
    beginnings = inputs[:: len(inputs) // CHECKED_ROWS, :CHECKED_TOKENS].astype("<u2")
    with (request.export("bin") / "train.bin").open("rb") as file:
        tokens = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        num_found = sum(tokens.find(row.tobytes()) >= 0 for row in beginnings)
    if num_found < CHECKED_ROWS - 1:
        raise RuntimeError(f"{request.variant}: expected rows of the tokens, found others")


def measure_order(make, request):
    """Return the seconds until an order's first row is known, and the memory that it took."""
    make(replace(request, num_rows=1000))  # what it imports counts as none of it
    before, began = peak_bytes(), time.perf_counter()
    kept = make(request)
    seconds = time.perf_counter() - began
    del kept
    return {"seconds": seconds, "peak_bytes": peak_bytes() - before}


def peak_bytes():
    """Return the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rows_of_rank(open_, request, answer):
    """Return the numbers of the rows of each batch; leave the state after them beside the answer.

    A row's first eight tokens are the digits of its number.
    """
    seen: list[list[int]] = []
    began, first_seconds = time.perf_counter(), None
    try:
        loader = open_(request)
        for batch in loader:
            first_seconds = first_seconds or time.perf_counter() - began
            seen.append(numbers_of(batch))
            if len(seen) == request.num_batches:
                answer.with_suffix(".state").write_bytes(pickle.dumps(loader.state()))
                break
    except Exception as error:
        return {"batches": seen, "refused": f"{type(error).__name__}: {error}"}
    return {"batches": seen, "refused": None, "first_seconds": first_seconds}


def numbers_of(batch):
    digits = np.asarray(batch).astype(np.int64)[:, :8] - ord("0")
    return (digits @ 10 ** np.arange(7, -1, -1)).tolist()


class Resumed:
    """The batches of a loader, from the beginning or from the state that the request names.

    `rows` returns the rows of a batch; `load` and `keep` are the loader's methods for its state.
    """

    def __init__(
        self, request, loader, rows=lambda batch: batch, load="load_state_dict", keep="state_dict"
    ):
        self.loader, self.rows, self.state = loader, rows, getattr(loader, keep)
        if request.state:
            getattr(loader, load)(pickle.loads(Path(request.state).read_bytes()))

    def __iter__(self):
        return map(self.rows, self.loader)
