"""Commands on a store at a URL, each on a machine that has nothing of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tokflow.store.remote.places import objects_at
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import SMALL, TEXTS, load_dataset, write_raw, write_yaml


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
