"""`latest` of an export, where links can be made and where they cannot."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.exports.reading import find_export
from tokflow.loaders import open_rows
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.store.listed_files import named_by, resolved
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, build, declare_small, write_raw, write_yaml


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without links, as exFAT is: Linux answers EPERM."""

    def refuse(target: str, path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(os, "symlink", refuse)


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    write_raw(tmp_path, TEXTS)
    return tmp_path / "store/small/exports"


@pytest.mark.usefixtures("no_links")
def test_without_links_latest_is_a_file_that_all_readers_follow(exports: Path, tmp_path: Path):
    config = ("--config", write_yaml(tmp_path, exports=["bin", "parquet"]))
    first = run("run", *config)
    latest = exports / "bin/latest"
    folder = latest.parent / latest.read_text()

    assert first.exit_code == 0, first.stderr
    assert str(folder) in first.stdout.replace("\n", "")
    assert "nothing to do" in run("run", *config).stdout
    for path in (latest, latest.parent, latest / "train.bin"):
        assert find_export(path).folder == folder
    assert len(open_rows(latest, part="train", sequence_length=8)) > 5
    for command in ("inspect", "verify"):
        assert run(command, latest).exit_code == 0
    assert run("trace", latest, "--token", "3").exit_code == 0
    verified = run("verify", exports.parent)
    assert (verified.exit_code, "latest" in verified.stdout) == (0, False)


@pytest.mark.usefixtures("no_links")
def test_without_links_latest_follows_the_config_and_what_it_names_stays(exports: Path):
    folder = exports.parents[2]
    for length in (4, 8):
        build(declare_small(folder, packing={"sequence_length": length}, exports=["parquet"]))
    first = declare_small(folder, packing={"sequence_length": 4}, exports=["parquet"])
    newest = find_export(exports / "parquet").folder

    assert newest not in find_garbage(first, keep=0)
    build(first)
    assert newest in find_garbage(first, keep=0)
    remove_all(first.store, [find_export(exports / "parquet").folder])
    assert not (exports / "parquet/latest").exists()


@pytest.mark.usefixtures("no_links")
def test_without_links_in_the_cache_latest_comes_from_the_url(
    exports: Path, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    store = f"{object_store.url}/store"
    build(declare_small(tmp_path, store=store, exports=["bin"]))
    there = f"{store}/small/exports/bin/latest"
    name = find_export(there).folder.name
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "another"))

    assert find_export(there).folder.name == name
    assert len(open_rows(there, part="train", sequence_length=8)) > 5


def test_a_file_that_names_the_newest_stays_where_links_can_be_made(exports: Path):
    made = declare_small(exports.parents[2], exports=["bin"])
    build(made)
    latest = exports / "bin/latest"
    folder = latest.resolve()
    latest.unlink()
    latest.write_text(folder.name)

    assert (named_by(latest), resolved(latest / "train.bin")) == (folder, folder / "train.bin")
    build(made)

    assert latest.read_text() == folder.name


def test_a_folder_in_its_place_is_named_and_stays(exports: Path, tmp_path: Path):
    config = write_yaml(tmp_path, exports=["bin"])
    run("run", "--config", config)
    latest = exports / "bin/latest"
    folder = latest.resolve()
    latest.unlink()
    shutil.copytree(folder, latest)

    again = run("run", "--config", config)

    assert again.exit_code == 1
    assert "bin/latest: expected a file, found Is a directory" in again.stderr
    assert (latest / "train.bin").exists()
