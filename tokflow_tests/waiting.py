"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
