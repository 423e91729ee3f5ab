"""Writing to the hub of `tokflow_tests.hub`: repositories, uploads, commits, pull requests.

A client that adds files asks which of them are large (`preupload`), uploads the content of these
(git's LFS, to another host; or `hub_xet`), and names them in a commit by
their sha256; the others are in the commit itself.
"""

import base64
import hashlib
import json
import re
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokflow_tests.hub_xet import grant

if TYPE_CHECKING:
    from tokflow_tests.hub import _Handler

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


FREE = {_upload, _validate}
"""For these the URL is enough, or nothing is needed."""

ANSWERS: dict[str, Callable[..., None]] = {
    "GET /api/whoami-v2": _whoami,
    "POST /api/repos/create": _create,
    f"POST /api/datasets/{NAME}/branch/([^/]+)": _branch,
    "POST /api/validate-yaml": _validate,
    f"POST /api/datasets/{NAME}/preupload/([^/]+)": _preupload,
    rf"POST /datasets/{NAME}\.git/info/lfs/objects/batch": _batch,
    f"GET /api/datasets/{NAME}/xet-write-token/([^/]+)": lambda handler, *_: grant(handler),
    "PUT /lfs-upload/([0-9a-f]{64})": _upload,
    "POST /lfs-verify": _verify,
    f"POST /api/datasets/{NAME}/commit/([^/]+)": _commit,
    f"POST /api/datasets/{NAME}/discussions": _open_pull_request,
    f"GET /api/datasets/{NAME}/discussions": _pull_requests,
    f"GET /api/datasets/{NAME}/discussions/([0-9]+)": _pull_request,
}
