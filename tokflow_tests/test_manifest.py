import json
from dataclasses import replace
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    broken_files,
    checksums,
    fingerprint,
    read_manifest,
    read_run,
    write_manifest,
)

SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def make_manifest(**fields) -> Manifest:
    defaults = {
        "stage": "tokens",
        "dataset": "tiny",
        "partition": "a.jsonl",
        "version": 1,
        "fingerprint": "f" * 64,
        "parents": {"raw": "0" * 64},
        "config": {"eos": "last"},
        "counts": {"num_tokens": 3},
    }
    return Manifest(**{**defaults, **fields})


def make_output(folder: Path) -> Manifest:
    (folder / "inner").mkdir(parents=True)
    (folder / "data").write_bytes(b"abc")
    (folder / "inner" / "more").write_bytes(b"12345")
    manifest = make_manifest(files=checksums(folder))
    write_manifest(folder, manifest, run={"seconds": 1.5})
    return manifest


def make_fingerprint(**changed) -> str:
    ingredients = {
        "stage": "split",
        "version": 1,
        "config": {"seed": 0, "parts": [["train", 1.0], ["validation", 0.5]]},
        "parents": {"a": "1", "b": "2"},
    }
    ingredients |= changed
    return fingerprint(ingredients.pop("stage"), **ingredients)


def test_a_fingerprint_does_not_depend_on_the_order_of_keys():
    other_order = make_fingerprint(
        config={"parts": [["train", 1.0], ["validation", 0.5]], "seed": 0},
        parents={"b": "2", "a": "1"},
    )

    assert other_order == make_fingerprint()


def test_a_fingerprint_is_the_same_in_every_process_and_release():
    assert fingerprint("tokens", version=1, config={"eos": "last"}, parents={"raw": "0"}) == (
        "d28d6a930f49e6e9e05423357ae93695e0319d283f2d10184e29064cccd0e475"
    )


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
def test_each_ingredient_changes_the_fingerprint(changed: dict):
    assert make_fingerprint(**changed) != make_fingerprint()


def test_a_value_that_is_no_json_has_no_fingerprint():
    with pytest.raises(TypeError, match="not JSON serializable"):
        make_fingerprint(config={"path": Path("a")})


def test_what_is_read_is_what_was_written(tmp_path: Path):
    manifest = make_output(tmp_path / "out")

    read = read_manifest(tmp_path / "out")

    assert read == manifest
    assert read.files["data"] == FileEntry(num_bytes=3, sha256=SHA256_OF_ABC)
    assert list(read.files) == ["data", "inner/more"]


def test_the_run_is_kept_beside_the_manifest_and_not_in_it(tmp_path: Path):
    make_output(tmp_path / "out")

    text = (tmp_path / "out" / "manifest.json").read_text()

    assert read_run(tmp_path / "out") == {"seconds": 1.5}
    assert "seconds" not in text


@pytest.mark.parametrize("damage", [None, "{half"])
def test_a_run_that_was_not_kept_is_no_error(damage: str | None, tmp_path: Path):
    make_output(tmp_path / "out")
    (tmp_path / "out" / "run.json").unlink()
    if damage:
        (tmp_path / "out" / "run.json").write_text(damage)

    assert read_run(tmp_path / "out") == {}


def test_files_as_they_were_written_are_not_broken(tmp_path: Path):
    manifest = make_output(tmp_path / "out")

    assert broken_files(tmp_path / "out", manifest) == []


def test_a_flipped_bit_is_found(tmp_path: Path):
    manifest = make_output(tmp_path / "out")
    (tmp_path / "out" / "data").write_bytes(b"abb")

    [problem] = broken_files(tmp_path / "out", manifest)

    assert problem.startswith(f"{tmp_path}/out/data: expected sha256 ba7816bf8f01cfea…, found ")


def test_a_truncated_file_is_found(tmp_path: Path):
    manifest = make_output(tmp_path / "out")
    (tmp_path / "out" / "inner" / "more").write_bytes(b"1234")

    problems = broken_files(tmp_path / "out", manifest)

    assert problems == [
        f"{tmp_path}/out/inner/more: expected 5 bytes, found 4; "
        f"remove the folder {tmp_path}/out and run `tokflow run` again"
    ]


def test_a_missing_file_is_found(tmp_path: Path):
    manifest = make_output(tmp_path / "out")
    (tmp_path / "out" / "data").unlink()

    problems = broken_files(tmp_path / "out", manifest)

    assert problems == [
        f"{tmp_path}/out/data: expected 3 bytes, found no file; "
        f"remove the folder {tmp_path}/out and run `tokflow run` again"
    ]


def test_a_folder_without_a_manifest_is_missing(tmp_path: Path):
    with pytest.raises(MissingOutputError, match=r"a finished output with a manifest\.json"):
        read_manifest(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path):
    write_manifest(tmp_path, replace(make_manifest(), format_version=FORMAT_VERSION + 1), run={})

    with pytest.raises(CorruptOutputError) as raised:
        read_manifest(tmp_path)

    assert str(raised.value) == (
        f"{tmp_path}/manifest.json: expected format_version 1, found 2; "
        "read it with the tokflow that wrote it, or delete the folder and rebuild"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "Expecting value"),
        (b'{"format_version": 1', "Expecting ',' delimiter"),
        (b"\xff\xfe", "can't decode byte"),
        (b"[1]", "found 'list'"),
        (b"{}", "found None"),
        (b'{"format_version": 1}', "KeyError: 'files'"),
        (b'{"format_version": 1, "files": []}', "has no attribute 'items'"),
        (b'{"format_version": 1, "files": {"a": {"num_bytes": 1}}}', "sha256"),
        (b'{"format_version": 1, "files": {}, "stage": "tokens"}', "missing 7 required"),
    ],
)
def test_a_damaged_manifest_is_corrupt(text: bytes, found: str, tmp_path: Path):
    (tmp_path / "manifest.json").write_bytes(text)

    with pytest.raises(CorruptOutputError) as raised:
        read_manifest(tmp_path)

    assert found in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path}/manifest.json: expected ")


def test_a_manifest_can_be_read_without_tokflow(tmp_path: Path):
    make_output(tmp_path / "größe")

    fields = json.loads((tmp_path / "größe" / "manifest.json").read_text(encoding="utf-8"))

    assert fields["format_version"] == 1
    assert fields["files"]["data"] == {"num_bytes": 3, "sha256": SHA256_OF_ABC}
