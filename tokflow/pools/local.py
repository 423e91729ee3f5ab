"""Processes of this machine, one task in each at a time, that start none of the user's code and end
with this process."""

import ctypes
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain, islice
from multiprocessing import get_context, parent_process, set_forkserver_preload
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Self

from tokflow.pools.machine import be_worker
from tokflow.pools.pool import (
    Advance,
    Finished,
    InProcess,
    LostWorkerError,
    Make,
    R,
    T,
    answer,
    ignore,
    sendable,
)

FORK_SERVER = "tokflow.pipeline.fork_server"
"""The module that the fork server imports; by its name, since it comes after this one."""

SECONDS_BETWEEN = 0.1
"""Seconds from one report of progress to the next."""

ATTEMPTS = 2
"""Attempts at a task whose worker is lost: another task may have taken the memory."""


CAN_FORK = sys.platform == "linux"
"""On macOS the libraries of the system may have threads from the beginning."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The environment in which numpy and pyarrow begin no thread when they are imported."""

_lock = threading.Lock()
"""Held while a process starts."""

_IS_FORK_SERVER = "TOKFLOW_IS_FORK_SERVER"
"""Environment variable that marks the fork server, which workers are forked from."""

PR_SET_PDEATHSIG = 1
"""Linux's prctl option: the signal to get when the thread that started this process ends."""

STOP_SECONDS = 1.0
"""Seconds that a process has to clean up after SIGTERM before it is killed."""

SERVER_SECONDS = 0.1
"""Seconds until the system reports the end of a fork server that has just been killed."""


FILES_OF_WORKER, OTHER_FILES = 4, 256
"""Files that this process has open for a worker, 3.5 measured, and for all else."""


class LocalPool:
    """Worker processes that start when there is a first task for them, and stay.

    A worker is a process with one core to itself. It takes one task at a time, so that a process
    that is killed takes no more than that one with it; another process tries it once more.
    """

    is_here = True

    def __init__(self, num_workers: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = OTHER_FILES + FILES_OF_WORKER * num_workers
        if soft != resource.RLIM_INFINITY and soft < needed:
            more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            with suppress(OSError, ValueError):  # macOS has another limit, which cannot be read
                resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
                soft = more
            num_workers = max(1, min(num_workers, (soft - OTHER_FILES) // FILES_OF_WORKER))
        self._num_workers = num_workers
        self._workers: list[Worker] = []

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
            stop([of.process for of in self._workers if of.is_busy])
            self._workers = [of for of in self._workers if not of.is_busy]  # more maps may follow

    def _map(self, make: Make[T, R], tasks: Iterable[T], advance: Advance) -> Finished[T, R]:
        waiting = ((task, 1) for task in tasks)
        again: deque[tuple[T, int]] = deque()
        running: dict[Connection, tuple[Worker, T, int]] = {}
        idle = deque(self._workers)
        while True:
            while (idle or len(self._workers) < self._num_workers) and (
                next_ := again.popleft() if again else next(waiting, None)
            ):
                task, attempt = next_
                try:
                    packed = pickle.dumps((make, task))
                except Exception as error:
                    yield task, error
                    continue
                if not idle:
                    self._workers.append(Worker(has_one_core=True))
                    idle.append(self._workers[-1])
                worker = idle.popleft()
                worker.begin(packed)
                running[worker.connection] = worker, task, attempt
            if not running:
                return
            ended = wait(list(running), SECONDS_BETWEEN)
            for worker, *_ in running.values():
                worker.pass_on(advance)
            for connection in [of for of in running if of in ended]:
                worker, task, attempt = running.pop(connection)
                result = worker.result()
                idle.appendleft(worker)  # if it was lost, a new process takes its task
                if isinstance(result, LostWorkerError) and attempt < ATTEMPTS:
                    again.append((task, attempt + 1))
                else:
                    yield task, result

    def start(self) -> None:
        """Get ready to fork workers."""
        start_fork_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if not worker.is_busy:  # it has nothing to clean up
                worker.process.kill()
        stop([worker.process for worker in self._workers])


class Worker:
    """A process of this machine that does one task at a time, and has counters of its own, which
    this process reads. Where it is lost, another takes its place.

    This process is never forked, for a fork copies the locks of other libraries' threads: it is a
    new one or, if it `has_one_core` to itself and the system allows it, a fork of the fork server.
    A block that is left waits for it no longer than for a second.
    """

    def __init__(self, *, has_one_core: bool = False) -> None:
        self._has_one_core = has_one_core
        self.is_busy = False
        """Whether it has a task."""
        self._start()

    def _start(self) -> None:
        is_forking = self._has_one_core and start_fork_server()
        context: Any = get_context("forkserver" if is_forking else "spawn")
        self._counters = context.RawArray("q", 2)
        self._passed_on = 0, 0
        self.connection, there = context.Pipe()
        args = there, self._counters, dict(os.environ), self._has_one_core
        self.process = context.Process(target=_serve, args=args)
        start(self.process)
        there.close()

    def begin(self, packed: bytes) -> None:
        """Begin a task, the pickle of a function and its argument."""
        self.is_busy = True
        try:
            self.connection.send_bytes(packed)
        except OSError:  # it has ended since the last task
            self._start()
            self.connection.send_bytes(packed)

    def result(self) -> Any:
        """Return what came of the task, waiting for it; a LostWorkerError where the process is
        lost."""
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            return self._replace()
        finally:
            self.is_busy = False
        return pickle.loads(data)

    def pass_on(self, advance: Advance) -> None:
        """Report what its tasks have done since the last time."""
        counters = tuple(self._counters)
        new = counters[0] - self._passed_on[0], counters[1] - self._passed_on[1]
        if any(new):
            self._passed_on = counters
            advance(*new)

    def _replace(self) -> LostWorkerError:
        """Let another process take the place of this one, which is lost; return why it was."""
        self.process.join(STOP_SECONDS)
        code, cause = self.process.exitcode, ""
        self.connection.close()
        self._start()
        if code:
            cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            cause = f" ({cause})"
        return LostWorkerError(
            where="a worker process",
            expected="a process that lives until its task is done",
            found=f"worker died twice{cause}",
            remedy="run it with fewer workers (--jobs) or more memory: a system that is short of "
            "memory kills processes; else a library has failed, and dmesg may say where",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        stop([self.process])


_is_busy = False
"""Whether this worker does a task now."""


def _serve(
    connection: Connection, counters: Any, environment: Mapping[str, str], has_one_core: bool
) -> None:
    """Do tasks that come as bytes, for a worker to open where it can report an error, and send what
    came of them; an exception is a value.

    The environment is the parent's of now: the fork server may be older. A worker cleans up where
    its pool stops it, and ends at once where the parent was killed.
    """
    global _is_busy
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool hears of it, too
    signal.signal(signal.SIGTERM, _end)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:  # at once where it was killed
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    if has_one_core:
        be_worker()

    def advance(num_documents: int, num_bytes: int) -> None:
        counters[0] += num_documents
        counters[1] += num_bytes

    while True:
        try:
            packed = connection.recv_bytes()
            _is_busy = True
            result = answer(packed, advance)
            _is_busy = False
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            data = pickle.dumps(result)
        except Exception as error:
            data = pickle.dumps(sendable(error))
        connection.send_bytes(data)


def _end(number: int, frame: object) -> None:
    """End the worker: at once where it has nothing to clean up, for to free all that it holds takes
    a third of a second. Whoever tells it once more does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    if not _is_busy:
        os._exit(128 + number)
    raise KeyboardInterrupt


@contextmanager
def _without_script() -> Iterator[None]:
    """Let processes that start in the block not import the script they are started from.

    Each would run the user's script again, up to an error or, worse, a second build where the
    script has no `if __name__ == "__main__"`. The fork server knows that it is one.
    """
    with _lock:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ[_IS_FORK_SERVER] = "1"
        try:
            yield
        finally:
            del os.environ[_IS_FORK_SERVER]
            sys.modules["__main__"] = script


def start(process: BaseProcess) -> None:
    """Start a process, a new one or a fork of the fork server; if that has just been killed another
    one follows."""
    with _without_script():
        try:
            process.start()
        except (ConnectionError, EOFError):
            time.sleep(SERVER_SECONDS)
            process.start()


def start_fork_server() -> bool:
    """Start the fork server, unless it runs already; it imports `FORK_SERVER`, which calls
    `be_fork_server`. Returns at once, False where none are forked.

    It is the one that all of a program share, and ends with it.
    """
    if CAN_FORK:
        with _without_script():
            set_forkserver_preload([FORK_SERVER])
            ensure_running()
    return CAN_FORK


def be_fork_server(*modules: str) -> None:
    """Import modules in the fork server, with no thread; in other processes do nothing.

    It hears neither of Ctrl-C, while it imports, nor that it is to end, for whoever tells a group
    of processes means those that work: it ends after them. One that cannot be imported is left to
    the workers that need it, and report it.
    """
    if _IS_FORK_SERVER not in os.environ:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    os.environ.update(ONE_THREAD)
    for module in modules:
        with suppress(Exception):
            import_module(module)
    signal.signal(signal.SIGINT, before)


def stop(processes: Sequence[BaseProcess]) -> None:
    """Tell processes to end; those that do not within one second in all are killed."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join(STOP_SECONDS)


def end_with_starter() -> None:
    """Let Linux kill this process with the thread that started it and waits for it, also while a
    library holds the interpreter, so that no thread of this process could see the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
