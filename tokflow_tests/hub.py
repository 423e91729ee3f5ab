"""A hub on this machine: datasets with commits, spoken to as huggingface.co is.

    with serve_hub() as hub:
        hub.push("org/name", {"data/train-00000-of-00001.parquet": b"..."})
        os.environ["HF_ENDPOINT"] = hub.url

As there, a file that git does not keep itself (parquet, or a large one) is behind a redirect to
another host, which must not see the token; listings come in pages.
"""

import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tokflow_tests.raw.servers import running

PAGE = 3
"""Entries of a page of a listing; 1,000 on the real hub."""
LFS_SUFFIXES = (".parquet", ".arrow", ".gz", ".zst")


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
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)

    def push(self, name: str, files: Mapping[str, bytes | None], *, branch: str = "main") -> str:
        """Add files to a dataset, or remove those that are None; return the new commit."""
        commits = self.commits.setdefault(name, {})
        branches = self.branches.setdefault(name, {})
        now = {**commits.get(branches.get(branch, ""), {}), **files}
        tree = {path: content for path, content in sorted(now.items()) if content is not None}
        said = f"{len(commits)} {[(path, _git_name(content)) for path, content in tree.items()]}"
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
    handler = type("HubHandler", (_Handler,), {"hub": hub})
    with running(handler) as server, running(handler) as cdn:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        hub.cdn = f"http://127.0.0.1:{cdn.server_port}"
        yield hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        """Say nothing."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        hub, parts = self.hub, urllib.parse.urlsplit(self.path)
        path, self.query = parts.path, urllib.parse.parse_qs(parts.query)
        hub.asked.append(f"{self.command} {urllib.parse.unquote(path)}")
        authorization = self.headers.get("Authorization")
        hub.authorizations.append((path, authorization))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if hub.statuses and (status := hub.statuses.pop(0)) != 200:
            self.send(b"", status=status)
        elif match := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            content = self.content(match[1])
            self.send_content(content[::-1] if hub.is_lying else content, f'"{match[1]}"')
        elif hub.token and authorization != f"Bearer {hub.token}":
            self.refuse(401, "RepoNotFound")
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.answer_info(match[1], urllib.parse.unquote(match[2] or "main"))
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", path):
            self.answer_tree(*map(urllib.parse.unquote, match.groups("")))
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/]+)", path):
            self.answer_paths(*map(urllib.parse.unquote, match.groups()))
        elif match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.answer_file(*map(urllib.parse.unquote, match.groups()))
        else:
            self.refuse(404, "RepoNotFound")

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
            self.send_json({"id": name, "sha": commit, "siblings": names})

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

    def content(self, sha256: str) -> bytes:
        trees = (tree for commits in self.hub.commits.values() for tree in commits.values())
        contents = (content for tree in trees for content in tree.values())
        return next(c for c in contents if hashlib.sha256(c).hexdigest() == sha256)

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

    def send_json(self, value: object, **headers: str):
        self.send(json.dumps(value).encode(), **{"Content-Type": "application/json"}, **headers)

    def refuse(self, status: int, code: str):
        self.send(b"", status=status, **{"X-Error-Code": code, "X-Error-Message": code})

    def send(self, body: bytes, *, status: int = 200, **headers: str):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.hub.num_sent += len(body)


def _entry(path: str, content: bytes) -> dict[str, object]:
    entry = {"type": "file", "path": path, "oid": _git_name(content), "size": len(content)}
    if path.endswith(LFS_SUFFIXES):
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
    return entry


def _git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
