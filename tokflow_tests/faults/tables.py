"""The kinds of faults that a store at a URL is tried with."""

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tokflow.audit.verify import verify_path
from tokflow.errors import TokflowError
from tokflow_tests.faults.trial import (
    MORE,
    Given,
    Trial,
    another_cache,
    build,
    problem,
    right_objects,
    short,
)
from tokflow_tests.object_store import Failure, ObjectStore

Trials = Iterator[tuple[str, Trial]]

PASSING: dict[Failure, str] = {
    "500": "*", "503": "*", "drop": "*", "reset": "*", "409": "PUT COMPLETE",
    "error in 200": "COPY COMPLETE PART_COPY",
}  # fmt: skip
"""Failures, and the requests of which one such failure must not fail a build."""
FAILURES: tuple[Failure, ...] = (*PASSING, "412", "403")


def failed_requests(given: Given, server: ObjectStore, choose: random.Random) -> Trials:
    """Each failure once, at each kind of request, and 403 from some request on."""
    parts = {"BEGIN", "PART", "PART_COPY", "COMPLETE"}
    kinds = parts if parts & given.requests.keys() else given.requests.keys()
    for kind in sorted(kinds & given.requests.keys()):
        count = given.requests[kind]
        for failure in FAILURES:
            first = choose.randint(1, count)
            passes = PASSING.get(failure, "")
            must_pass = passes == "*" or kind in passes.split()
            fault = partial(_one_request, given, server, failure, kind, first, must_pass=must_pass)
            yield f"{failure} at {kind} {first}", fault
        lasting = partial(_one_request, given, server, "403", kind, 1, times=None)
        yield f"403 at each {kind}", lasting


def _one_request(
    given: Given,
    server: ObjectStore,
    failure: Failure,
    kind: str,
    first: int,
    *,
    must_pass: bool = False,
    times: int | None = 1,
) -> str | None:
    store = server.with_new_bucket()
    fault = store.fail(failure, kind, first=first, times=times)
    errors = [*build(given, store), *build(given, store, MORE)]
    if not fault.met:
        return f"no such request: {kind} {first}"
    return problem(given, store, errors=errors, must_pass=must_pass)


def damaged_bodies(given: Given, server: ObjectStore, choose: random.Random) -> Trials:
    """Bodies flipped and cut on their way, once and always, in each kind of file."""
    failures: tuple[Failure, ...] = ("flip", "truncate")
    for name in _kinds_of_files(given):
        for failure in failures:
            for times in (1, None):
                body = partial(_one_body, given, server, failure, name, times=times)
                yield f"{failure} of {name}, {'once' if times else 'always'}", body


def _kinds_of_files(given: Given) -> list[str]:
    """Return patterns of keys, one for each name that files have, and one for manifests."""
    names = {Path(key).name for key in given.objects if "/manifests/" not in key}
    return ["*/manifests/*.json", *(f"*/{name}" for name in sorted(names))]


def _one_body(
    given: Given, server: ObjectStore, failure: Failure, name: str, *, times: int | None
) -> str | None:
    store = server.with_new_bucket()
    if errors := build(given, store):
        return errors[0]
    fault = store.fail(failure, "GET", name, times=times)
    errors = build(given, store, MORE)
    must_pass = times is not None or not fault.met
    return problem(given, store, errors=errors, must_pass=must_pass)


def kills(given: Given, server: ObjectStore, choose: random.Random) -> Trials:
    """A writer killed at some of its requests, before they are done or behind; another machine goes
    on."""
    for first in range(1, given.requests.total(), 7):
        done: Failure = choose.choice(["drop", "reset"])
        when = "behind" if done == "reset" else "before"
        yield f"killed {when} request {first}", partial(_killed, given, server, done, first)


def _killed(given: Given, server: ObjectStore, done: Failure, first: int) -> str | None:
    store = server.with_new_bucket()
    writer = _machine(given, store)
    store.fail(done, first=first, then=lambda: os.kill(writer.pid or 0, signal.SIGKILL))
    writer.start()
    writer.join(120)
    if writer.exitcode != -signal.SIGKILL:
        return f"no such request: {first}" if writer.exitcode else None
    return problem(given, store, errors=[], must_pass=True)


def _machine(given: Given, store: ObjectStore) -> multiprocessing.Process:
    """Return a process that builds all, with a cache of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokflow_tests.faults.trial"])
    process: multiprocessing.Process = context.Process(  # type: ignore[assignment]
        target=_build_all, args=(given, store.endpoint, store.bucket)
    )
    return process


def _build_all(given: Given, endpoint: str, bucket: str) -> None:
    store = ObjectStore(endpoint, bucket)
    os.environ.update(store.environment())
    with short():
        for exports in ((), (MORE,)):
            if errors := build(given, store, *exports):
                sys.exit(errors[0])


def writers(given: Given, server: ObjectStore, choose: random.Random) -> Trials:
    """Three writers at once, whose answers are lost, or who are told of others."""
    failures: tuple[Failure, ...] = ("reset", "drop", "409", "503", "slow")
    for failure in failures:
        for seed in range(2):
            yield f"three writers, {failure}", partial(_at_once, given, server, failure, seed)


def _at_once(given: Given, server: ObjectStore, failure: Failure, seed: int) -> str | None:
    store = server.with_new_bucket()
    store.fail(failure, "P*", times=None, chance=0.1, seed=seed, seconds=0.02 * (failure == "slow"))
    machines = [_machine(given, store) for _ in range(3)]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(120)
    errors = [f"exit status {each.exitcode}" for each in machines if each.exitcode]
    return problem(given, store, errors=errors, must_pass=True)


CHANGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda data: None,
    "flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "cut short": lambda data: data[:-1],
}


def damaged_objects(given: Given, server: ObjectStore, choose: random.Random) -> Trials:
    """Objects removed, flipped and cut at their URL: never used, and found by `verify`."""
    for name in _kinds_of_files(given):
        for change in CHANGES:
            yield f"{name} {change}", partial(_one_object, given, server, name, change, choose)


def _one_object(
    given: Given, server: ObjectStore, name: str, change: str, choose: random.Random
) -> str | None:
    from fnmatch import fnmatchcase

    store = server.with_new_bucket()
    if errors := build(given, store):
        return errors[0]
    keys = [key for key, data in store.contents().items() if fnmatchcase(key, name) and data]
    if not keys:
        return None  # of an export that is made later
    key = choose.choice(keys)
    before, after = store.contents()[key], CHANGES[change](store.contents()[key])
    store.remove(key) if after is None else store.put(key, after)
    if "/manifests/" not in key or after is not None:
        another_cache(given)
        try:
            found = [each for each in verify_path(f"{store.url}/store") if each.problems]
        except TokflowError as error:
            found = [error]  # type: ignore[list-item]
        if not found:
            return f"verify did not find {key}"
    build(given, store, MORE)
    found_now = {k: v for k, v in right_objects(store).items() if k != key or v != after}
    wrong = [k for k in found_now if k in given.objects and found_now[k] != given.objects[k]]
    if wrong:
        return f"made from it: {wrong[0]}"
    store.put(key, before)
    return problem(given, store, errors=[], must_pass=True)


TABLES: dict[str, Callable[[Given, ObjectStore, random.Random], Trials]] = {
    "requests that fail": failed_requests,
    "bodies damaged on their way": damaged_bodies,
    "writers killed": kills,
    "writers at once": writers,
    "objects damaged at their URL": damaged_objects,
}
