"""`tokflow verify` and `tokflow formats`: what they say, and with which exit status."""

import json
import re
from pathlib import Path

import pytest

from tokflow.exports import FORMATS
from tokflow_tests.cli.commands import json_of, run


def test_verifying_a_dataset_says_a_line_per_output(store: Path, config: Path):
    result = run("verify", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    hashed = r" \(its raw file was hashed\)"
    assert re.fullmatch(rf"ok  tokens of a\.jsonl  [0-9a-f]{{16}}{hashed}", lines[1])
    assert re.fullmatch(r"[\d.]+ kB compared with checksums", lines[-2])
    assert lines[-1] == "13 outputs: all well"


def test_verifying_says_how_many_bytes_it_compared(store: Path, config: Path):
    (folder,) = (store / "tokens/a.jsonl").iterdir()

    found = json.loads(run("verify", folder, "--json").stdout)["outputs"]

    files = [path for path in folder.iterdir() if path.is_file()]
    assert [of["num_bytes"] for of in found] == [sum(path.stat().st_size for path in files)]


def test_a_broken_output_fails_the_verification(store: Path, config: Path):
    (folder,) = (store / "tokens/a.jsonl").iterdir()
    (folder / "tokens.bin").write_bytes(b"")

    result = run("verify", "--config", config)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {folder}/tokens.bin: expected 58 bytes, found 0; ")
    assert "failed  tokens of a.jsonl" in result.stdout


def test_all_documents_of_a_dataset_are_compared_with_the_reference_and_those_of_a_path_are_not(
    store: Path, config: Path
):
    assert run("verify", "--config", config, "--reference").stdout.endswith(": all well\n")

    result = run("verify", store, "--reference")

    assert result.exit_code == 2
    assert result.stderr.startswith("error: option --reference: expected a declared dataset")


@pytest.mark.parametrize("name", FORMATS)
def test_every_option_of_every_format_is_documented(name: str):
    options = FORMATS[name].options
    assert options.model_fields.keys() <= options.descriptions().keys()


def test_formats_are_listed_with_what_they_are_made_of():
    result = run("formats")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert {line.split()[0] for line in lines[1 : len(FORMATS) + 1]} == set(FORMATS)
    assert [line.split()[1] for line in lines if line.startswith(("bin ", "mds "))] == [
        "stream",
        "sequences",
    ]


def test_formats_as_json():
    [mds] = json_of("formats", "mds")["formats"]

    assert (mds["name"], mds["made_of"], mds["is_read"]) == ("mds", "sequences", True)
    assert {option["name"]: option["default"] for option in mds["options"]}["shard_size"] is None
