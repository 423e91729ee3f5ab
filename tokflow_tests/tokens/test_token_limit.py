"""A limit of tokens ends a shard with the document that reaches it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify.remade import verify_against_raw
from tokflow.documents import DocumentsConfig, Limit, source
from tokflow.errors import TokenizerError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.tokens import stage
from tokflow.tokens.encoder import DocumentEncoder
from tokflow.tokens.shard import TokenShard
from tokflow_tests.outputs import problems_of, token_lists
from tokflow_tests.special import train_model
from tokflow_tests.tiny import EOS, build, declare, declare_texts, ids, many_ids, tokenize
from tokflow_tests.tokenizers.engines.test_engines import byte_level_bpe, save

A, BB, CCC = [97, EOS], [98, 98, EOS], [99, 99, 99, EOS]


def shard_of(folder: Path, *texts: str, tokens: int, **documents: Any) -> TokenShard:
    documents = {"limit": {"tokens": tokens}, **documents}
    return tokenize(declare_texts(folder, texts, documents=documents))


@pytest.mark.parametrize("piece_bytes", [1, 1000])
def test_the_document_that_reaches_the_limit_is_whole_and_the_last(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source, "_MIN_READ_BYTES", piece_bytes)

    for tokens, num_taken in ((1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (99, 3)):
        shard = shard_of(tmp_path, "a", "bb", "ccc", tokens=tokens)
        assert token_lists(shard) == [A, BB, CCC][:num_taken], tokens
    # EOS of an empty document counts.
    assert token_lists(shard_of(tmp_path, "", "", "a", "a", tokens=3)) == [[EOS], [EOS], A]


def test_nothing_behind_the_limit_is_read_bad_or_an_error(tmp_path: Path):
    how = {"documents": {"limit": {"tokens": 2}}, "special_tokens_in_text": "error"}
    spelt = declare_texts(tmp_path, ["a", "<|endoftext|>"], **how)
    with (tmp_path / "raw/texts.jsonl").open("a") as file:
        file.write("{malformed")

    shard = tokenize(spelt)

    assert token_lists(shard) == [A]
    assert (shard.manifest.counts["num_rejects"], shard.manifest.counts["num_bytes"]) == (0, 1)


def grouped(folder: Path, **more: Any) -> Dataset:
    files = {"a.jsonl": ["aaa", "bb", "cc"], "b.jsonl": ["ddddd", "ee", "ff"]}
    raw, documents = {"files": "raw/*", "group": 9}, {"limit": {"tokens": 7}}
    return declare(folder, files, raw=raw, documents=documents, **more)


def test_each_file_of_a_group_has_its_limit_and_cut_documents_are_found_again(tmp_path: Path):
    parts = {"train": {"start": 0, "characters": 8}, "validation": {"start": 8}}
    dataset = grouped(tmp_path, split={"parts": parts, "boundary": "character"}, exports=["bin"])
    build(dataset)

    bin_file = tmp_path / "store/tiny/exports/bin/latest/val.bin"

    shard = tokenize(dataset, "group/a.jsonl")
    assert [len(tokens) for tokens in token_lists(shard)] == [4, 3, 6, 3]
    assert [each["num_rows"] for each in shard.manifest.details["files"]] == [2, 2]
    assert bin_file.read_bytes()[::2] == b"dd\x00ee\x00"
    assert problems_of(dataset) == []


@pytest.mark.parametrize("threaded_bytes", [0, 10**9])
def test_the_bytes_do_not_depend_on_batches_and_threads(
    threaded_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "THREADED_BYTES", threaded_bytes)
    monkeypatch.setattr(source, "_MIN_READ_BYTES", 1 + threaded_bytes)
    dataset = declare_texts(
        tmp_path, ["words of it"] * 3_000, documents={"limit": {"tokens": 12_001}}
    )

    shard = tokenize(dataset)

    assert shard.manifest.counts["num_tokens"] == 12_012
    assert shard.tokens().read().tolist() == ids(*["words of it"] * 1_001)


def test_verify_tells_of_a_shard_that_ends_before_its_limit(tmp_path: Path):
    shard = shard_of(tmp_path, "a", "bb", "ccc", tokens=2)
    graph = graph_of(declare_texts(tmp_path, None))
    raw, encoding = graph.raw("texts.jsonl"), graph.encoding

    def problems(tokens: int) -> list[str]:
        limited = DocumentsConfig(limit=Limit(tokens=tokens))
        return verify_against_raw(raw, shard, limited, encoding)

    assert problems(1) == problems(2) == []
    [problem] = problems(3)
    assert problem.endswith("expected all documents of the raw file, found 1")


def test_a_document_that_cannot_be_encoded_is_an_error_only_before_the_limit(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(many_ids())
    how = {"kind": "file", "name": "tokenizer.json", "eos_token": "w5"}
    texts = ["w1", "w2", "w5", "w3"]

    def tokens(limit: int) -> list[list[int]]:
        documents = {"limit": {"tokens": limit}}
        return token_lists(tokenize(declare_texts(tmp_path, texts, documents=documents, **how)))

    assert tokens(4) == [[1, 5], [2, 5]]
    with pytest.raises(TokenizerError, match="document 2: expected the EOS id 5"):
        tokens(5)


def test_little_more_text_is_tokenized_than_the_limit_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    encoded, encode = [], DocumentEncoder.encode

    def counted(self: DocumentEncoder, batch: Any) -> Any:
        encoded.append(len(batch.rows) if batch.tokens is None else 0)
        return encode(self, batch)

    monkeypatch.setattr(source, "_MIN_READ_BYTES", 10)
    monkeypatch.setattr(DocumentEncoder, "encode", counted)

    assert len(token_lists(shard_of(tmp_path, *["eight by"] * 1_000, tokens=90))) == 10
    assert sum(encoded) < 250  # the first 4 kB are looked at together


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

    command = [sys.executable, "-c", MEASURED, path, json.dumps(tokenizer), tmp_path / "store"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)

    assert run.returncode == 0, run.stderr
    num_tokens, peak_bytes = json.loads(run.stdout)
    assert num_tokens > num_bytes / 10
    assert peak_bytes < 8 * num_bytes + 600_000_000
