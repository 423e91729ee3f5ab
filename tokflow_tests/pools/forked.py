"""Calls in a process that is forked from this one."""

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any

TIMEOUT_SECONDS = 20


def forked(call: Callable[[], Any]) -> Any:
    """Return what `call` returns in a process forked now, which must not wait for anything."""
    fork = multiprocessing.get_context("fork")
    answer, told = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: told.send(call()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        warnings.filterwarnings("ignore", "lance is not fork-safe")  # where a test imported it
        process.start()
    try:
        assert answer.poll(TIMEOUT_SECONDS), "the forked process waits"
        return answer.recv()
    finally:
        process.kill()
        process.join()
