"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.01)
