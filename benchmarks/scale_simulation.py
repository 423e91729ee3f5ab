"""Workers on machines before an object store, event by event: what makes them wait.

A worker reads what its task needs, works on it as it comes, puts what it made, then the manifest,
and takes the next task. It waits for its own core, for its machine's network, for the time that the
store takes to answer, and for the requests a second that the store lets through.
"""

import heapq
from dataclasses import dataclass
from functools import cache

TASKS_PER_WORKER = 16
"""Simulated at most; of more the time is what these take, scaled up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What one worker does alone; all tasks of a stage are alike."""

    read_bytes: float = 0
    read_requests: float = 0
    seconds: float = 0
    """Of one core."""
    write_bytes: float = 0
    num_puts: float = 0
    """Requests that write, but for the manifest's."""


class Line:
    """What serves one after another, so much a second: a network, a limit of requests."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self.free_at = 0.0

    def take(self, now: float, amount: float) -> float:
        """Return when an amount that is asked for now is served."""
        self.free_at = max(now, self.free_at) + amount / self.per_second
        return self.free_at


class Store:
    """The object store: latencies, and limits that all machines share."""

    def __init__(self, speed) -> None:
        self.speed = speed
        self.gets = Line(speed.gets_per_second)
        self.puts = Line(speed.puts_per_second)

    def read(self, now: float, task: Task, network: Line) -> float:
        """Return when all that a task reads is there; blocks are asked for ahead of use."""
        answered = self.gets.take(now, task.read_requests) + self.speed.first_byte_seconds
        came = now + task.read_bytes / (2 * self.speed.connection_bytes_per_second)
        return max(answered, came, network.take(now, task.read_bytes))

    def write(self, now: float, task: Task, network: Line) -> float:
        """Return when the files of a task are there."""
        went = now + task.write_bytes / self.speed.connection_bytes_per_second
        put = self.puts.take(now, task.num_puts) + self.speed.put_seconds
        return max(put, went, network.take(now, task.write_bytes))

    def commit(self, now: float) -> float:
        """Return when a manifest is there, which is put last."""
        return self.puts.take(now, 1) + self.speed.put_seconds


READ, WRITE, COMMIT = range(3)


@cache
def simulate(task: Task, num_tasks: int, *, num_machines: int, machine, speed) -> float:
    """Return the seconds until all tasks are done."""
    num_workers = min(num_tasks, num_machines * machine.num_cores)
    left = simulated = min(num_tasks, num_workers * TASKS_PER_WORKER)
    store, now = Store(speed), 0.0
    inward = [Line(machine.bytes_per_second) for _ in range(num_machines)]
    outward = [Line(machine.bytes_per_second) for _ in range(num_machines)]
    seconds = task.seconds / machine.core_speed
    events = [(0.0, worker, READ) for worker in range(num_workers)]
    while events:
        now, worker, step = heapq.heappop(events)
        here = worker % num_machines
        if step == WRITE:
            event = store.write(now, task, outward[here]), worker, COMMIT
        elif step == COMMIT:
            event = store.commit(now), worker, READ
        elif left:
            left -= 1
            came = store.read(now, task, inward[here])
            event = max(now + seconds, came), worker, WRITE
        else:
            continue
        heapq.heappush(events, event)
    return now * num_tasks / simulated
