import json
import re
from pathlib import Path

from tokflow_tests.cli.commands import run


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
