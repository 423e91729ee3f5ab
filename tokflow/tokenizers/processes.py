"""Processes of this machine, for libraries that hold the interpreter or print."""

import ctypes
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal to get when the thread that started this process ends."""

_starting = threading.Lock()


class _Process(SpawnProcess):
    """A process that does not import the script it is started from.

    `spawn` runs the user's script again in each process, up to an error or, worse, a second build
    where the script has no `if __name__ == "__main__"`.
    """

    def start(self) -> None:
        with _starting:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super().start()
            finally:
                sys.modules["__main__"] = script


class _Context(SpawnContext):
    Process = _Process


class ProcessPool(ProcessPoolExecutor):
    """Processes that start when they are needed and end with the pool, or with this process.

    Nothing is forked, for a fork copies the locks of other libraries' threads. A block that is
    interrupted waits for none of them.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers, mp_context=_Context(), initializer=_be_worker)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            for child in active_children():
                if isinstance(child, _Process):
                    child.kill()
        super().__exit__(kind, *error)


def _be_worker() -> None:
    """End at once where the terminal interrupts, unless the parent does not mind it, as in the
    background of a script; and where the parent was killed."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_starter() -> None:
    """Let Linux kill this process with the thread that started it and waits for it, also while a
    library holds the interpreter, so that no thread of this process could see the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
