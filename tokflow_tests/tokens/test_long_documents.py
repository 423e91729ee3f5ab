import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokflow_tests.special import train_model
from tokflow_tests.tokenizers.engines.test_engines import byte_level_bpe, save

SENTENCE = "The quick brown fox doesn't jump over 12 lazy dogs;\n\tit sleeps.  "

MEASURED = """
import json, resource, sys
import tokflow

file, tokenizer, store = sys.argv[1:]
folder = tokflow.tokenize_and_save(file, tokenizer=json.loads(tokenizer), output=store)
manifest = json.loads((folder / "_tokflow/manifest.json").read_text())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([manifest["counts"]["train.num_tokens"], peak * 1024]))
"""


def write_document(path: Path, num_bytes: int) -> None:
    """Write one document of SENTENCEs: a line of jsonl, or a whole text file."""
    times, block = num_bytes // len(SENTENCE), 10_000
    text = json.dumps(SENTENCE)[1:-1] if path.suffix == ".jsonl" else SENTENCE
    with path.open("w") as file:
        file.write('{"text": "' if path.suffix == ".jsonl" else "")
        for _ in range(times // block):
            file.write(text * block)
        file.write('"}\n' if path.suffix == ".jsonl" else "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engine", "suffix", "num_bytes"),
    [
        ("file", "gigatoken", ".txt", 1_000_000_000),
        ("bytes", "reference", ".txt", 1_000_000_000),
        ("file", "gigatoken", ".jsonl", 100_000_000),
        ("file", "reference", ".jsonl", 100_000_000),
        ("sentencepiece", "reference", ".jsonl", 100_000_000),
    ],
)
def test_a_huge_document_takes_memory_in_proportion_to_its_size(
    kind: str, engine: str, suffix: str, num_bytes: int, tmp_path: Path
):
    tokenizer = {"kind": kind, "engine": engine, "eos": "none"}
    if kind == "file":
        tokenizer |= save(byte_level_bpe(), tmp_path)
    if kind == "sentencepiece":
        (tmp_path / "own.model").write_bytes(train_model())
        tokenizer["name"] = str(tmp_path / "own.model")
    path = tmp_path / f"document{suffix}"
    write_document(path, num_bytes)

    run = subprocess.run(
        [sys.executable, "-c", MEASURED, path, json.dumps(tokenizer), tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )

    assert run.returncode == 0, run.stderr
    num_tokens, peak_bytes = json.loads(run.stdout)
    assert num_tokens > num_bytes / 10
    assert peak_bytes < 8 * num_bytes + 600_000_000
