"""Commands on a store at a URL, each on a machine that has nothing of it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokflow.store.remote import objects_at
from tokflow_tests.cli.commands import run
from tokflow_tests.hub import Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import digests_of
from tokflow_tests.tiny import (
    SMALL,
    TEXTS,
    build,
    declare_small,
    load_dataset,
    write_raw,
    write_yaml,
)


@pytest.fixture(scope="module")
def url(object_server: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with a small dataset, built on another machine."""
    folder = tmp_path_factory.mktemp("builder")
    write_raw(folder, TEXTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKFLOW_CACHE", str(folder / "cache"))
        for name, value in object_server.environment().items():
            patch.setenv(name, value)
        store = f"{object_server.with_new_bucket().url}/data/store"
        result = run("run", "--config", write_yaml(folder), "--store", store)
        assert result.exit_code == 0, result.output
        assert f"{store}/small/exports/bin/latest" in result.stdout
        assert str(folder / "cache") not in result.output
        yield store


@pytest.fixture
def machine(
    url: str, object_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of another machine, which has the raw files and no cache."""
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "cache"))
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    write_raw(tmp_path, TEXTS)
    write_yaml(tmp_path, store=url)
    return tmp_path


COMMANDS = {
    "run --config {yaml}": "small: nothing to do: 13 outputs of 3 files are up to date",
    "inspect {url}/small/exports/parquet": "folder       {url}/small/exports/parquet/",
    "trace {url}/small/exports/bin --token 4": "a.jsonl:1  characters 0 to 1",
    "verify {url}/small/exports --json": '"folder": "{url}/small/exports/bin/',
    "verify --config {yaml}": "13 outputs: all well",
    "gc --config {yaml} --keep 0": "small: nothing to remove",
}


@pytest.mark.parametrize(("command", "expected"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_finds_what_another_machine_built_and_shows_urls(
    command: str, expected: str, url: str, machine: Path
):
    words = command.format(url=url, yaml=machine / "dataset.yaml").split()

    result = run(*words)

    assert result.exit_code == 0, result.output
    assert expected.format(url=url) in result.stdout
    assert str(machine / "cache") not in result.output


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_an_export_at_a_url_is_pushed_to_the_hub(url: str, machine: Path, writable: Hub):
    result = run("push", f"{url}/small/exports/parquet/latest", "hf://datasets/team/texts")

    assert result.exit_code == 0, result.output
    tree = writable.commits["team/texts"][writable.branches["team/texts"]["main"]]
    assert json.loads(tree["_tokflow/manifest.json"])["files"].keys() < tree.keys()
    assert len(writable.summaries) == 1
    assert str(machine / "cache") not in result.output


def test_a_mixture_is_read_with_the_manifests_of_its_sources(url: str, machine: Path):
    sources = {name: {"epochs": 1, "config": f"{name}.yaml"} for name in ("one", "two")}
    for name in sources:
        fields = {**SMALL, "name": name, "store": url, "exports": []}
        (machine / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    fields = {"name": "mix", "store": url, "mixture": {"sources": sources}, "exports": ["bin"]}
    (machine / "mix.yaml").write_text(yaml.safe_dump(fields))
    built = run("run", "--config", machine / "mix.yaml")
    assert built.exit_code == 0, built.output
    shutil.rmtree(machine / "cache")

    result = run("trace", f"{url}/mix/exports/bin", "--token", 0)

    assert "  characters 0 to 1" in result.stdout, result.output
    shutil.rmtree(machine / "cache")
    assert run("verify", f"{url}/mix").stdout.endswith("outputs: all well\n")


def test_a_report_is_at_the_url_and_belongs_to_no_output(machine: Path, url: str):
    written = run("report", "--config", machine / "dataset.yaml")

    page = objects_at(url).read("small/report/report.html")
    assert written.exit_code == 0, written.output
    assert written.stdout.startswith(f"report: {url}/small/report/report.html, ")
    assert page.startswith(b"<!doctype html>")
    dataset = load_dataset(machine / "dataset.yaml")
    folder = dataset.folder
    dataset.store.refresh(folder)
    assert dataset.store.unfinished(folder, seconds=0) == {}
    assert (folder / "report" / "report.html").is_file()


RAW = {f"{number:02}.jsonl": [f"text {number}", "x" * number] for number in range(10)}


def put_raw_files(there: ObjectStore, folder: Path) -> None:
    """Put the same files into the bucket and on this disk."""
    (folder / "raw").mkdir()
    for key, texts in RAW.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        (folder / "raw" / key).write_bytes(lines)
        there.put(f"raw/{key}", lines)


def start(machine: str, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `tokflow run` on another machine: in a process with a cache of its own."""
    command = ["run", "--config", str(folder / "dataset.yaml"), "--json", "--jobs", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "tokflow", *command, *arguments],
        env={**os.environ, "TOKFLOW_CACHE": str(folder / machine)},
        stdout=subprocess.PIPE,
        text=True,
    )


def printed_by(process: "subprocess.Popen[str]") -> dict[str, Any]:
    with process:
        [dataset] = json.loads(process.communicate()[0])["datasets"]
    return dataset


@pytest.mark.slow
def test_three_machines_build_each_output_once_and_a_whole_run_makes_the_rest(
    object_store: ObjectStore, tmp_path: Path
):
    put_raw_files(object_store, tmp_path)
    raw = {"files": f"{object_store.url}/raw/*.jsonl"}
    how = {
        "near_duplicates": {"threshold": 0.5},
        "select": "num_tokens > 2 and not near_duplicate",
        "strata": {"long": "num_tokens > 9", "rest": True},
    }
    there = declare_small(tmp_path, raw=raw, store=f"{object_store.url}/store", **how)

    shards = [start(f"machine {nth}", tmp_path, "--shard", f"{nth}/3") for nth in (1, 2, 3)]
    of_shards = [printed_by(shard) for shard in shards]
    whole = printed_by(start("machine 4", tmp_path))

    puts = Counter(each.key for each in object_store.requests if each.kind == "PUT")
    twice = {key for key, num in puts.items() if num > 1 and key.startswith("store/")}
    new = [of["stage"] for of in whole["outputs"] if of["is_new"]]
    assert [of["num_files"] for of in of_shards] == [4, 3, 3]
    stages = {key.removeprefix("store/small/").removeprefix("manifests/") for key in twice}
    assert {key.partition("/")[0] for key in stages} <= {"tokenizer"}
    of_dataset = {"near_duplicates": 1, "export": 3}
    after_pairs = dict.fromkeys(("selection", "split", "sequences"), len(RAW))
    assert Counter(new) == of_dataset | after_pairs
    raw = {"files": "raw/*.jsonl"}
    here = declare_small(tmp_path, raw=raw, store="here", **how)
    build(here)
    assert digests_of(there) == digests_of(here)
