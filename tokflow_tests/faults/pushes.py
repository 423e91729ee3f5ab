"""The kinds of faults that a push to the hub is tried with.

Two builds of one export are pushed into one place, and between them somebody else adds a file and
writes into the card. Held: the hub has the second build and what somebody else wrote, nobody could
take half a build for a whole one at any commit, and no file of somebody else was ever touched.
"""

import hashlib
import multiprocessing
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import TokflowError
from tokflow.exports.reading import open_export
from tokflow.push.upload import UNFINISHED, push_export
from tokflow.store.manifest import MANIFEST_NAME
from tokflow_tests.faults.trial import Trial
from tokflow_tests.hub import TOKEN, Fault, Hub, quick
from tokflow_tests.tiny import TEXTS, build, declare

NAME = "team/texts"
URL = f"hf://datasets/{NAME}"
CARD = "README.md"
OTHERS = {"mine.csv": b"mine", "_tokflow/mine.txt": b"mine"}

KINDS = {
    "look": "GET /api/datasets/[^/]+/[^/]+/revision/.*",
    "create": "POST /api/repos/create",
    "listing": "GET .*/tree/.*",
    "read": "GET .*/resolve/.*",
    "card": "POST /api/validate-yaml",
    "preupload": "POST .*/preupload/.*",
    "batch": "POST .*/objects/batch",
    "upload": "PUT /lfs-upload/.*",
    "verify": "POST /lfs-verify",
    "commit": "POST .*/commit/.*",
    "user": "GET /api/whoami-v2",
    "pull requests": "GET .*/discussions",
    "pull request": "(POST|GET) .*/discussions(/[0-9]+)?",
}
"""Kinds of requests by pattern; of one that two match, the first."""

PASSING: dict[str, Fault] = {
    "429": 429, "500": 500, "502": 502, "503": 503, "504": 504, "broken": "break", "lost": "lost",
}  # fmt: skip
"""Faults of which one must not fail a push."""
MOVED: dict[str, Fault] = {"409": 409, "412": 412}
"""Likewise at a commit."""
FAULTS: dict[str, Fault] = {
    **PASSING, **MOVED, "400": 400, "401": 401, "403": 403, "404": 404, "413": 413, "null": b"null",
    "list": b'["a"]', "number": b"1", "brackets": b"[" * 100_000, "page": b"<html></html>",
}  # fmt: skip

PRELOADED = ("huggingface_hub.hf_api", "pyarrow.parquet", "tokflow.audit.ancestry", "yaml")
"""Modules that each push imports."""

Trials = Iterator[tuple[str, Trial]]


@dataclass
class Given:
    """Builds of one export, of other files, and the way they are pushed."""

    name: str
    builds: tuple[Path, Path]
    commit_files: int = 250
    options: Mapping[str, Any] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    """Of both pushes, undisturbed."""


def givens(folder: Path, hub: Hub) -> Iterator[Given]:
    """Yield pushes of one commit, of several, and into a pull request."""
    split = {"parts": {"train": {"files": "[ab].jsonl"}, "val": {"files": "sub/*"}}}
    shards = [{"format": "parquet", "name": f"rows{n}", "shards": n} for n in (3, 2)]
    fields = {"raw": {"files": "raw/**/*.jsonl"}, "split": split, "exports": shards}
    built = build(declare(folder, TEXTS, **fields))
    first, second = (built.export(of["name"]).output.folder for of in shards)
    for given in (
        Given("one commit", (first, second)),
        Given("several commits", (first, second), commit_files=2),
        Given("a pull request", (first, second), options={"pull_request": True}),
    ):
        with pushing(given, hub.url):
            assert push_both(given, hub) == []
            given.requests = Counter(filter(None, map(kind_of, hub.asked)))
            assert (found := problem(given, hub, [])) is None, found
        yield given


@contextmanager
def pushing(given: Given, url: str) -> Iterator[None]:
    """Let this process push to a hub, by small commits where so given, without waits."""
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        for name, value in (("HF_ENDPOINT", url), ("HF_TOKEN", TOKEN), ("no_proxy", "127.0.0.1")):
            patch.setenv(name, value)
        patch.setattr("tokflow.push.upload.COMMIT_FILES", given.commit_files)
        yield


def kind_of(asked: str) -> str | None:
    """Return the kind of a request."""
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, asked)), None)


def branch_of(hub: Hub) -> str:
    """Return the branch of the last push: that of the newest pull request, or main."""
    return f"refs/pr/{len(hub.pull_requests)}" if hub.pull_requests else "main"


def push_both(given: Given, hub: Hub) -> list[str]:
    """Push one build after the other to an empty hub; return the errors in words."""
    faults, altering = hub.faults, hub.is_altering
    hub.__init__(url=hub.url, cdn=hub.cdn, token=TOKEN, faults=faults, is_altering=altering)  # type: ignore[misc]
    errors = push(given, 0)
    write_as_somebody_else(hub)
    return errors + push(given, 1)


def push(given: Given, number: int) -> list[str]:
    """Push one build; return the error in words."""
    try:
        push_export(given.builds[number], URL, **given.options)
    except TokflowError as error:
        return [str(error).replace(TOKEN, "THE TOKEN")]
    return []


def write_as_somebody_else(hub: Hub) -> None:
    card = tree(hub, "main").get(CARD, b"")
    hub.push(NAME, {**OTHERS, CARD: card + b"\nMine.\n"})


def tree(hub: Hub, branch: str | None = None) -> dict[str, bytes]:
    """Return the files of a branch, by default that of the last push."""
    commit = hub.branches.get(NAME, {}).get(branch or branch_of(hub))
    return {} if commit is None else dict(hub.commits[NAME][commit])


def problem(
    given: Given,
    hub: Hub,
    errors: list[str],
    *,
    must_pass: bool = False,
    others: Mapping[str, bytes] = OTHERS,
) -> str | None:
    """Say what is wrong after disturbed pushes; None if they held, and a push that nothing
    disturbs then makes it whole."""
    if errors and (must_pass or "THE TOKEN" in errors[0]):
        return f"failed: {errors[0]}"
    hub.faults.clear()
    hub.is_altering = False
    if not errors and (wrong := _wrong(given, hub, others)):
        return f"ended without an error: {wrong}"
    if again := push(given, 1):
        return f"failed when nothing was in its way: {again[0]}"
    return _wrong(given, hub, others) or _half(hub)


def _wrong(given: Given, hub: Hub, others: Mapping[str, bytes]) -> str | None:
    """Say what the hub has beside or in place of the second build and what is of others."""
    found, folder = tree(hub), given.builds[1]
    names = [*open_export(folder).manifest.files, MANIFEST_NAME]
    expected = {name: (folder / name).read_bytes() for name in names} | others
    card = found.pop(CARD, b"")
    found.pop(".gitattributes", None)
    if b"\nMine.\n" not in card or card.count(b"<!-- end of tokflow") != 1:
        return f"card: {card!r}"
    different = {
        name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
    }
    return f"not as it should be: {sorted(different)}" if different else None


def _half(hub: Hub) -> str | None:
    """Say which commit of a push has a manifest without its files, and no list of what is under
    way."""
    listed = re.compile(rb'"([^"]+)": ?{\s*"num_bytes": ?\d+,\s*"sha256": ?"(\w+)"')
    for commit in hub.summaries:
        files = hub.commits[NAME][commit]
        if MANIFEST_NAME not in files or any(name.startswith(UNFINISHED) for name in files):
            continue
        for name, digest in listed.findall(files[MANIFEST_NAME]):
            content = files.get(name.decode(), b"")
            if hashlib.sha256(content).hexdigest().encode() != digest:
                return f"half a build at {commit}: {name.decode()}"
    return None


def _disturb(hub: Hub, kind: str, first: int, fault: Any, *, times: int = 1) -> None:
    """Let the requests of a kind from the `first` on meet a fault."""
    pattern = f"(?={KINDS[kind]}).*" + r"(\?.*)?"
    hub.faults += [(pattern, lambda: None)] * (first - 1) + [(pattern, fault)] * times


def failed_requests(given: Given, hub: Hub, choose: random.Random) -> Trials:
    """Each fault once at each kind of request, and those that pass for ever."""
    for kind, count in given.requests.items():
        for name, fault in FAULTS.items():
            first = choose.randint(1, count)
            must_pass = name in PASSING or (kind == "commit" and name in MOVED)
            trial = partial(_one_request, given, hub, kind, first, fault, must_pass=must_pass)
            yield f"{name} at {kind} {first}", trial
        for name in ("503", "lost", "403"):
            trial = partial(_one_request, given, hub, kind, 1, FAULTS[name], times=200)
            yield f"{name} at each {kind}", trial


def _one_request(
    given: Given,
    hub: Hub,
    kind: str,
    first: int,
    fault: Fault,
    *,
    must_pass: bool = False,
    times: int = 1,
) -> str | None:
    _disturb(hub, kind, first, fault, times=times)
    with pushing(given, hub.url):
        errors = push_both(given, hub)
        if times == 1 and hub.faults:
            return f"no such request: {kind} {first}"
        return problem(given, hub, errors, must_pass=must_pass)


def kills(given: Given, hub: Hub, choose: random.Random) -> Trials:
    """A push killed at each of its requests, before and behind what it asks for."""
    for kind, count in given.requests.items():
        for first in range(1, count + 1):
            for is_done in (False, True):
                when = "behind" if is_done else "before"
                trial = partial(_killed, given, hub, kind, first, is_done=is_done)
                yield f"killed {when} {kind} {first}", trial


def _killed(given: Given, hub: Hub, kind: str, first: int, *, is_done: bool) -> str | None:
    hub.__init__(url=hub.url, cdn=hub.cdn, token=TOKEN)  # type: ignore[misc]
    processes: list[Any] = []

    def kill() -> str:
        os.kill(processes[-1].pid, signal.SIGKILL)
        return "break"

    _disturb(hub, kind, first, (lambda: kill) if is_done else kill)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokflow_tests.faults.pushes", *PRELOADED])
    for number in (0, 1):
        processes.append(context.Process(target=_push_there, args=(given, hub.url, number)))
        processes[-1].start()
        processes[-1].join(120)
        if number == 0:
            write_as_somebody_else(hub)
    codes = [process.exitcode for process in processes]
    if hub.faults or sorted(codes)[0] != -signal.SIGKILL or not all(c in (0, -9) for c in codes):
        return f"exit statuses {codes}"
    with pushing(given, hub.url):
        return problem(given, hub, ["killed"])


def _push_there(given: Given, url: str, number: int) -> None:
    with pushing(given, url):
        if errors := push(given, number):
            sys.exit(errors[0])


def other_commits(given: Given, hub: Hub, choose: random.Random) -> Trials:
    """Commits of somebody else between the requests of a push."""
    if given.options:
        return
    names = [name for name in open_export(given.builds[1]).manifest.files if "index" not in name]
    changes: dict[str, Mapping[str, bytes | None]] = {
        "a file of somebody's own": {"more.csv": b"more"},
        "a file removed": {names[0]: None},
        "a file in the place of one": {names[-1]: b"mine"},
        "a manifest in the place of ours": {MANIFEST_NAME: b"{}"},
    }
    for kind in ("look", "listing", "read", "preupload", "batch", "upload", "verify", "commit"):
        for name, files in changes.items():
            first = choose.randint(1, given.requests[kind])
            yield f"{name} at {kind} {first}", partial(_between, given, hub, kind, first, files)


def _between(
    given: Given, hub: Hub, kind: str, first: int, files: Mapping[str, bytes | None]
) -> str | None:
    before: dict[str, bytes | None] = {}

    def write() -> None:
        before.update((name, tree(hub).get(name)) for name in files)
        hub.push(NAME, files, branch=branch_of(hub))

    _disturb(hub, kind, first, write)
    with pushing(given, hub.url):
        errors = push_both(given, hub)
        if hub.faults:
            return f"no such request: {kind} {first}"
        found = tree(hub)
        own = {name: data for name, data in files.items() if data is not None}
        for name, data in own.items():
            if found.get(name) != data:
                return f"lost what somebody else wrote to {name}"
        others = {**OTHERS, **{name: data for name, data in own.items() if name == "more.csv"}}
        if files.keys() - others.keys():
            errors = errors or ["written behind the last look"]
        if own.keys() - others.keys():
            hub.push(NAME, before, branch=branch_of(hub))  # as the error asks for
        return problem(given, hub, errors, others=others)


TABLES: dict[str, Callable[[Given, Hub, random.Random], Trials]] = {
    "pushes: requests that fail": failed_requests,
    "pushes: killed": kills,
    "pushes: commits of others between ours": other_commits,
}
