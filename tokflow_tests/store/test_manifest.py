import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import CorruptOutputError, ForeignOutputError
from tokflow.store.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    checksums,
    keep_manifest,
    read_manifest,
    read_run,
    sealed,
    write_manifest,
)
from tokflow.store.store import Store
from tokflow_tests.outputs import edit_manifest, make_manifest, make_recipe

SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def make_output(folder: Path) -> Manifest:
    (folder / "inner").mkdir(parents=True)
    (folder / "data").write_bytes(b"abc")
    (folder / "inner" / "more").write_bytes(b"12345")
    manifest = make_manifest(files=checksums(folder))
    write_manifest(folder, manifest, run={"seconds": 1.5})
    return manifest


SPLIT: dict[str, Any] = {
    "stage": "split",
    "config": {"seed": 0, "parts": [["train", 1.0], ["validation", 0.5]]},
    "parents": {"a": "1", "b": "2"},
}


def test_a_fingerprint_does_not_depend_on_the_order_of_keys():
    other_order = make_recipe(
        stage="split",
        config={"parts": [["train", 1.0], ["validation", 0.5]], "seed": 0},
        parents={"b": "2", "a": "1"},
    )

    assert other_order.fingerprint == make_recipe(**SPLIT).fingerprint


def test_a_fingerprint_is_the_same_in_every_process_and_release():
    assert make_recipe(parents={"raw": "0"}).fingerprint == (
        "d28d6a930f49e6e9e05423357ae93695e0319d283f2d10184e29064cccd0e475"
    )


def test_the_fingerprint_of_a_raw_file_is_that_of_its_bytes():
    recipe = make_recipe(stage="raw", config={}, parents={"content": SHA256_OF_ABC})

    assert recipe.fingerprint == SHA256_OF_ABC


@pytest.mark.parametrize(
    "changed",
    [
        {"stage": "sequences"},
        {"version": 2},
        {"config": {"seed": 1, "parts": [["train", 1.0], ["validation", 0.5]]}},
        {"config": {"seed": 0, "parts": [["validation", 0.5], ["train", 1.0]]}},
        {"config": {"seed": 0}},
        {"parents": {"a": "1", "b": "3"}},
        {"parents": {"a": "1", "c": "2"}},
        {"parents": {"a": "1"}},
    ],
    ids=str,
)
def test_each_ingredient_changes_the_fingerprint(changed: dict[str, Any]):
    assert make_recipe(**{**SPLIT, **changed}).fingerprint != make_recipe(**SPLIT).fingerprint


def test_a_value_that_is_no_json_has_no_fingerprint():
    with pytest.raises(TypeError, match="not JSON serializable"):
        _ = make_recipe(config={"path": Path("a")}).fingerprint


def test_what_is_read_is_what_was_written(tmp_path: Path):
    manifest = make_output(tmp_path / "out")

    read = read_manifest(tmp_path / "out")

    assert read == manifest
    assert read.files["data"] == FileEntry(num_bytes=3, sha256=SHA256_OF_ABC)
    assert list(read.files) == ["data", "inner/more"]


@pytest.mark.parametrize("damage", [None, "{half", "5", "[1]", "null"])
def test_a_run_that_was_not_kept_is_no_error(damage: str | None, tmp_path: Path):
    make_output(tmp_path / "out")
    (tmp_path / "out" / "_tokflow/run.json").unlink()
    if damage:
        (tmp_path / "out" / "_tokflow/run.json").write_text(damage)

    assert read_run(tmp_path / "out") == {}


def test_the_recipe_that_is_expected_does_not_excuse_another_fingerprint(tmp_path: Path):
    manifest = make_output(tmp_path)
    fields = {**manifest.fields(), "fingerprint": "0" * 64}
    (tmp_path / "_tokflow/manifest.json").write_bytes(sealed(fields))

    with pytest.raises(CorruptOutputError, match="the fingerprint of its recipe"):
        Store(tmp_path).find(
            tmp_path, manifest.recipe.stage, manifest.recipe.fingerprint, manifest.recipe
        )


def test_a_newer_format_is_foreign_and_not_damaged(tmp_path: Path):
    write_manifest(tmp_path, replace(make_manifest(), format_version=FORMAT_VERSION + 1), run={})

    with pytest.raises(ForeignOutputError) as raised:
        Store(tmp_path).is_intact(tmp_path)

    assert (raised.value.where, raised.value.found) == (f"{tmp_path}/_tokflow/manifest.json", "3")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "Expecting value"),
        (b'{"format_version": 2', "Expecting ',' delimiter"),
        (b"\xff\xfe", "can't decode byte"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b"[1]", "found None"),
        (b"{}", "found None"),
        (b'{"format_version": 0}', "found 0"),
        (b'{"format_version": 2}', "the sha256 of the others"),
        (sealed({"format_version": 2, "details": {}}), "missing required field `stage`"),
        (
            sealed({**make_manifest().fields(), "files": []}),
            "Expected `object`, got `array` - at `$.files",
        ),
        (sealed({**make_manifest().fields(), "counts": {"a": -1}}), "Expected `int` >= 0"),
    ],
    ids=lambda value: value[:24],
)
def test_a_damaged_manifest_is_corrupt(text: bytes, found: str, tmp_path: Path):
    keep_manifest(tmp_path, text)

    with pytest.raises(CorruptOutputError) as raised:
        read_manifest(tmp_path)

    assert found in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path}/_tokflow/manifest.json: expected ")


def test_a_flipped_bit_is_found_in_every_byte(tmp_path: Path):
    recipe = make_recipe(config={"fraction": 0.30000000000000004, "seed": 1e-05, "mark": "\x1f"})
    write_manifest(tmp_path, make_manifest(recipe=recipe, files={}), run={})
    path = tmp_path / "_tokflow/manifest.json"
    data = path.read_bytes()

    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (5 * position % 8)
        path.write_bytes(flipped)
        with pytest.raises((CorruptOutputError, ForeignOutputError)):
            read_manifest(tmp_path)


NAMES = ["../data", "/etc/passwd", "a//b", "a/./b", "a/..", "a/", "", "a\\b", "a\0b"]


@pytest.mark.parametrize(
    ("where", "name"),
    [*(("files", name) for name in NAMES), ("partition", "../a"), ("partition", 5),
     ("parents", "../a"), ("parent", "../a"), ("parts", "../a")],
)  # fmt: skip
def test_a_name_that_leads_out_of_the_folder_is_refused(where: str, name: object, tmp_path: Path):
    entry = {"num_bytes": 0, "sha256": SHA256_OF_ABC}
    changes: dict[str, Callable[[dict[str, Any]], None]] = {
        "files": lambda fields: fields["files"].update({name: entry}),
        "partition": lambda fields: fields.update(partition=name),
        "parents": lambda fields: fields["parents"].update({name: SHA256_OF_ABC}),
        "parent": lambda fields: fields["parents"].update(raw=name),
        "parts": lambda fields: fields["details"].update(parts=["train", name]),
    }
    make_output(tmp_path / "out")

    edit_manifest(tmp_path / "out", changes[where])

    with pytest.raises(
        CorruptOutputError, match=r"expected (names of files|fingerprints of parents|the fields)"
    ):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize("text", ["NaN", '"\\ud800"'])
def test_a_config_that_no_recipe_can_have_is_refused(text: str, tmp_path: Path):
    make_output(tmp_path / "out")
    fields = {**make_manifest().fields(), "config": {"seed": "here"}}
    data = sealed(fields).replace(b'"here"', text.encode())
    first, _, rest = data.split(b"\n", 2)
    digest = hashlib.sha256(first + b"\n" + rest).hexdigest()
    lines = [first, b' "digest": "%b",' % digest.encode(), rest]
    (tmp_path / "out/_tokflow/manifest.json").write_bytes(b"\n".join(lines))

    with pytest.raises(CorruptOutputError, match="expected the fields of a manifest, found "):
        read_manifest(tmp_path / "out")


def test_a_folder_with_the_name_of_another_fingerprint_is_refused(tmp_path: Path):
    make_output(tmp_path / ("0" * 16))
    make_output(tmp_path / "a copy")

    assert Store(tmp_path).is_intact(tmp_path / "a copy")
    with pytest.raises(
        CorruptOutputError, match="expected to be in a folder called a32c539f96663b6a"
    ):
        read_manifest(tmp_path / ("0" * 16))


def test_the_digest_can_be_checked_without_tokflow(tmp_path: Path):
    make_output(tmp_path / "out")

    first, line, *rest = (tmp_path / "out/_tokflow/manifest.json").read_bytes().split(b"\n")

    digest = hashlib.sha256(b"\n".join([first, *rest])).hexdigest()
    assert line.decode() == f' "digest": "{digest}",'
