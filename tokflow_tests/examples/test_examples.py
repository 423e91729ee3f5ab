"""Each example on small data: built, read by its consumer, and equal to what its original makes."""

import gzip
import io
import json
import pickle
import re
import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import tokenizers

from examples.running import CONSUMERS, EXAMPLES, HERE, WITH_TORCH, prepare
from examples.small import HUB, environment_of, small_hub
from tokflow.pipeline.declared import load_datasets
from tokflow.store.manifest import read_manifest
from tokflow_tests.tiny import build, ids


class Examples:
    """The examples with one tokenizer, each built once for all tests."""

    def __init__(self, make_folder: Callable[[str], Path], tokenizer: str) -> None:
        self.tokenizer = tokenizer
        self.folder = cache(lambda name: self._built(name, make_folder("examples") / name))

    def _built(self, name: str, folder: Path) -> Path:
        path = prepare(name, folder)
        if self.tokenizer == "bytes":
            text = re.sub(r"kind: tiktoken,?\s+name: gpt2", "kind: bytes", path.read_text())
            path.write_text(text)
        for dataset in load_datasets(path):
            build(dataset)
        return folder


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    """The environment, which leads to the hub of the examples."""
    with pytest.MonkeyPatch.context() as patch, small_hub() as hub:
        for name, value in environment_of(hub).items():
            patch.setenv(name, value)
        yield patch


@pytest.fixture(scope="module")
def examples(environment: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """The examples with `bytes`, whose tokens `ids` gives."""
    return Examples(tmp_path_factory.mktemp, "bytes")


@pytest.fixture(scope="module")
def examples_of_gpt2(
    environment: pytest.MonkeyPatch, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Examples:
    environment.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    return Examples(tmp_path_factory.mktemp, "gpt2")


def test_every_folder_is_an_example_with_its_yaml_consumer_and_readme():
    folders = {path.name for path in HERE.iterdir() if (path / "dataset.yaml").exists()}

    assert folders == {*EXAMPLES, *WITH_TORCH}
    for name in folders:
        files = {path.name for path in (HERE / name).iterdir()} - {"__pycache__"}
        consumer, *_ = CONSUMERS.get(name, ["consume.py"])
        assert files == {"README.md", consumer, "dataset.yaml"}
    for name in EXAMPLES:
        code = (HERE / name / "consume.py").read_text()
        assert len([line for line in code.splitlines() if line.strip()]) < 30
        table = (HERE / name / "README.md").read_text()
        assert "differs, and why |\n|---|---|---|---|\n" in table


NAMES = {
    "lance": ["wikitext"],
    "c_code": ["c_code"],
    "tinystories": ["tinystories", "tinystories_eos"],
    "sst2": ["sst2", "sst2_drawn"],
    "several": ["articles", "code", "code_gpt2", "both"],
    "chats": ["chats"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_yaml_declares_datasets_of_the_real_size(name: str):
    datasets = load_datasets(HERE / name / "dataset.yaml")

    assert [dataset.name for dataset in datasets] == NAMES[name]
    if name == "c_code":
        assert datasets[0].split.parts["train"].characters == 100_000_000
    if name == "lance":
        assert datasets[0].documents.limit.documents == 500_000


SAID = {
    "lance": ["10 windows of 1024, a batch (8, 1024) int64"],
    "c_code": [
        "train: 159 samples of 1536, 1 dumps",
        "validation: 20 samples of 512, 1 dumps",
    ],
    "tinystories": [
        "tinystories train: 71,465 tokens, a batch (32, 128), 0 ends",
        "tinystories validation: 7,482 tokens, a batch (32, 128), 0 ends",
        "tinystories_eos train: 72,065 tokens, a batch (32, 128), 36 ends",
        "tinystories_eos validation: 7,542 tokens, a batch (32, 128), 35 ends",
    ],
    "sst2": [
        "train: 179 rows of 192, the first "
        "[24717, 649, 3200, 507, 422, 262, 21694, 4991, 220, 50256]",
    ],
    "several": [
        "articles: 108 rows, 169073 tokens, 108 segments",
        "both: 194 rows, 387110 tokens, 306 segments",
    ],
    "chats": [
        "trl: 49 rows of 292 chats",
        "axolotl: 292 rows of one chat, the longest 1287",
    ],
}
"""By example, lines that its consumer prints."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_consumer_of_each_example_reads_what_was_built_and_a_second_run_makes_nothing(
    name: str,
    examples_of_gpt2: Examples,  # whose ids the consumers decode
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(examples_of_gpt2.folder(name))
    capsys.readouterr()

    runpy.run_path("consume.py", run_name="__main__")

    assert set(SAID[name]) <= set(capsys.readouterr().out.splitlines())
    for dataset in load_datasets(Path("dataset.yaml")):
        assert build(dataset).num_new == 0


def test_rows_of_chats_have_labels_of_what_the_assistant_says_alone(examples: Examples):
    folder = examples.folder("chats")
    latest = folder / "data/store/chats/exports"
    [path] = (latest / "axolotl/latest").glob("train-*.parquet")
    rows = pq.read_table(path).to_pylist()
    [file] = folder.glob("data/store/chats/tokenizer/*/tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    lines = (folder / "data/raw/chats/0.jsonl").read_text().splitlines()
    said = {"".join(map(said_in, json.loads(line)["messages"])) for line in lines}

    for row in rows:
        labels = [token for token in row["labels"] if token != -100]
        assert tokenizer.decode(labels, skip_special_tokens=False) in said
    [path] = (latest / "trl/latest/train").glob("data-*.arrow")
    packed = pa.ipc.open_stream(path).read_all()
    assert sorted(chain.from_iterable(packed["seq_lengths"].to_pylist())) == sorted(
        len(row["input_ids"]) for row in rows
    )


def said_in(message: dict[str, Any]) -> str:
    """Return what the model has to emit of a message."""
    if message["role"] != "assistant":
        return ""
    calls = [of["function"] for of in message.get("tool_calls", ())]
    written = (f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    return f"{message['content']}{''.join(written)}<|im_end|>"


def of_hub(name: str, pattern: str, column: str) -> list[str]:
    """Return the texts of some files of a dataset of the hub."""
    files = {path: content for path, content in HUB[name]().items() if fnmatch(path, pattern)}
    tables = [pq.read_table(io.BytesIO(content)) for _, content in sorted(files.items())]
    return [text for table in tables for text in table[column].to_pylist()]


def test_lance_has_documents_of_the_files_that_were_fetched_each_once(
    examples: Examples,
):
    folder = examples.folder("lance")
    latest = folder / "data/store/wikitext/exports/lance/latest"
    tokens = lance.dataset(latest / "train.lance").to_table()["input_ids"].to_numpy()
    documents = lance.dataset(latest / "train.documents.lance").to_table()["token_offset"]
    found = [some.tolist() for some in np.split(tokens, documents.to_numpy()[1:])]
    below = folder.glob("data/store/wikitext/raw/**/*.parquet")
    fetched = sorted(path for path in below if path.is_file())
    texts = [text for path in fetched for text in pq.read_table(path)["text"].to_pylist()]

    expected = [ids(text, eos=False) for text in texts if text]

    assert len(fetched) == 3
    assert len([document for document in found if document]) == 400
    left = Counter(map(tuple, expected)) - Counter(map(tuple, filter(None, found)))
    assert sum(left.values()) == len(expected) - 400
    in_order = [document for document in expected if document in found]
    assert [*filter(None, found)] != in_order


def test_pickles_of_c_code_are_rows_of_exactly_these_characters(examples: Examples):
    folder = examples.folder("c_code")
    [raw] = folder.glob("data/raw/c_code/*.parquet")
    contents = pq.read_table(raw)["content"].to_pylist()
    latest = folder / "data/store/c_code/exports/pickle/latest"
    for part, start, stop, length, least in (
        ("train", 0, 500_000, 1536, 1000),
        ("validation", 500_000, 520_500, 512, 300),
    ):
        tokens = ids(*cut(contents, start, stop))

        samples = [tokens[at : at + length] for at in range(0, len(tokens), length)]
        samples = [sample for sample in samples if len(sample) >= least]
        samples[-1] += [50_257] * (length - len(samples[-1]))

        assert pickle.loads((latest / part / "dump-0.pkl").read_bytes()) == samples
        metadata = json.loads((latest / part / "dump-meta_data.json").read_text())
        sizes = {"num_samples": len(samples), "num_tokens": len(samples) * length}
        assert metadata == {"dump-0.pkl": sizes}


def cut(texts: Iterable[str], start: int, stop: int) -> Iterable[str]:
    """Yield what of each text is within some characters of all of them."""
    position = 0
    for text in texts:
        inside = text[max(0, start - position) : max(0, stop - position)]
        position += len(text)
        if inside:
            yield inside


def test_bins_of_tinystories_are_those_of_the_notebook(examples: Examples):
    store = examples.folder("tinystories") / "data/store"
    for name, eos in (("tinystories", False), ("tinystories_eos", True)):
        for part in ("train", "validation"):
            texts = of_hub("roneneldan/TinyStories", f"data/{part}-*", "text")

            written = np.fromfile(store / name / f"exports/bin/latest/{part}.bin", np.uint16)
            assert written.tolist() == ids(*texts, eos=eos)


def test_the_cache_of_sst2_is_archais_of_the_same_sentences(examples: Examples):
    store = examples.folder("sst2") / "data/store"
    latest = store / "sst2/exports/archai/latest"
    for part in ("train", "validation", "test"):
        expected = ids(*of_hub("nyu-mll/glue", f"sst2/{part}-*", "sentence"))

        assert np.load(latest / f"{part}.npy").tolist() == expected

    config = json.loads((latest / "config.json").read_text())
    assert (config["dataset_name"], config["dataset_config_name"]) == ("nyu-mll/glue", "sst2")
    assert (config["mapping_column_name"], config["use_eos_token"]) == (["sentence"], True)
    assert (config["validation_split"], config["shuffle"]) == (0.0, False)
    config = json.loads((store / "sst2_drawn/exports/archai/latest/config.json").read_text())
    assert (config["validation_split"], config["shuffle"], config["seed"]) == (0.1, True, 42)


def articles_in(folder: Path) -> list[str]:
    [raw] = folder.glob("data/raw/several/articles/*.gz")
    return [json.loads(line)["content"] for line in gzip.decompress(raw.read_bytes()).splitlines()]


def test_rows_of_several_are_their_documents_truncated(examples: Examples):
    folder = examples.folder("several")
    expected = sorted(ids(text)[:2048] for text in articles_in(folder))
    articles = folder / "data/store/articles/exports"

    rows = {name: rows_of(articles / name / "latest") for name in ("parquet", "arrow", "jsonl")}

    assert any(len(row) == 2048 for row in expected)
    for found in rows.values():
        assert sorted(row["input_ids"] for row in found) == expected
        assert all(row["attention_mask"] == [1] * len(row["input_ids"]) for row in found)
        assert [row["input_ids"] for row in found] == [row["input_ids"] for row in rows["parquet"]]


def test_packed_rows_of_several_lose_nothing(examples: Examples):
    folder = examples.folder("several")

    rows = rows_of(folder / "data/store/articles/exports/packed/latest")

    written = [token for row in rows for token in row["input_ids"][: sum(row["attention_mask"])]]
    assert Counter(written) == Counter(ids(*articles_in(folder)))
    assert len(written) > 0.95 * 2048 * len(rows)


def rows_of(folder: Path) -> list[dict]:
    """Return the rows of an export's files, train before validation."""
    rows = []
    for path in sorted(path for path in folder.iterdir() if path.name.startswith(("train", "val"))):
        if path.suffix == ".zst":
            lines = pa.input_stream(path, compression="zstd").read().splitlines()
            rows += [json.loads(line) for line in lines]
        else:
            rows += ds.dataset(path, format=path.suffix[1:]).to_table().to_pylist()
    return rows


def test_a_mixture_of_several_has_the_shares_that_were_planned(examples: Examples):
    latest = examples.folder("several") / "data/store/both/exports/parquet/latest"
    sources = read_manifest(latest).details["mixture"]

    taken = {name: sources[name]["train"]["tokens"] for name in ("articles", "code_gpt2")}

    share = taken["articles"] / sum(taken.values())
    assert abs(share - 0.6) * sum(taken.values()) <= 2048
    assert 1 < sources["code_gpt2"]["train"]["epochs"] <= 2
    assert sum(sum(row["attention_mask"]) for row in rows_of(latest)) == sum(
        part["tokens"] for parts in sources.values() for part in parts.values()
    )
