"""Writing to the hub of `tokflow_tests.hub`: repositories, uploads, commits, pull requests.

A client that adds files asks which of them are large (`preupload`), uploads the content of these
(git's LFS, to another host; or chunks, as hf_xet does), and names them in a commit by their sha256;
the others are in the commit itself.

hf_xet cuts large files into chunks, sends them packed (a xorb: chunks by number), and then a shard:
for each file the chunks that it is made of, and its sha256. All numbers are little-endian.

    chunk   version u8, stored length u24, scheme u8 (0 none, 1 LZ4, 2 LZ4 of grouped bytes),
            length u24, content
    shard   a header, then for each file: 48 bytes of (hash, flags u32, number of terms u32), of
            each term (xorb, flags, length u32, first chunk u32, end u32), of each term a hash if
            flags has bit 31, and of the file its sha256 if it has bit 30; a hash of ones ends them

Source: what hf_xet 1.8.0 sends; huggingface/xet-core at v1.1, mdb_shard/src/file_structs.rs and
cas_object/src/cas_chunk_format.rs.
"""

import base64
import hashlib
import json
import re
import struct
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from tokflow_tests.hub import Hub, _Handler

LARGE_SUFFIXES = (".parquet", ".arrow", ".bin", ".gz", ".zst")
LARGE_BYTES = 10_000_000
USER = "somebody"
NAME = "([^/]+/[^/]+)"


def is_large(path: str, num_bytes: int) -> bool:
    """Return whether git does not keep a file itself: never an empty one."""
    return num_bytes > 0 and (path.endswith(LARGE_SUFFIXES) or num_bytes > LARGE_BYTES)


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def answer_writing(handler: "_Handler", path: str) -> bool:
    """Answer a request that writes, or is a step to it; return False for any other."""
    for pattern, answer in ANSWERS.items():
        if match := re.fullmatch(pattern, f"{handler.command} {path}"):
            groups = [urllib.parse.unquote(group) for group in match.groups()]
            token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
            if answer not in FREE and (not token or token in handler.hub.readers):
                handler.refuse(403 if token else 401, "Forbidden")
            else:
                answer(handler, *groups)
            return True
    return False


def _whoami(handler: "_Handler"):
    handler.send_json({"type": "user", "name": USER})


def _create(handler: "_Handler"):
    asked = json.loads(handler.body)
    name, hub = f"{asked['organization']}/{asked['name']}", handler.hub
    if name in hub.commits:
        handler.send_json({"error": "exists"}, status=409)
        return
    hub.push(name, {".gitattributes": b"*.parquet filter=lfs\n"})
    hub.private |= {name} if asked.get("visibility") == "private" or asked.get("private") else set()
    handler.send_json({"url": f"{hub.url}/datasets/{name}", "name": name})


def _branch(handler: "_Handler", name: str, branch: str):
    branches = handler.hub.branches[name]
    branches.setdefault(branch, branches["main"])
    handler.send_json({})


def _validate(handler: "_Handler"):
    handler.send_json({"errors": [], "warnings": []})


def _preupload(handler: "_Handler", name: str, revision: str):
    if (commit := handler.commit(name, revision)) is None:
        return
    tree = handler.hub.commits[name][commit]
    files = []
    for file in json.loads(handler.body)["files"]:
        path, is_lfs = file["path"], is_large(file["path"], file["size"])
        there = tree.get(path)
        digest = hashlib.sha256(there or b"").hexdigest() if is_lfs else git_name(there or b"")
        oid = None if there is None else digest
        mode = "lfs" if is_lfs else "regular"
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    handler.send_json({"files": files})


def _batch(handler: "_Handler", name: str):
    hub, objects = handler.hub, []
    for asked in json.loads(handler.body)["objects"]:
        oid = asked["oid"]
        found: dict[str, Any] = {"oid": oid, "size": asked["size"]}
        if oid not in hub.large:
            upload = {"href": f"{hub.cdn}/lfs-upload/{oid}?signature=hidden", "header": {}}
            found["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/lfs-verify"}}
        objects.append(found)
    handler.send_json({"transfer": "basic", "objects": objects})


def _upload(handler: "_Handler", oid: str):
    assert handler.headers.get("Authorization") is None  # the other host
    if hashlib.sha256(handler.body).hexdigest() != oid:
        handler.send(b"", status=400)
        return
    handler.hub.large[oid] = handler.body
    handler.hub.received.append(oid)
    handler.send_json({})


def _verify(handler: "_Handler"):
    asked = json.loads(handler.body)
    is_whole = len(handler.hub.large.get(asked["oid"], b"")) == asked["size"]
    handler.send_json({}, status=200 if is_whole else 404)


def _commit(handler: "_Handler", name: str, revision: str):
    hub, (header, *operations) = handler.hub, map(json.loads, handler.body.splitlines())
    if (commit := handler.commit(name, revision)) is None:
        return
    if revision not in hub.branches[name] or not hub.commits[name]:
        handler.send_json({"error": "not a branch"}, status=400)
        return
    if header["value"].get("parentCommit", commit) != commit:
        handler.send_json({"error": "the branch has moved"}, status=412)
        return
    files: dict[str, bytes | None] = {}
    for operation in operations:
        value = operation["value"]
        if operation["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            files[value["path"]] = hub.large[value["oid"]]
        else:
            assert operation["key"] == "deletedFile", operation
            files[value["path"]] = None
    if hub.is_altering:
        files = {path: content and content[:-1] + b"?" for path, content in files.items()}
    made = hub.push(name, files, branch=revision)
    hub.summaries[made] = header["value"]["summary"]
    url = f"{hub.url}/datasets/{name}/commit/{made}"
    handler.send_json({"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""})


def _open_pull_request(handler: "_Handler", name: str):
    hub, asked = handler.hub, json.loads(handler.body)
    number = len(hub.pull_requests) + 1
    hub.pull_requests.append({"title": asked["title"], "status": "draft"})
    hub.branches[name][f"refs/pr/{number}"] = hub.branches[name]["main"]
    handler.send_json(_discussion(handler, name, number))


def _pull_requests(handler: "_Handler", name: str):
    found = [_discussion(handler, name, 1 + at) for at in range(len(handler.hub.pull_requests))]
    handler.send_json({"discussions": found, "count": len(found), "start": 0})


def _pull_request(handler: "_Handler", name: str, number: str):
    handler.send_json(_discussion(handler, name, int(number)))


def _discussion(handler: "_Handler", name: str, number: int) -> dict[str, Any]:
    return {
        **handler.hub.pull_requests[number - 1],
        "num": number,
        "repo": {"name": name, "type": "dataset"},
        "author": {"name": USER},
        "isPullRequest": True,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "events": [],
        "filesWithConflicts": False,
        "changes": {"base": "refs/heads/main"},
    }


XET_TOKEN = "xet-token"
ROW = 48
END = b"\xff" * 32
HAS_TERM_HASHES, HAS_SHA256 = 1 << 31, 1 << 30


def _grant(handler: "_Handler", *_: str):
    """Answer who asks for the right to send chunks, and where to."""
    until = int(time.time()) + 3_600
    handler.send_json({"casUrl": handler.hub.cdn, "exp": until, "accessToken": XET_TOKEN})


def answer_xet(handler: "_Handler", path: str) -> None:
    """Answer a request to the other host."""
    hub = handler.hub
    assert handler.headers["Authorization"] == f"Bearer {XET_TOKEN}"
    if match := re.fullmatch(r"/v1/xorbs/default/([0-9a-f]{64})", path):
        hub.xorbs[match[1]] = list(_chunks(handler.body))
        handler.send_json({"was_inserted": True})
    elif path == "/v1/shards":
        for sha256, content in _files(hub, handler.body):
            assert hashlib.sha256(content).hexdigest() == sha256
            hub.large[sha256] = content
            hub.received.append(sha256)
        handler.send_json({"result": 1})
    else:
        handler.send(b"", status=404)


def _chunks(xorb: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(xorb) and xorb[at] == 0:
        stored, scheme, length = _u24(xorb, at + 1), xorb[at + 4], _u24(xorb, at + 5)
        content = xorb[at + 8 : at + 8 + stored]
        if scheme:
            content = pa.decompress(content, length, codec="lz4", asbytes=True)
        yield _ungrouped(content) if scheme == 2 else content
        at += 8 + stored


def _ungrouped(content: bytes) -> bytes:
    """Return bytes of which first all with a number divisible by 4 came, then those after them."""
    found = bytearray(len(content))
    at = 0
    for first in range(4):
        num = len(found[first::4])
        found[first::4] = content[at : at + num]
        at += num
    return bytes(found)


def _files(hub: "Hub", shard: bytes) -> Iterator[tuple[str, bytes]]:
    at = ROW
    while shard[at : at + 32] != END:
        flags, num_terms = struct.unpack_from("<II", shard, at + 32)
        at += ROW
        content = bytearray()
        for _ in range(num_terms):
            _, length, first, end = struct.unpack_from("<IIII", shard, at + 32)
            found = b"".join(hub.xorbs[_hash(shard, at)][first:end])
            assert len(found) == length
            content += found
            at += ROW
        at += ROW * num_terms * bool(flags & HAS_TERM_HASHES)
        assert flags & HAS_SHA256
        yield _hash(shard, at), bytes(content)
        at += ROW


def _hash(data: bytes, at: int) -> str:
    """Return a hash as text: its bytes lie in groups of eight, each the wrong way round."""
    return struct.pack(">4Q", *struct.unpack_from("<4Q", data, at)).hex()


def _u24(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


FREE = {_upload, _validate}
"""For these the URL is enough, or nothing is needed."""

ANSWERS: dict[str, Callable[..., None]] = {
    "GET /api/whoami-v2": _whoami,
    "POST /api/repos/create": _create,
    f"POST /api/datasets/{NAME}/branch/([^/]+)": _branch,
    "POST /api/validate-yaml": _validate,
    f"POST /api/datasets/{NAME}/preupload/([^/]+)": _preupload,
    rf"POST /datasets/{NAME}\.git/info/lfs/objects/batch": _batch,
    f"GET /api/datasets/{NAME}/xet-write-token/([^/]+)": _grant,
    "PUT /lfs-upload/([0-9a-f]{64})": _upload,
    "POST /lfs-verify": _verify,
    f"POST /api/datasets/{NAME}/commit/([^/]+)": _commit,
    f"POST /api/datasets/{NAME}/discussions": _open_pull_request,
    f"GET /api/datasets/{NAME}/discussions": _pull_requests,
    f"GET /api/datasets/{NAME}/discussions/([0-9]+)": _pull_request,
}
