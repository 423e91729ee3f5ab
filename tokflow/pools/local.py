"""Processes of this machine, one task in each at a time."""

import os
import pickle
import signal
from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, Self

from tokflow.pools.cores import be_worker
from tokflow.pools.pool import Advance, Finished, InProcess, LostWorkerError, Make, R, T, ignore
from tokflow.pools.processes import (
    ProcessPool,
    affordable,
    kill_all,
    start_fork_server,
    stop_all,
)
from tokflow.pools.sending import answer

FORK_SERVER = "tokflow.pipeline.fork_server"
"""The module that the fork server imports; by its name, since it comes after this one."""

SECONDS_BETWEEN = 0.1
"""Seconds from one report of progress to the next."""

ATTEMPTS = 2
"""Attempts at a task whose worker is lost: another task may have taken the memory."""


class LocalPool:
    """Worker processes that start when there is a first task for them, and stay.

    A worker is a process with one core to itself. It takes one task at a time, so that a process
    that is killed takes no more than that one with it; another process tries it once more.
    """

    is_here = True

    def __init__(self, num_workers: int) -> None:
        self._num_workers = affordable(num_workers)
        self._workers: list[_Worker] = []

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        """Yield each task with what came of it, as they finish; see `Pool.map`. One alone runs in
        this process.

        Where a task's worker is lost twice, its result is a LostWorkerError.
        """
        tasks = iter(tasks)
        first = list(islice(tasks, 2))
        if len(first) < 2:
            yield from InProcess().map(make, first, advance=advance)
            return
        try:
            yield from self._map(make, chain(first, tasks), advance)
        finally:
            if any(worker.is_busy for worker in self._workers):  # more maps may follow
                stop_all([worker.processes for worker in self._workers])
                self._workers.clear()

    def _map(self, make: Make[T, R], tasks: Iterable[T], advance: Advance) -> Finished[T, R]:
        waiting = ((task, 1) for task in tasks)
        again: deque[tuple[T, int]] = deque()
        running: dict[Future[Any], tuple[_Worker, T, int]] = {}
        idle = deque(self._workers)
        while True:
            while (idle or len(self._workers) < self._num_workers) and (
                next_ := again.popleft() if again else next(waiting, None)
            ):
                task, attempt = next_
                if not idle:
                    self._workers.append(_Worker())
                    idle.append(self._workers[-1])
                worker = idle.popleft()
                running[worker.do(make, task)] = worker, task, attempt
            if not running:
                return
            done, _ = wait(running, timeout=SECONDS_BETWEEN, return_when=FIRST_COMPLETED)
            for of_running in running.values():
                of_running[0].pass_on(advance)
            for future in done:
                worker, task, attempt = running.pop(future)
                idle.appendleft(worker)  # if it was lost, a new process takes its task
                result = worker.result(future)
                if isinstance(result, LostWorkerError) and attempt < ATTEMPTS:
                    again.append((task, attempt + 1))
                else:
                    yield task, result

    def start(self) -> None:
        """Get ready to fork workers."""
        start_fork_server(FORK_SERVER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        stop_all([worker.processes for worker in self._workers if worker.is_busy])
        kill_all([worker.processes for worker in self._workers if not worker.is_busy])


@dataclass(eq=False)
class _Worker:
    """One process at a time, with counters of its own that this process reads."""

    counters: Any = field(default_factory=lambda: get_context("spawn").RawArray("q", 2))
    """Documents and bytes that its tasks have done so far."""
    processes: ProcessPool = field(init=False)
    is_busy: bool = False
    _passed_on: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.processes = self._new_processes()

    def _new_processes(self) -> ProcessPool:
        return ProcessPool(1, initialize=_begin, args=(self.counters,), fork_server=FORK_SERVER)

    def do(self, make: Make[T, R], task: T) -> Future[Any]:
        """Begin a task; one that cannot be pickled is done, with that error."""
        try:
            packed = pickle.dumps((make, task))
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed
        self.is_busy = True
        try:
            return self.processes.submit(_call, packed)
        except BrokenExecutor:  # it has ended since the last task
            self._replace()
            return self.processes.submit(_call, packed)

    def result(self, future: Future[Any]) -> Any:
        """Return what came of a task that is done; a LostWorkerError where its process is lost."""
        self.is_busy = False
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Exception) and not isinstance(error, BrokenExecutor):
            return error
        return self._replace()  # also where it was told to end

    def pass_on(self, advance: Advance) -> None:
        """Report what its tasks have done since the last time."""
        counters = tuple(self.counters)
        new = counters[0] - self._passed_on[0], counters[1] - self._passed_on[1]
        if any(new):
            self._passed_on = counters
            advance(*new)

    def _replace(self) -> LostWorkerError:
        """Let another process take the place of one that is lost; return why it was."""
        codes = [code for code in self.processes.exit_codes() if code]
        self.processes.terminate()
        self.processes = self._new_processes()
        cause = f" (exit status {codes[0]})" if codes else ""
        if codes and codes[0] < 0:
            cause = f" (killed by {signal.Signals(-codes[0]).name})"
        return LostWorkerError(
            where="a worker process",
            expected="a process that lives until its task is done",
            found=f"worker died twice{cause}",
            remedy="run it with fewer workers (--jobs) or more memory: a system that is short of "
            "memory kills processes; else a library has failed, and dmesg may say where",
        )


_advance: Advance = ignore
_is_busy = False
"""Whether this worker does a task now."""


def _begin(counters: Any) -> None:
    """Make a worker of this process: it cleans up where its pool stops it."""
    global _advance
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool hears of it, too
    signal.signal(signal.SIGTERM, _end)
    be_worker()
    _advance = partial(_count, counters)


def _end(number: int, frame: object) -> None:
    """End the worker: at once where it has nothing to clean up, for to free all that it holds takes
    a third of a second. Whoever tells it once more does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    if not _is_busy:
        os._exit(128 + number)
    raise KeyboardInterrupt


def _count(counters: Any, num_documents: int, num_bytes: int) -> None:
    counters[0] += num_documents
    counters[1] += num_bytes


def _call(packed: bytes) -> Any:
    """Do a task that came as bytes, for a worker to open where it can report an error; return an
    exception as a value."""
    global _is_busy
    _is_busy = True
    try:
        return answer(packed, _advance)
    finally:
        _is_busy = False
