"""Processes of this machine that start none of the user's code and end with this process."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import parent_process, set_forkserver_preload
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from types import ModuleType

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


def stop(processes: Sequence[BaseProcess]) -> None:
    """Tell processes to end; those that do not within one second in all are killed."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join(STOP_SECONDS)


def end_with_parent() -> None:
    """Let this process end at once where its parent was killed."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def end_with_starter() -> None:
    """Let Linux kill this process with the thread that started it and waits for it, also while a
    library holds the interpreter, so that no thread of this process could see the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
