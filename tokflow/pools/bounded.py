"""Bounds for foreign code, such as a template: the seconds and the memory that it takes.

A thread looks at what runs under bounds, in any thread, and ends it by an exception there. It ends
loops, and not a single call of a library that is under way.
"""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.25
"""Seconds between looks; a block that takes less is never looked at."""

MEMORY_BYTES = 4_000_000_000
"""Bytes by which a process may grow while a bounded block runs."""

_MEMORY = Path("/proc/self/statm")


class OverBoundError(Exception):
    """A bounded block took too long, or too much memory."""


class _EndError(BaseException):
    """Raised inside a block that is ended; no `except Exception` of its code stops it."""


@dataclass(slots=True)
class _Block:
    """A block that runs now."""

    thread: int
    started: float
    seconds: float
    memory: int | None = None
    """Bytes of the process when it was looked at first."""
    why: str | None = None
    """Why it was ended."""

    def excess(self) -> str | None:
        """Return the bound that it is over; None where it is over none."""
        if time.monotonic() - self.started > self.seconds:
            return f"more than {self.seconds:,.0f} seconds"
        now = _memory()
        self.memory = now if self.memory is None else min(self.memory, now)
        if now - self.memory > MEMORY_BYTES:
            return f"more than {MEMORY_BYTES / 1e9:,.0f} GB of memory"
        return None


_lock = threading.Lock()
_blocks: dict[int, _Block] = {}
"""Blocks that run now, by identity."""
_watch: threading.Thread | None = None


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Run the block for so long at most, and as long as memory does not run away.

    Raises: OverBoundError, which says what was too much.
    """
    block = _Block(threading.get_ident(), time.monotonic(), seconds)
    _start(block)
    try:
        try:
            yield
        finally:
            _stop(block)
    except _EndError:
        _stop(block)
    if block.why is not None:
        raise OverBoundError(block.why)


def _start(block: _Block) -> None:
    global _watch
    with _lock:
        _blocks[id(block)] = block
        if _watch is None or not _watch.is_alive():  # none yet, or none after a fork
            _watch = threading.Thread(target=_look, name="bounds", daemon=True)
            _watch.start()


def _stop(block: _Block) -> None:
    """Look at the block no more. An exception that was sent and has not arrived does so here, at
    one of the next steps of a loop; to take it back would leave the interpreter of CPython 3.11
    looking for it at each step, for ever."""
    with _lock:
        _blocks.pop(id(block), None)
    if block.why is not None:
        with suppress(_EndError):
            for _ in range(1_000):
                pass


def _look() -> None:
    while True:
        time.sleep(LOOK_SECONDS)
        with _lock:
            for block in _blocks.values():
                is_long = time.monotonic() - block.started > LOOK_SECONDS
                if block.why is None and is_long and (why := block.excess()) is not None:
                    block.why = why
                    end = ctypes.py_object(_EndError)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(block.thread), end)


def _memory() -> int:
    """Return the bytes of memory that the process has; 0 where the system has no such number."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
