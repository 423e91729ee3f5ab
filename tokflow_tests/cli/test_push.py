from pathlib import Path

import pytest

from tokflow_tests.cli.commands import json_of, refused, run
from tokflow_tests.hub import Hub

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
    pytest.mark.usefixtures("writable"),
]

URL = "hf://datasets/team/texts"


def test_push_says_what_it_sent_and_where_it_is(store: Path, hub: Hub):
    result = run("push", store / "exports/parquet/latest", URL)

    assert result.exit_code == 0, result.output
    commit = hub.branches["team/texts"]["main"][:7]
    first, second, third = result.stdout.splitlines()
    assert first.startswith(f"commit {commit}: 4 files, ")
    assert second.startswith("3 files, ")
    assert "all there with the sha256 of the manifest (4 changes, " in second
    assert third == f"private: {hub.url}/datasets/team/texts at {commit}"
    assert "nothing was sent" in run("push", store / "exports/parquet", URL).stdout


def test_push_prints_json(store: Path, hub: Hub):
    found = json_of("push", store / "exports/bin", f"{URL}@dev/as-bin", "--public")

    assert found["url"] == f"{hub.url}/datasets/team/texts/tree/{found['commit']}/as-bin"
    assert (found["revision"], found["is_private"], found["num_files"]) == ("dev", False, 3)


def test_push_refuses_what_is_no_repository_of_the_hub(store: Path):
    message = refused("push", store / "exports/bin", "s3://bucket/exports")

    assert "expected hf://datasets/org/name[@revision][/folder]" in message
