"""docs/object_stores.md does what it says, on a bucket of the test server."""

import json
import re
from pathlib import Path

import pytest

from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.test_docs import blocks, text_of

PAGE = text_of("object_stores.md")

PERMISSIONS = {
    "LIST": "s3:ListBucket",
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "COPY": "s3:PutObject",
    "BEGIN": "s3:PutObject",
    "PART": "s3:PutObject",
    "PART_COPY": "s3:PutObject",
    "COMPLETE": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
    "ABORT": "s3:AbortMultipartUpload",
    "UPLOADS": "s3:ListBucketMultipartUploads",
}
"""By the kind of request; there is no other, such as of the bucket itself."""


def test_the_commands_and_the_code_of_the_page_work(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    [yaml], [commands], [code] = (blocks(PAGE, language) for language in ("yaml", "sh", "python"))
    monkeypatch.chdir(tmp_path)
    object_store.put("raw/a.jsonl", b'{"text": "Some text of a page."}\n' * 40)
    Path("web.yaml").write_text(yaml.replace("s3://bucket", object_store.url))

    with object_store.counted() as count:
        for line in commands.replace("s3://bucket", object_store.url).splitlines():
            result = run(*line.split()[1:])
            assert result.exit_code == 0, result.output
            assert str(tmp_path / "cache") not in result.output
        found: dict = {}
        exec(code.replace("s3://bucket", object_store.url), found)

    assert found["batch"]["input_ids"].shape == (8, 16)
    assert count["UPLOADS"] > 0
    assert {*count} <= {*PERMISSIONS}


def test_the_policy_of_the_page_allows_what_servers_see_and_no_more():
    policy, rule = map(json.loads, blocks(PAGE, "json"))
    allowed = [action for part in policy["Statement"] for action in part["Action"]]

    assert sorted(allowed) == sorted({*PERMISSIONS.values()})
    assert sorted(re.findall(r"^\| `(s3:\w+)`", PAGE, re.M)) == sorted(allowed)
    assert rule["Rules"][0]["Status"] == "Enabled"
