"""Processes of this machine that start none of the user's code and end with this process."""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import parent_process, set_forkserver_preload
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, SpawnContext, SpawnProcess
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

CAN_FORK = sys.platform == "linux"
"""On macOS the libraries of the system may have threads from the beginning."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The environment in which numpy and pyarrow begin no thread when they are imported."""

_lock = threading.Lock()
"""Held while a process starts, and while the exit status of a fork is read."""

_IS_FORK_SERVER = "TOKFLOW_IS_FORK_SERVER"
"""Environment variable that marks the fork server, which workers are forked from."""

PR_SET_PDEATHSIG = 1
"""Linux's prctl option: the signal to get when the thread that started this process ends."""

STOP_SECONDS = 1.0
"""Seconds that a process has to clean up after SIGTERM before it is killed."""

SERVER_SECONDS = 0.1
"""Seconds until the system reports the end of a fork server that has just been killed."""

FILES_OF_WORKER = 12
"""Open in this process for each pool of one process, its start included; 9 were counted."""

OTHER_FILES = 256
"""Open for all else that this process does."""


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


class _Spawned(SpawnProcess):
    def start(self) -> None:
        with _without_script():
            super().start()


class _Forked(ForkServerProcess):
    """A fork of a server, which has no thread whose locks a fork would copy.

    If the server is killed, this one is lost to its pool, and ends when the pool forgets it;
    another server forks the next. The exit status can be read once: a thread that came second
    would take nothing for a status of 255, so one at a time reads it.
    """

    def start(self) -> None:
        with _without_script():
            try:
                super().start()
            except (ConnectionError, EOFError):
                time.sleep(SERVER_SECONDS)
                super().start()

    def join(self, timeout: float | None = None) -> None:
        if wait([self.sentinel], timeout):
            with _lock:
                super().join()

    def is_alive(self) -> bool:
        with _lock:
            return super().is_alive()

    @property
    def exitcode(self) -> int | None:
        with _lock:
            return super().exitcode


class _Context(SpawnContext):
    """Starts processes, and knows those that it started."""

    def __init__(self, *, is_forking: bool) -> None:
        self._kind = _Forked if is_forking else _Spawned
        self.started: list[BaseProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> BaseProcess:  # type: ignore[override]  # noqa: N802
        process = self._kind(*args, **kwargs)
        self.started.append(process)
        return process


def start_fork_server(module: str) -> bool:
    """Start the fork server, unless it runs already; it imports `module`,
    which calls `be_fork_server`. Returns at once, False where none are forked.

    It is the one that all of a program share, and ends with it.
    """
    if CAN_FORK:
        with _without_script():
            set_forkserver_preload([module])
            ensure_running()
    return CAN_FORK


def is_fork_server() -> bool:
    """Return whether this process is the fork server."""
    return _IS_FORK_SERVER in os.environ


def be_fork_server(*modules: str) -> None:
    """Import modules in the fork server, with no thread.

    It hears neither of Ctrl-C, while it imports, nor that it is to end, for whoever tells a group
    of processes means those that work: it ends after them. One that cannot be imported is left to
    the workers that need it, and report it.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    os.environ.update(ONE_THREAD)
    for module in modules:
        with suppress(Exception):
            import_module(module)
    signal.signal(signal.SIGINT, before)


class ProcessPool(ProcessPoolExecutor):
    """Processes that start when they are needed and end with the pool, or with this process.

    This one is never forked, for a fork copies the locks of other libraries' threads: they are new,
    or where the system allows it forks of the fork server of that module. A block that is
    interrupted waits for none of them. `initialize` is called in each before anything else.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        initialize: Callable[..., None] | None = None,
        args: Any = (),
        fork_server: str | None = None,
    ) -> None:
        is_forking = fork_server is not None and start_fork_server(fork_server)
        self._context = _Context(is_forking=is_forking)
        super().__init__(
            num_workers,
            mp_context=self._context,
            initializer=_be_worker,
            initargs=(initialize, args, dict(os.environ)),
        )

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            stop_all([self])
        super().__exit__(kind, *error)

    def terminate(self) -> None:
        """Ask the processes to end, and wait for none of them."""
        self.shutdown(wait=False, cancel_futures=True)
        for process in self.started():
            process.terminate()

    def started(self) -> list[BaseProcess]:
        """Return the processes that have been started, also those that have ended."""
        return [process for process in self._context.started if process.pid is not None]

    def exit_codes(self) -> list[int | None]:
        """Return how each process ended, below 0 for a signal; None for one that does not end."""
        _join(self.started())
        return [process.exitcode for process in self.started()]


def stop_all(pools: Sequence[ProcessPool]) -> None:
    """End the processes of pools; those that do not end within one second in all are killed."""
    for pool in pools:
        pool.terminate()
    processes = [process for pool in pools for process in pool.started()]
    _join(processes)
    for process in processes:
        process.kill()
    _join(processes)


def kill_all(pools: Sequence[ProcessPool]) -> None:
    """End the processes of pools, which have nothing to do and nothing to clean up.

    Their threads here end, too: one left behind may be closing what Python, at its own end, is
    about to write to.
    """
    for pool in pools:
        for process in pool.started():
            process.kill()
    for pool in pools:
        pool.shutdown(cancel_futures=True)


def _join(processes: Sequence[BaseProcess]) -> None:
    """Wait for the ends of processes, a second in all."""
    until = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        while process.exitcode is None and time.monotonic() < until:
            time.sleep(0.001)  # another thread is about to record it


def affordable(num_workers: int) -> int:
    """Return how many pools of one process can be open at once, of those wanted.

    Raises this process's limit of open files where it may, and where they need it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OTHER_FILES + num_workers * FILES_OF_WORKER
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return num_workers
    more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(OSError, ValueError):  # macOS has another limit, which cannot be read
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return max(1, min(num_workers, (soft - OTHER_FILES) // FILES_OF_WORKER))


def _be_worker(
    initialize: Callable[..., None] | None, args: Any, environment: Mapping[str, str]
) -> None:
    """End at once where the terminal interrupts, unless the parent does not mind it, as in the
    background of a script; and where the parent was killed.

    The environment is the parent's of now: the fork server may be older.
    """
    os.environ.clear()
    os.environ.update(environment)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    if initialize is not None:
        initialize(*args)


def end_with_starter() -> None:
    """Let Linux kill this process with the thread that started it and waits for it, also while a
    library holds the interpreter, so that no thread of this process could see the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
