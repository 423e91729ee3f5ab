"""Tasks on a Ray cluster: what they make is in the store, what they return is a receipt.

A node needs Python with the same tokflow and libraries, and the credentials of the store in its
environment; a place at a URL has a folder of its own on each. Ray moves tasks (some kB) and
receipts (some hundred bytes), never text or tokens.
"""

import os
import pickle
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self

from tokflow.errors import ChangedFileError, ConfigError
from tokflow.pools.machine import be_worker
from tokflow.pools.pool import (
    Advance,
    Finished,
    LostWorkerError,
    Make,
    R,
    Shared,
    T,
    answer,
    ignore,
    packed_for_machines,
    take_shared,
)
from tokflow.store.listed_files import Stamp
from tokflow.store.versions import installed_versions, other_versions

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's variable for the cluster to connect to; by default that of this machine."""

TASK_MEMORY = 1_000_000_000
"""Bytes that a task is given of its node's; one process that builds 1 GB of text takes 0.5 GB."""

SENT_PER_CORE = 2
"""Tasks under way for each core of the cluster as it is now: one that works and one that waits."""

ATTEMPTS = 4
"""Attempts at a task whose node or process is lost."""

SECONDS_BETWEEN = 1.0
"""Seconds from one look at the cores to the next while no task ends."""

ANSWER_SECONDS = 10.0
"""Seconds until a cluster that does not answer is taken not to be there."""

STOP_SECONDS = 5.0
"""Seconds that tasks that are stopped have to clean up."""

ON_ALL_NODES = (
    "put raw files and the store where all nodes reach them: at a URL such as s3://, or on one "
    "file system that all of them mount"
)


class RayPool:
    """The cores of a Ray cluster, one task on each; connected to when there is a first task.

    Nodes may come and go: a task whose node is lost is sent to another. `jobs`: how many tasks are
    under way at most; by default as many as the cluster has cores, and as many that wait.
    """

    is_here = False

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs
        self._ray: Any = None
        self._is_own = False
        """Whether this pool has made the connection, and is to end it."""

    def start(self) -> None:
        """Connect to the cluster.

        Raises: ConfigError where there is none.
        """
        if self._ray is not None:
            return
        import ray  # late: 1 s

        if not ray.is_initialized():
            address = os.environ.get(ADDRESS_VARIABLE, "auto")
            try:
                host, colon, port = address.rpartition("://")[2].rpartition(":")
                if colon:  # Ray waits for minutes where no machine answers
                    socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
                with _handlers_kept():
                    ray.init(address, log_to_driver=False, logging_level="warning")
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    where="--pool ray",
                    expected=f"a Ray cluster at {address}",
                    found=" ".join(str(error).split()),
                    remedy=f"start one with `ray start --head`, or set {ADDRESS_VARIABLE}",
                ) from None
            self._is_own = True
            _tell_on_stderr(ray._private.worker)
        self._ray = ray

    def map(
        self, make: Make[T, R], tasks: Iterable[T], *, advance: Advance = ignore
    ) -> Finished[T, R]:
        """Yield each task with what came of it, as they finish; see `Pool.map`.

        `advance` hears of a task when it is done. Where a task's node or process is lost again and
        again, its result is a LostWorkerError.
        """
        self.start()
        of_map = _Map[T](self._ray, self._jobs)
        try:
            yield from of_map.results(make, tasks, advance)
        finally:
            of_map.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_own:
            with _handlers_kept():
                self._ray.shutdown()
            self._ray, self._is_own = None, False


@dataclass(eq=False)
class _Sent(Generic[T]):
    """A task that the cluster has."""

    task: T
    packed: bytes
    shared: dict[str, Any]
    """References of Ray to the shared values that are in it, by key."""
    num_attempts: int = 0


class _Map(Generic[T]):
    """One map of a pool, and what it has sent."""

    def __init__(self, ray: Any, jobs: int | None) -> None:
        self._ray = ray
        self._jobs = jobs
        self._sent: dict[Any, _Sent[T]] = {}
        """Tasks under way, by reference."""
        self._again: deque[_Sent[T]] = deque()
        """Tasks that were lost, and are to be sent again."""
        self._shared: dict[str, Any] = {}
        """References of Ray to the pickles of shared values, by key."""
        # A task that fits nowhere would wait for ever: it has all of the largest node at most.
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        of_nodes = [int(has.get("memory", 0)) for has in nodes if has.get("CPU", 0) >= 1]
        self._do = ray.remote(_do).options(
            num_cpus=1,
            memory=min(TASK_MEMORY, max(of_nodes, default=TASK_MEMORY)),
            max_retries=0,  # lost ones are sent again here, where they are counted
            scheduling_strategy="SPREAD",
        )

    def results(
        self, make: Make[T, R], tasks: Iterable[T], advance: Advance
    ) -> Iterator[tuple[T, R | Exception]]:
        tasks = iter(tasks)
        while True:
            cores = int(self._ray.cluster_resources().get("CPU", 0))
            room = max(1, cores * SENT_PER_CORE)
            room = min(room, self._jobs or room) - len(self._sent)
            while room > 0 and self._again:  # what was lost goes first
                self._send(self._again.popleft())
                room -= 1
            for task in islice(tasks, max(0, room)):
                self._send(self._packed(make, task))
            if not self._sent:
                return
            refs = list(self._sent)  # those that have ended, after a second at most
            is_any = self._ray.wait(refs, timeout=SECONDS_BETWEEN)[0]
            ended = self._ray.wait(refs, num_returns=len(refs), timeout=0)[0] if is_any else []
            for ref in ended:
                sent = self._sent.pop(ref)
                result = self._result(ref, advance)
                if isinstance(result, LostWorkerError) and sent.num_attempts < ATTEMPTS:
                    self._again.append(sent)
                else:
                    yield sent.task, result

    def stop(self) -> None:
        """Stop what is under way; what has begun may clean up."""
        refs = list(self._sent)
        for ref in refs:
            with suppress(Exception):  # it is done, or its node is gone
                self._ray.cancel(ref)
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=STOP_SECONDS)

    def _packed(self, make: Make[T, Any], task: T) -> _Sent[T]:
        """Return a task as it is sent; a value that tasks share goes to each node once."""
        shared: dict[str, Any] = {}

        def share(each: Shared[Any]) -> None:
            if each.key not in self._shared:
                self._shared[each.key] = self._ray.put(packed_for_machines(each.value))
            shared[each.key] = self._shared[each.key]

        return _Sent(task, packed_for_machines((make, task), share), shared)

    def _send(self, sent: _Sent[T]) -> None:
        ref = self._do.remote(sent.packed, sent.shared, installed_versions())
        sent.num_attempts += 1
        self._sent[ref] = sent

    def _result(self, ref: Any, advance: Advance) -> Any:
        """Return what came of an attempt."""
        errors = self._ray.exceptions
        try:
            receipt: _Receipt = self._ray.get(ref)
        except errors.RayTaskError as error:  # what a task raises itself is in its receipt
            return _differs(" ".join(str(error.cause).split()))
        except errors.RayError as error:
            said = " ".join(str(error).split())[:200] or "no reason given"
            return LostWorkerError(
                where="a worker process",
                expected="a node, and a process on it, that live until the task is done",
                found=f"{type(error).__name__}: {said}",
                remedy="look into the logs of Ray on that node; give it more memory if processes "
                "were killed for that, and run again: finished outputs stay",
            )
        if receipt.num_documents or receipt.num_bytes:
            advance(receipt.num_documents, receipt.num_bytes)
        result = pickle.loads(receipt.result)
        if isinstance(result, list):
            return [_explained(each, receipt) for each in result]
        return _explained(result, receipt)


class _Receipt(NamedTuple):
    """Everything that comes back of a task."""

    result: bytes
    """Pickled, for the paths in it."""
    num_documents: int
    num_bytes: int
    """Bytes of text, as `advance` is called with."""
    node: str
    unseen: list[str]
    """Paths that errors name, and that are not there on that node."""


def _do(packed: bytes, shared: Mapping[str, Any], of_driver: Mapping[str, str]) -> _Receipt:
    """Do a task on a node."""
    import ray

    be_worker()
    num_documents = num_bytes = 0

    def count(documents: int, of_text: int) -> None:
        nonlocal num_documents, num_bytes
        num_documents += documents
        num_bytes += of_text

    if differences := other_versions(installed_versions(), of_driver):
        result = _differs(", ".join(differences))
    else:
        take_shared(shared, lambda key: ray.get(shared[key]))
        result = answer(packed, count)
    unseen = [path for path in _paths_named(result) if not os.path.lexists(path)]
    data = packed_for_machines(result)
    return _Receipt(data, num_documents, num_bytes, socket.gethostname(), unseen)


def _paths_named(result: object) -> list[str]:
    """Return the files of this disk that errors are about."""
    each = result if isinstance(result, list) else [result]
    errors = [of for of in each if isinstance(of, Exception)]
    names = [getattr(of, "where", None) or getattr(of, "filename", None) for of in errors]
    return [name for name in map(str, names) if name.startswith("/")]


def _explained(result: Any, receipt: _Receipt) -> Any:
    """Return an error of a file that is not there on the node, though it is here, or is another
    file there, as that."""
    found, where = "", next(iter(_paths_named(result)), "")
    with suppress(OSError, ValueError):  # of a text that is no path, or may not be looked at
        if isinstance(result, ChangedFileError):
            if Stamp.of(result.path.stat()) == result.stamp:
                found = f"another one on {receipt.node}, such as a copy on its own disk"
        elif where in receipt.unseen and Path(where).exists():
            found = f"none on {receipt.node}, though there is one here"
    if not found:
        return result
    return ConfigError(
        where=where,
        expected="one file that every node of the Ray cluster has under this name",
        found=found,
        remedy=ON_ALL_NODES,
    )


def _differs(found: str) -> ConfigError:
    return ConfigError(
        where="a node of the Ray cluster",
        expected="tokflow, and the libraries that make its bytes, in the versions of the machine "
        "that asked for the work",
        found=found,
        remedy="install the same versions on all nodes, as by one constraints.txt, for one dataset "
        "is not made by two",
    )


def _tell_on_stderr(of_ray: Any) -> None:
    """Let Ray report lost nodes on stderr: on stdout are results alone, JSON among them."""
    tell = getattr(of_ray, "print_to_stdstream", None)
    if tell is not None and tell.__module__ == of_ray.__name__:  # the first time

        def tell_on_stderr(data: dict[str, Any], *args: Any, **how: Any) -> None:
            tell({**data, "is_err": True}, *args, **how)

        of_ray.print_to_stdstream = tell_on_stderr


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Let signals mean what they meant before the block: Ray takes SIGTERM for itself."""
    handlers: Mapping[int, Any] = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
