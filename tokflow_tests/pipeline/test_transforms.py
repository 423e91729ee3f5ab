"""Datasets whose documents a user's function makes: every stage closes, whatever makes it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.cli.closing_summary import left_out
from tokflow.documents import ranges
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.tokens import shard_files
from tokflow_tests.outputs import edit_manifest, problems_of
from tokflow_tests.tiny import declare, write_raw

SOURCE = """
import os
with open({log!r}, "a") as file:
    print(os.getpid(), file=file)

def words(text):
    if text == "boom":
        raise ValueError("no text")
    return [word for word in text.split() if word != "-"]
"""

TEXTS = [
    text
    for number in range(12)
    for text in (f"w{number} ä{number}", "-", "boom" if number % 3 == 2 else "", f"end{number}")
]
"""48 records, for every three numbers of which 4 + 2 + 1 + 1 + ... rows."""

FILES = {"a.jsonl": TEXTS, "b.jsonl": ["-", "b1 b2"], "c.jsonl": ["-"], "d.jsonl": ["d", "-"]}

SMALL_FILES = {f"{n:02d}.jsonl": TEXTS[4 * n : 4 * n + 4] for n in range(12)}

SPLIT = {
    "parts": {"train": {"start": 0, "characters": 31}, "rest": {"start": 31}},
    "boundary": "character",
}


@pytest.fixture(autouse=True)
def _two_ranges_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "WHOLE_RANGES", 1)


def dataset_in(folder: Path, **attributes: Any) -> Dataset:
    folder.mkdir(exist_ok=True)
    (folder / "clean.py").write_text(SOURCE.format(log=str(folder / "log")))
    documents = {"transform": "clean:words", "on_bad_document": "reject"}
    documents |= attributes.pop("documents", {})
    files = attributes.pop("files", FILES)
    fields = {"split": SPLIT, "exports": ["bin", "parquet"], **attributes}
    return declare(folder, files, documents=documents, **fields)


def built(dataset: Dataset, jobs: int = 1) -> BuildGraph:
    assert build_dataset(dataset, jobs=jobs).failed == ()
    return graph_of(dataset)


def test_documents_rejects_and_what_is_left_out_are_all_records(tmp_path: Path):
    result = build_dataset(dataset_in(tmp_path), jobs=1)
    graph = result.made[0].output.graph
    shard = graph.open_tokens("a.jsonl")
    table = shard.documents()

    counts = shard.manifest.counts
    num_bad, num_empty = 4, 20
    assert {name: counts[name] for name in counts if name.split("_")[1] in (
        "records", "documents", "rejects", "left")} == {
        "num_records": 48, "num_documents": 36, "num_rejects": num_bad, "num_left_out": num_empty,
    }  # fmt: skip
    assert table["record"].to_pylist()[:6] == [0, 0, 3, 4, 4, 7]
    assert table["row"].to_pylist()[:6] == [0, 1, 4, 5, 6, 9]
    rejects = (shard.folder / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["record"] for line in rejects] == [10, 22, 34, 46]
    assert "left out by clean:words: 23 records" in left_out(graph.dataset, result)
    assert result.notices[0].text.startswith("rejected: 4 documents: ")
    assert problems_of(graph.dataset) == []


def test_a_dataset_without_a_transform_has_no_trace_of_it(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["a"]})
    shard = built(declare(tmp_path)).open_tokens("a.jsonl")

    assert "record" not in shard.documents().column_names
    assert "transform" not in (shard.folder / "_tokflow/manifest.json").read_text()
    assert not {"num_records", "num_left_out"} & set(shard.manifest.counts)


@pytest.mark.parametrize(("files", "group"), [(FILES, None), (SMALL_FILES, 12)])
def test_segments_and_groups_give_what_whole_files_give(
    files: dict[str, list[str]], group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    raw = {"files": "raw/*.jsonl", "group": group}
    shards, folders = [], []
    for number in (10**9, 150):
        monkeypatch.setattr(ranges, "RANGE_BYTES", number)
        graph = built(dataset_in(tmp_path / str(number), raw=raw, files=files))
        assert problems_of(graph.dataset) == []
        shards.append(graph.open_tokens(next(iter(graph.partitions))))
        folders.append(graph.named("export", "bin").folder)

    whole, cut = shards
    assert len(cut.segments) > 1
    assert cut.documents().equals(whole.documents())
    assert cut.manifest.counts == whole.manifest.counts
    assert cut.manifest.details.get("files") == whole.manifest.details.get("files")
    rejects = [(shard.folder / "rejects.jsonl").read_bytes() for shard in (whole, cut)]
    assert rejects[0] == rejects[1]
    [one, other] = folders
    for name in ("train.bin", "rest.bin", "_tokflow/index.parquet"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_workers_run_the_function_and_make_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "SMALL_BYTES_OF_SLOW_ENGINES", 0)
    monkeypatch.setattr(tasks, "SMALL_BYTES_OF_TRANSFORMS", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)
    alone = built(dataset_in(tmp_path / "1"))
    both = built(dataset_in(tmp_path / "2"), jobs=2)

    pids = [set((tmp_path / name / "log").read_text().split()) for name in ("1", "2")]

    assert len(pids[0]) == 1
    assert pids[1] - pids[0]
    [one, other] = [graph.open_tokens("a.jsonl").folder for graph in (alone, both)]
    for name in ("tokens.bin", "documents.parquet", "rejects.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_plan_runs_nothing_and_an_edit_makes_the_tokens_again(tmp_path: Path):
    dataset = dataset_in(tmp_path)
    make_plan(dataset)
    assert not (tmp_path / "log").exists()
    built(dataset)
    with (tmp_path / "clean.py").open("a") as file:
        file.write("# a comment\n")

    edited = declare(tmp_path, documents=dataset.documents.model_dump(), split=SPLIT)
    versioned = {"transform": "clean:words", "transform_version": "2"}

    reasons = {of.name: of.reason for of in make_plan(edited).missing if of.stage == "tokens"}
    assert reasons["a.jsonl"] == "config changed (documents.transform_sha256)"
    built(edited)
    again = declare(tmp_path, documents={**versioned, "on_bad_document": "reject"}, split=SPLIT)
    assert {of.stage for of in make_plan(again).missing} == {"tokens", "split", "sequences"}


def test_a_token_leads_to_the_record_that_it_came_from(tmp_path: Path):
    raw = {"files": "raw/*.jsonl", "group": 10}
    folder = built(dataset_in(tmp_path, raw=raw)).named("export", "bin").folder

    origins = trace_tokens(folder, part="rest", start=0, stop=10**6)

    made = [(of.raw_file, of.record, of.text) for of in origins]
    assert made[-3:] == [("b.jsonl", 1, "b1"), ("b.jsonl", 1, "b2"), ("d.jsonl", 0, "d")]
    for raw_file, record, text in made:
        assert record is not None
        assert text in FILES[raw_file][record]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return text if is_first else None", "expected the 0 documents of the raw file, found 2"),
        ("return text if is_first else [text] * 2", "expected all documents of the raw"),
        ("return text if is_first else text.upper()", "the text is not the same"),
        ("return 5 if is_first and text == 'b' else None if text == 'b' else text",
         "expected 1 records left out by documents.transform, found 0"),
    ],
)  # fmt: skip
def test_verify_finds_that_the_function_gives_something_else_now(
    body: str, said: str, tmp_path: Path
):
    source = (
        f"import sys\ndef words(text):\n    is_first = not hasattr(sys, 'is_later')\n    {body}"
    )
    (tmp_path / "clean.py").write_text(source)
    documents = {"transform": "clean:words", "on_bad_document": "reject"}
    dataset = declare(tmp_path, {"a.jsonl": ["a", "b"]}, documents=documents)
    built(dataset)
    assert problems_of(dataset) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "is_later", True, raising=False)
        found = problems_of(dataset)

    assert any(said in problem for problem in found), found


def test_verify_finds_counts_that_do_not_close(tmp_path: Path):
    graph = built(dataset_in(tmp_path))
    shard = graph.open_tokens("a.jsonl")

    for name, said in (
        ("num_left_out", "expected num_records 48, found 47"),
        ("num_records", "expected num_records 47, found 48"),
    ):
        counts = {**shard.manifest.counts, name: shard.manifest.counts[name] - 1}
        edit_manifest(shard.folder, lambda manifest, to=counts: manifest.update(counts=to))

        assert any(said in problem for problem in problems_of(graph.dataset))


def test_a_trained_tokenizer_sees_what_the_function_makes(tmp_path: Path):
    source = "def twice(text):\n    return None if 'q' in text else [text, text]\n"
    (tmp_path / "clean.py").write_text(source)
    tokenizer = {"kind": "trained", "vocab_size": 300}
    files = {"a.jsonl": ["abab abab", "qq qq qq"]}
    dataset = declare(tmp_path, files, documents={"transform": "clean:twice"}, tokenizer=tokenizer)

    origin = built(dataset).output("tokenizer").manifest().details["origin"]

    assert (origin["num_documents"], origin["num_characters"]) == (2, 18)
