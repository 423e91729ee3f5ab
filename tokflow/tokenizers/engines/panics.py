"""Panics of libraries written in Rust, which no `except Exception` catches."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Let a panic in the block be a RuntimeError with its message.

    pyo3 raises a PanicException, which is a BaseException and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"it panicked: {error}") from error
