"""One whole process, measured from outside: wall time, processor time, peak memory."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one process took, imports included."""

    wall_seconds: float
    cpu_seconds: float
    """User and system time of the process and of its children it waited for."""
    peak_bytes: int
    """Peak resident memory of the largest single process among them.

    It counts mapped files that are in memory too. The kernel hands a parent's peak on to its
    children, so the process that measures must stay small: it imports no library.
    """


def measure(command, *, folder, environment):
    """Run `command` in `folder` and return what it took.

    Raises: RuntimeError, with the end of what the process printed, where it fails.
    """
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise RuntimeError(
                f"{' '.join(process.args)}: expected exit 0, found {process.returncode}; "
                f"its output ends:\n{output.read()[-3000:]}"
            )
    return Measurement(
        wall_seconds=wall_seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    )
