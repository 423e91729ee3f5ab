"""A hub on this machine: datasets, and models, with commits, spoken to as huggingface.co is.

    with serve_hub() as hub:
        hub.push("org/name", {"data/train-00000-of-00001.parquet": b"..."})
        os.environ["HF_ENDPOINT"] = hub.url

As there, a file that git does not keep itself (parquet, or a large one) is behind a redirect to
another host, which must not see the token; listings come in pages. What clients write is in
`hub_writing`.
"""

import hashlib
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils import disable_progress_bars

from tokflow_tests.hub_writing import answer_writing, answer_xet, git_name, is_large
from tokflow_tests.raw.servers import QuietHandler, running

_API = "/api/(?:datasets|models)"

PAGE = 3
"""Entries of a page of a listing; 1,000 on the real hub."""

TOKEN = "hf_secretsecret"

Fault = int | str | bytes | Callable[[], object]
"""What a request gets in place of its answer: a status; JSON as bytes; `break`, before anything is
done; `lost`, when it is done; or something is called first, and gives one of these, None, or what
is called when it is done and lost."""


@dataclass
class Hub:
    """Datasets by name, each with its commits and branches."""

    url: str = ""
    cdn: str = ""
    """The other host to which files are redirected."""
    token: str | None = None
    """What who asks must have, where it is set."""
    gated: set[str] = field(default_factory=set)
    """Datasets of which anyone may read the card alone."""
    statuses: list[int] = field(default_factory=list)
    """What to answer instead to the next requests."""
    asked: list[str] = field(default_factory=list)
    """`GET /path` of each request."""
    is_lying: bool = False
    """It gives other bytes of files than their sha256 promises."""
    num_sent: int = 0
    """Bytes of all answers."""
    authorizations: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and header of each request."""
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    """A pattern of `PUT /path`, and what the first request that it matches gets. Each once."""
    private: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    """Tokens that may read and not write."""
    large: dict[str, bytes] = field(default_factory=dict)
    """Content by sha256, of what git does not keep itself, in a commit or not."""
    received: list[str] = field(default_factory=list)
    """The sha256 of each such content that came, whole, in order."""
    xorbs: dict[str, list[bytes]] = field(default_factory=dict)
    """Chunks that hf_xet sent, by the hash of what they came in."""
    is_altering: bool = False
    """It keeps other bytes than those of a commit."""
    summaries: dict[str, str] = field(default_factory=dict)
    """First lines of the commits that clients made, by commit."""
    pull_requests: list[dict[str, str]] = field(default_factory=list)
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)

    def push(self, name: str, files: Mapping[str, bytes | None], *, branch: str = "main") -> str:
        """Add files to a dataset, or remove those that are None; return the new commit."""
        commits = self.commits.setdefault(name, {})
        branches = self.branches.setdefault(name, {})
        now = {**commits.get(branches.get(branch, ""), {}), **files}
        tree = {path: content for path, content in sorted(now.items()) if content is not None}
        self.large |= {_sha256(content): content for content in tree.values()}
        said = f"{len(commits)} {[(path, git_name(content)) for path, content in tree.items()]}"
        commit = hashlib.sha1(said.encode()).hexdigest()
        commits[commit], branches[branch] = tree, commit
        return commit

    def downloads(self) -> list[str]:
        """Return the paths of the files that were asked for, README.md aside, each once."""
        found = [
            re.fullmatch(r"GET /datasets/[^/]+/[^/]+/resolve/[^/]+/(.+)", a) for a in self.asked
        ]
        return sorted({match[1] for match in found if match and match[1] != "README.md"})


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Yield a hub without a dataset, which answers until the block ends."""
    hub = Hub()
    methods = (f"do_{method}" for method in ("HEAD", "GET", "POST", "PUT"))
    answers = dict.fromkeys(methods, _Handler.answer)
    handler = type("HubHandler", (_Handler,), {"hub": hub, **answers})
    with running(handler) as server, running(handler) as cdn:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        hub.cdn = f"http://127.0.0.1:{cdn.server_port}"
        yield hub


def quick(patch: pytest.MonkeyPatch) -> None:
    """Let this process send large files as LFS, and try again at once and without bars."""
    disable_progress_bars()
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time, monotonic=time.monotonic)
    patch.setattr("huggingface_hub.utils._http.time", clock)
    patch.setattr("tokflow.raw.remote_version.time", clock)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it costs 40 ms a request
    hub: Hub

    def answer(self):
        hub, parts = self.hub, urllib.parse.urlsplit(self.path)
        path, self.query = parts.path, urllib.parse.parse_qs(parts.query)
        hub.asked.append(f"{self.command} {urllib.parse.unquote(path)}")
        authorization = self.headers.get("Authorization")
        hub.authorizations.append((path, authorization))
        self.body = self.read_body()
        self.fault = self.next_fault()
        if hub.statuses and (status := hub.statuses.pop(0)) != 200:
            self.send(b"", status=status)
        elif isinstance(self.fault, int):
            self.send(b"", status=self.fault)
        elif isinstance(self.fault, bytes):
            self.send(self.fault, **{"Content-Type": "application/json"})
        elif self.fault == "break":
            self.close_connection = True
        elif match := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            content = hub.large[match[1]]
            self.send_content(content[::-1] if hub.is_lying else content, f'"{match[1]}"')
        elif path.startswith("/lfs-upload/"):
            answer_writing(self, path)
        elif re.match("/v[12]/", path):
            answer_xet(self, path)
        elif hub.token and not self.is_known(authorization):
            self.refuse(401, "RepoNotFound")
        elif match := re.fullmatch(rf"{_API}/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.answer_info(match[1], urllib.parse.unquote(match[2] or "main"))
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", path):
            self.answer_tree(*map(urllib.parse.unquote, match.groups("")))
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/]+)", path):
            self.answer_paths(*map(urllib.parse.unquote, match.groups()))
        elif match := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.answer_file(*map(urllib.parse.unquote, match.groups()))
        elif not answer_writing(self, path):
            self.refuse(404, "RepoNotFound")

    def is_known(self, authorization: str | None) -> bool:
        return authorization in {f"Bearer {token}" for token in (self.hub.token, *self.hub.readers)}

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = bytearray()
        while num_bytes := int(self.rfile.readline(), 16):
            body += self.rfile.read(num_bytes)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def next_fault(self) -> Any:
        faults = self.hub.faults
        for fault in faults:
            if re.fullmatch(fault[0], f"{self.command} {urllib.parse.unquote(self.path)}"):
                faults.remove(fault)
                return fault[1]() if callable(fault[1]) else fault[1]
        return None

    def commit(self, name: str, revision: str) -> str | None:
        """Return the commit of a revision; None after a refusal."""
        hub = self.hub
        commit = hub.branches.get(name, {}).get(revision, revision)
        if name not in hub.commits:
            self.refuse(401, "RepoNotFound")  # as of a private one
        elif commit not in hub.commits[name]:
            self.refuse(404, "RevisionNotFound")
        else:
            return commit
        return None

    def answer_info(self, name: str, revision: str):
        if (commit := self.commit(name, revision)) is not None:
            names = [{"rfilename": path} for path in self.hub.commits[name][commit]]
            is_private = name in self.hub.private
            self.send_json({"id": name, "sha": commit, "siblings": names, "private": is_private})

    def answer_tree(self, name: str, revision: str, folder: str):
        if (commit := self.commit(name, revision)) is None:
            return
        prefix = f"{folder}/" if folder else ""
        entries = {}
        for path, content in self.hub.commits[name][commit].items():
            if not path.startswith(prefix):
                continue
            above = path[len(prefix) :].split("/")[:-1]
            for depth in range(1, len(above) + 1):
                inner = prefix + "/".join(above[:depth])
                entries[inner] = {"type": "directory", "path": inner, "oid": "0" * 40, "size": 0}
            entries[path] = _entry(path, content)
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            entries = {p: e for p, e in entries.items() if "/" not in p[len(prefix) :]}
        listed = [entries[path] for path in sorted(entries)]
        start = int(self.query.get("cursor", ["0"])[0])
        headers = {}
        if start + PAGE < len(listed):
            query = {key: value[0] for key, value in self.query.items()} | {"cursor": start + PAGE}
            url = f"{self.hub.url}{urllib.parse.urlsplit(self.path).path}"
            headers["Link"] = f'<{url}?{urllib.parse.urlencode(query)}>; rel="next"'
        self.send_json(listed[start : start + PAGE], **headers)

    def answer_paths(self, name: str, revision: str):
        if (commit := self.commit(name, revision)) is None:
            return
        tree = self.hub.commits[name][commit]
        form = urllib.parse.parse_qs(self.body.decode())
        is_json = self.body[:1] == b"{"
        paths = json.loads(self.body)["paths"] if is_json else form.get("paths", [])
        self.send_json([_entry(path, tree[path]) for path in paths if path in tree])

    def answer_file(self, name: str, revision: str, path: str):
        if (commit := self.commit(name, revision)) is None:
            return
        headers = {"X-Repo-Commit": commit}
        content = self.hub.commits[name][commit].get(path)
        if content is None:
            self.refuse(404, "EntryNotFound")
        elif name in self.hub.gated and path != "README.md":
            self.refuse(403, "GatedRepo")
        elif "lfs" in (entry := _entry(path, content)):
            sha256 = entry["lfs"]["oid"]
            headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
            self.send(b"", status=302, Location=f"{self.hub.cdn}/lfs/{sha256}", **headers)
        else:
            self.send_content(content, f'"{entry["oid"]}"', **headers)

    def send_content(self, content: bytes, etag: str, **headers: str):
        headers |= {"ETag": etag, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.send(content, **headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(int(last) + 1 if first and last else len(content), len(content))
        if start >= stop:
            self.send(b"", status=416, **{"Content-Range": f"bytes */{len(content)}"})
            return
        told = f"bytes {start}-{stop - 1}/{len(content)}"
        self.send(content[start:stop], status=206, **{"Content-Range": told}, **headers)

    def send_json(self, value: object, *, status: int = 200, **headers: str):
        headers |= {"Content-Type": "application/json"}
        self.send(json.dumps(value).encode(), status=status, **headers)

    def refuse(self, status: int, code: str):
        self.send(b"", status=status, **{"X-Error-Code": code, "X-Error-Message": code})

    def send(self, body: bytes, *, status: int = 200, **headers: str):
        if self.fault == "lost" or callable(self.fault):
            self.close_connection = True
            if callable(self.fault):
                self.fault()
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.hub.num_sent += len(body)


def _entry(path: str, content: bytes) -> dict[str, object]:
    entry = {"type": "file", "path": path, "oid": git_name(content), "size": len(content)}
    if is_large(path, len(content)):
        oid = _sha256(content)
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
    return entry


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
