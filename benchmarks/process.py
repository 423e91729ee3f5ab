"""One whole process, measured from outside: wall time, processor time, peak memory of its tree."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tokflow.pools.machine import shared_bytes

PROC = Path("/proc")
SAMPLE_SECONDS = 0.05
SAMPLING_SHARE = 0.04
"""Sampling takes no more of one core than this: slow samples are taken less often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one process took, imports included."""

    wall_seconds: float
    cpu_seconds: float
    """User and system time of the process and all its descendants.

    As the kernel counts those that were waited for; where a server of its own started the others,
    so that nobody waited for them, the sum of what the samples saw last of each.
    """
    peak_bytes: int
    """Peak resident memory of the process and all its descendants together.

    The largest of the samples, each the sum of their proportional shares, so that a page that two
    of them use counts once. Mapped files that are in memory count. Never less than
    `largest_bytes`, which no sample can miss.
    """
    largest_bytes: int
    """Peak resident memory of the largest single process, as the kernel keeps it.

    The kernel hands a parent's peak on to its children, so the process that measures must stay
    small: it imports no library.
    """
    others_seconds: float = 0.0
    """Processor time of the rest of the machine meanwhile: a wall time is worth little where it is
    not small."""


class OverTimeError(Exception):
    """The process took longer than it was given, and was ended."""


def measure(command, *, folder, environment, timeout=None, num_cores=None):
    """Run `command` in `folder` and return what it took; no process of it is left behind.

    It keeps bytecode, also where this process is told not to: an installed program has it. With
    `num_cores` it may use only so many of the cores that this process may use.

    Raises: RuntimeError, with the end of what the process printed, where it fails;
    OverTimeError after `timeout` seconds.
    """
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    with tempfile.TemporaryFile("w+") as output:
        start, busy = time.perf_counter(), busy_seconds()
        with pinned(num_cores):  # which the process inherits
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        watch = Watch(process.pid, deadline=start + timeout if timeout else None)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds, busy = time.perf_counter() - start, busy_seconds() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
        watch.stop()
        if watch.is_over_time:
            raise OverTimeError(f"over {timeout:.0f} s")
        if process.returncode != 0:
            output.seek(0)
            raise RuntimeError(
                f"{' '.join(process.args)}: expected exit 0, found {process.returncode}; "
                f"its output ends:\n{output.read()[-3000:]}"
            )
    maxrss_unit = 1 if sys.platform == "darwin" else 1024
    largest_bytes = max(usage.ru_maxrss * maxrss_unit, watch.largest_bytes)
    cpu_seconds = max(usage.ru_utime + usage.ru_stime, sum(watch.cpu_seconds.values()))
    return Measurement(
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        peak_bytes=max(watch.peak_bytes, largest_bytes),
        largest_bytes=largest_bytes,
        others_seconds=max(0.0, busy - cpu_seconds),
    )


def busy_seconds():
    """Return the processor time that the whole machine has spent, 0 where it does not say."""
    fields = (PROC / "stat").read_text().split()[1:9] if PROC.exists() else [0] * 8
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def pinned(num_cores):
    """Have no more than so many cores in the block; all where none are asked for."""
    if num_cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:num_cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Watch(threading.Thread):
    """Sample the memory of a process and its descendants until it is told to stop."""

    def __init__(self, root, *, deadline):
        super().__init__(daemon=True)
        self.root = root
        self.deadline = deadline
        self.peak_bytes = 0
        self.largest_bytes = 0
        self.cpu_seconds = {}
        """Processor time by process id and start of every process seen, as seen last."""
        self.is_over_time = False
        self.known = {}
        """Start time by process id of every descendant seen, also of those with a new parent."""
        self.stopped = threading.Event()

    def run(self):
        pause = SAMPLE_SECONDS
        while not self.stopped.wait(pause):
            began = time.thread_time()
            self.known = alive(self.root, self.known)
            self.peak_bytes = max(self.peak_bytes, sum(map(shared_bytes, self.known)))
            for pid, start in self.known.items():
                self.largest_bytes = max(self.largest_bytes, kernel_bytes(pid))
                before = self.cpu_seconds.get((pid, start), 0.0)
                self.cpu_seconds[pid, start] = max(before, processor_seconds(pid))
            pause = max(SAMPLE_SECONDS, (time.thread_time() - began) / SAMPLING_SHARE)
            if self.deadline and time.perf_counter() > self.deadline:
                self.is_over_time = True
                end(self.known)

    def stop(self):
        """Stop sampling, and end descendants that outlived the process."""
        self.stopped.set()
        self.join()
        end({pid: start for pid, start in self.known.items() if pid != self.root})


def alive(root, known):
    """Return start times by id of `root`, of the `known` that still run, and their descendants."""
    starts, children = {}, {}
    for entry in PROC.iterdir() if PROC.exists() else ():
        if entry.name.isdigit() and (found := parent_and_start(entry.name)):
            parent, starts[int(entry.name)] = found
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [root, *(pid for pid, start in known.items() if starts.get(pid) == start)]
    found = {}
    while waiting:
        pid = waiting.pop()
        if pid in starts and pid not in found:
            found[pid] = starts[pid]
            waiting += children.get(pid, [])
    return found


def stat_of(pid):
    """Return what the kernel counts of a process, from its state on; [] if it ended."""
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []


def parent_and_start(pid):
    """Return the id of a process's parent, and when it started in clock ticks; None if it ended."""
    fields = stat_of(pid)
    return (int(fields[1]), int(fields[19])) if fields and fields[0] != "Z" else None


def processor_seconds(pid):
    """Return user and system time of one process, 0 where it ended."""
    return sum(map(int, stat_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def kernel_bytes(pid, name="VmHWM"):
    """Return the memory that the kernel counts of one process, by default its peak; 0 where it
    ended."""
    try:
        lines = (PROC / f"{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def end(pids):
    """Kill the processes that are still those with the known start times."""
    for pid, start in pids.items():
        found = parent_and_start(pid)
        if found and found[1] == start:
            os.kill(pid, signal.SIGKILL)
