import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tokflow_tests import special
from tokflow_tests.cli.commands import run as run_command


def run(*arguments: str | Path) -> Result:
    return run_command("tokenizers", *arguments)


def json_of(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)["tokenizers"]


def table_of(stdout: str) -> dict[str, list[str]]:
    """Return the cells of each row by its label; cells are two spaces apart."""
    table, _, _ = stdout.partition("\n\n")
    rows = [re.split(r" {2,}", line) for line in table.splitlines()]
    return {label: cells for label, *cells in rows}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "measured.jsonl"
    path.write_text('{"text": "a word"}\n{"text": "größe"}\n')
    return path


def test_a_datasets_tokenizer_is_shown_and_measured_on_its_first_raw_file(config: Path):
    result = run("--config", config)

    assert (result.exit_code, result.stderr) == (0, "")
    table = table_of(result.stdout)
    speed = table.pop("MB/s")
    assert table == {
        "": ["small"],
        "kind": ["bytes"],
        "vocab_size": ["258"],
        "dtype": ["uint16"],
        "EOS": ["<eos> 256"],
        "BOS": ["<bos> 257"],
        "special tokens": ["0"],
        "engine": ["bytes"],
        "bytes per token": ["1.000"],
        "tokens per character": ["1.087"],
        "tokens": ["25"],
    }
    assert re.fullmatch(r"[\d,.]+", speed[0])
    raw = config.parent / "raw/a.jsonl"
    assert f"small: measured on 25 B of text of {raw}\n" in result.stdout
    assert "small: bytes: the bytes need no other engine\n" in result.stdout


def test_tokenizers_stand_side_by_side(tmp_path: Path, file: Path):
    made = special.of_tokenizers(tmp_path)
    special.of_sentencepiece(tmp_path)

    result = run(
        *("--tokenizer", "bytes", "--tokenizer", made["name"]),
        *("--tokenizer", tmp_path / "own.model", "--file", file),
    )

    assert (result.exit_code, result.stderr) == (0, "")
    table = table_of(result.stdout)
    assert table["kind"] == ["bytes", "file", "sentencepiece"]
    assert table["engine"] == ["bytes", "gigatoken", "sentencepiece"]
    assert table["EOS"] == ["<eos> 256", "none", "</s> 2"]
    assert table["special tokens"] == ["0", "1", "3"]
    assert table["bytes per token"][0] == "1.000"
    assert table["tokens"][0] == "13"
    assert f"{made['name']}: splits text by gpt2\n" in result.stdout
    assert f"{made['name']}: gigatoken: equal to tokenizers on " in result.stdout
    assert f"{tmp_path / 'own.model'}: sentencepiece: " in result.stdout
