"""The promise: the tokens are those of the reference library on each whole document."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.pools.pool import ignore
from tokflow.tokenizers.engines import fast
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokens.stage import TOKENS
from tokflow_tests.outputs import token_lists
from tokflow_tests.texts import NUM_AWKWARD_STRINGS, awkward_strings
from tokflow_tests.tiny import declare_texts, tokenize, write_texts

GPT2_EOS = 50256


def corpora(shared: Path) -> dict[str, list[str]]:
    """The documents of each raw file, by its name: some of two corpora, cut in three ways."""
    documents = {"awkward": list(awkward_strings())}
    for path in sorted((shared / "corpora").glob("*.txt")):
        text = path.read_bytes().decode()[:50_000]
        documents[f"{path.stem}-whole"] = [text]
        documents[f"{path.stem}-lines"] = text.split("\n")
        documents[f"{path.stem}-paragraphs"] = text.split("\n\n")
    return documents


def test_gpt2_gives_the_tokens_of_tiktoken(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    gpt2, raw = tiktoken.get_encoding("gpt2"), corpora(shared)
    for name, texts in raw.items():
        write_texts(tmp_path / "raw" / f"{name}.parquet", texts)
    tokenizer = {"kind": "huggingface", "name": str(shared / "tokenizers" / "gpt2")}
    dataset = declare_texts(tmp_path, None, **tokenizer)

    for name, texts in raw.items():
        shard = tokenize(dataset, f"{name}.parquet")

        expected = [[*ids, GPT2_EOS] for ids in gpt2.encode_ordinary_batch(texts)]
        assert token_lists(shard) == expected, name
        written = np.fromfile(shard.folder / "tokens.bin", "<u2")
        assert written.tolist() == [*itertools.chain(*expected)], name
    assert len(raw) == 7
    strings = raw["awkward"]
    assert len(strings) == NUM_AWKWARD_STRINGS == 20_000
    assert {ord(character) >> 16 for text in strings for character in text} == set(range(17))


def declare_trained(folder: Path, **tokenizer: str) -> Dataset:
    """Return a dataset over some awkward strings, of which its tokenizer learns."""
    texts = awkward_strings()[::100]
    return declare_texts(folder, texts, kind="trained", vocab_size=1000, **tokenizer)


def write_shard(dataset: Dataset, folder: Path, **options: int) -> tuple[bytes, bytes, bytes]:
    """Return tokens.bin, documents.parquet and _tokflow/manifest.json of the one raw file."""
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    folder.mkdir()
    replace(TOKENS.writer(graph.tokens("texts.jsonl")), **options).write(None, folder, ignore)
    names = ("tokens.bin", "documents.parquet", "_tokflow/manifest.json")
    return tuple((folder / name).read_bytes() for name in names)


@pytest.mark.parametrize("engine", ["gigatoken", "reference"])
def test_the_bytes_depend_neither_on_batches_nor_threads_nor_the_engine(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = write_shard(declare_trained(tmp_path), tmp_path / "expected")
    dataset = declare_trained(tmp_path, engine=engine)

    for num_cores, sizes in ((4, (1, 2_000_000)), (2, (401,)), (1, (400,))):
        monkeypatch.setattr(fast, "num_cores", lambda: num_cores)  # noqa: B023
        open_engine.cache_clear()
        for batch_bytes in sizes:
            folder = tmp_path / f"{batch_bytes}"
            assert write_shard(dataset, folder, batch_bytes=batch_bytes) == expected, folder.name


def test_one_document_of_two_megabytes_is_tokenized_as_a_whole(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = sorted((shared / "corpora").glob("*.txt"))
    text = "".join(path.read_bytes().decode() for path in paths)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    dataset = declare_texts(tmp_path, [text], kind="tiktoken", name="gpt2")

    tokens, _, _ = write_shard(dataset, tmp_path / "shard", batch_bytes=1)

    expected = tiktoken.get_encoding("gpt2").encode_ordinary(text)
    assert np.frombuffer(tokens, "<u2").tolist() == [*expected, GPT2_EOS]
