"""The promise: the tokens are those of the reference library on each whole document."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers

import tokflow
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.tokenizers.engines import fast, open_engine
from tokflow.tokens.shard import write_token_shard
from tokflow_tests.outputs import content, token_lists
from tokflow_tests.texts import NUM_AWKWARD_STRINGS, awkward_strings
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize, write_texts

GPT2_EOS = 50256


@pytest.fixture(scope="session")
def corpora(shared: Path) -> dict[str, list[str]]:
    """The documents of each raw file, by its name: some of two corpora, cut in three ways."""
    documents = {"awkward": list(awkward_strings())}
    for path in sorted((shared / "corpora").glob("*.txt")):
        text = path.read_bytes().decode()[:150_000]
        documents[f"{path.stem}-whole"] = [text]
        documents[f"{path.stem}-lines"] = text.split("\n")
        documents[f"{path.stem}-paragraphs"] = text.split("\n\n")
    return documents


@pytest.fixture(scope="session")
def gpt2_tokens(shared: Path, corpora: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    """What tiktoken gives for each document, and EOS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
        gpt2 = tiktoken.get_encoding("gpt2")
    return {
        name: [[*ids, GPT2_EOS] for ids in gpt2.encode_ordinary_batch(texts)]
        for name, texts in corpora.items()
    }


def gpt2_tokenizer(kind: str, shared: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    patch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    folder = shared / "tokenizers" / "gpt2"
    names = {"tiktoken": "gpt2", "huggingface": folder}
    return {"kind": kind, "name": str(names[kind])}


def make_corpora_dataset(
    folder: Path, corpora: dict[str, list[str]], suffix: str, tokenizer: dict[str, str]
) -> Dataset:
    for name, texts in corpora.items():
        write_texts(folder / "raw" / f"{name}{suffix}", texts)
    return declare_texts(folder, None, **tokenizer)


def flat(documents: Sequence[Sequence[int]]) -> list[int]:
    return [token_id for ids in documents for token_id in ids]


def test_there_are_20_000_awkward_strings():
    strings = awkward_strings()

    assert len(strings) == NUM_AWKWARD_STRINGS == 20_000
    assert {ord(character) >> 16 for text in strings for character in text} == set(range(17))


@pytest.mark.parametrize(("kind", "suffix"), [("tiktoken", ".jsonl"), ("huggingface", ".parquet")])
def test_gpt2_gives_the_tokens_of_tiktoken(
    kind: str,
    suffix: str,
    shared: Path,
    corpora: dict[str, list[str]],
    gpt2_tokens: dict[str, list[list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    tokenizer = gpt2_tokenizer(kind, shared, monkeypatch)
    dataset = make_corpora_dataset(tmp_path, corpora, suffix, tokenizer)

    shards = {name: tokenize(dataset, f"{name}{suffix}") for name in corpora}

    for name, shard in shards.items():
        assert token_lists(shard) == gpt2_tokens[name], name
        assert (shard.folder / "tokens.bin").read_bytes() == np.array(
            flat(gpt2_tokens[name]), "<u2"
        ).tobytes()
    assert len(shards) == 7


def test_tokenize_and_save_writes_the_tokens_of_tiktoken(
    shared: Path,
    corpora: dict[str, list[str]],
    gpt2_tokens: dict[str, list[list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    tokenizer = gpt2_tokenizer("tiktoken", shared, monkeypatch)
    names = sorted(corpora)
    files = [write_texts(tmp_path / f"{name}.parquet", corpora[name]) for name in names]

    export = tokflow.tokenize_and_save(
        files, tokenizer=tokenizer, output=tmp_path / "store", format="bin"
    )

    token_ids = np.fromfile(export / "train.bin", "<u2").tolist()
    assert token_ids == [token_id for name in names for token_id in flat(gpt2_tokens[name])]


def test_a_trained_tokenizer_gives_the_tokens_of_the_tokenizers_library(tmp_path: Path):
    dataset = declare_texts(tmp_path, awkward_strings(), kind="trained", vocab_size=1000)
    folder = save_tokenizer(dataset).folder
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    expected = [
        [*encoding.ids, reference.token_to_id("<|endoftext|>")]
        for encoding in reference.encode_batch(list(awkward_strings()), add_special_tokens=False)
    ]

    shard = tokenize(dataset)

    assert token_lists(shard) == expected


def test_the_bytes_tokenizer_gives_the_bytes(tmp_path: Path):
    dataset = declare_texts(tmp_path, awkward_strings(), kind="bytes")

    shard = tokenize(dataset)

    assert token_lists(shard) == [[*text.encode(), 256] for text in awkward_strings()]


GPT2_AND_TRAINED = ["trained", "tiktoken"]


def make_dataset_of_kind(
    kind: str, folder: Path, request: pytest.FixtureRequest, **tokenizer: str
) -> Dataset:
    """Return a dataset over some awkward strings; asks for the shared folder only if need be."""
    texts = awkward_strings()[::100]
    if kind == "trained":
        return declare_texts(folder, texts, kind="trained", vocab_size=1000, **tokenizer)
    patch = request.getfixturevalue("monkeypatch")
    gpt2 = gpt2_tokenizer(kind, request.getfixturevalue("shared"), patch)
    return declare_texts(folder, texts, **gpt2, **tokenizer)


def write_shard(dataset: Dataset, folder: Path, **options: int) -> tuple[bytes, bytes, bytes]:
    """Return tokens.bin, documents.parquet and _tokflow/manifest.json of the one raw file."""
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    folder.mkdir()
    write_token_shard(
        graph.raw("texts.jsonl"),
        dataset.documents,
        graph.encoding,
        folder,
        dataset="texts",
        recipe=graph.tokens("texts.jsonl").recipe,
        **options,
    )
    names = ("tokens.bin", "documents.parquet", "_tokflow/manifest.json")
    return tuple((folder / name).read_bytes() for name in names)


@pytest.mark.parametrize("engine", ["gigatoken", "reference"])
@pytest.mark.parametrize("kind", GPT2_AND_TRAINED)
def test_the_bytes_depend_neither_on_batches_nor_threads_nor_the_engine(
    kind: str,
    engine: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
):
    expected = write_shard(make_dataset_of_kind(kind, tmp_path, request), tmp_path / "expected")
    dataset = make_dataset_of_kind(kind, tmp_path, request, engine=engine)

    for is_parallel in (True, False):
        monkeypatch.setattr(fast, "num_cores", lambda: 4 if is_parallel else 1)  # noqa: B023
        open_engine.cache_clear()
        for batch_bytes in (1, 400, 2_000_000):
            folder = tmp_path / f"{batch_bytes}-{is_parallel}"
            assert write_shard(dataset, folder, batch_bytes=batch_bytes) == expected, folder.name


@pytest.mark.parametrize("kind", GPT2_AND_TRAINED)
def test_the_bytes_do_not_depend_on_the_order_in_which_files_are_built(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
):
    strings = awkward_strings()
    made = {}
    for order in ("abc", "cba"):
        dataset = make_dataset_of_kind(kind, tmp_path / order, request)
        write_texts(tmp_path / order / "raw" / "a.jsonl", strings[:100])
        write_texts(tmp_path / order / "raw" / "b.parquet", strings[100:300])
        write_texts(tmp_path / order / "raw" / "c.jsonl", strings[300:600])
        graph = graph_of(dataset)
        make_output(graph, "tokenizer", "tokenizer")
        open_engine.cache_clear()

        keys = {"a": "a.jsonl", "b": "b.parquet", "c": "c.jsonl"}
        outputs = {name: make_output(graph, "tokens", keys[name]).output.folder for name in order}
        made[order] = {name: content(outputs[name]) for name in "abc"}

    assert made["abc"] == made["cba"]
    assert [len(files) for files in made["abc"].values()] == [3, 3, 3]


def test_one_document_of_two_megabytes_is_tokenized_as_a_whole(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = sorted((shared / "corpora").glob("*.txt"))
    text = "".join(path.read_bytes().decode() for path in paths)
    tokenizer = gpt2_tokenizer("tiktoken", shared, monkeypatch)
    dataset = declare_texts(tmp_path, [text], **tokenizer)

    tokens, _, _ = write_shard(dataset, tmp_path / "shard", batch_bytes=1)

    expected = tiktoken.get_encoding("gpt2").encode_ordinary(text)
    assert np.frombuffer(tokens, "<u2").tolist() == [*expected, GPT2_EOS]
