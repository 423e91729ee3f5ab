"""Evaluation texts in documents: share of their n-grams, longest run, and which texts they are."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokflow.attributes.stage import ATTRIBUTES_NAME, MATCHES_NAME
from tokflow.audit.document_trace import trace_document
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import build, declare

LONG = "How many moons has the planet that is nearest to the sun?"
SHORT = "Which colour is it?"  # of 19 tokens


def leaks(folder: Path, texts: list[str], evaluation: list[str], **fields: Any) -> Dataset:
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": text}) + "\n" for text in evaluation]
    (folder / "eval" / "q.jsonl").write_text("".join(lines))
    named = {"leaks": {"evaluation": "eval/*.jsonl", "text": "question"}}
    return declare(folder, {"a.jsonl": texts}, attributes=named, exports=["bin"], **fields)


def found(dataset: Dataset, name: str = ATTRIBUTES_NAME) -> list[dict[str, Any]]:
    stored = graph_of(dataset).output("attributes", "a.jsonl", "leaks").open()
    rows: list[dict[str, Any]] = pq.read_table(stored.file(name)).to_pylist()
    return rows


def grams(text: str, n: int) -> list[bytes]:
    data = text.encode()
    return [data[i : i + n] for i in range(len(data) - n + 1)]


def expected(text: str, evaluation: list[str]) -> tuple[float, int]:
    """Return share and run by brute force, over all evaluation texts."""
    best = (0.0, 0)
    for of in (spelling for text_ in evaluation for spelling in (text_, f" {text_}")):
        n = 8 if len(of.encode()) < 30 else 13
        known = {gram for gram in grams(of, n) if len(set(gram)) >= 0.6 * n}
        is_in = [gram in known for gram in grams(text, n)]
        runs = "".join("x" if one else " " for one in is_in).split()
        share = len(known & set(grams(text, n))) / len(known) if known else 0.0
        run = max(map(len, runs), default=0) + n - 1 if runs else 0
        best = max(best, (share, run), key=lambda one: one[0])
    return best


@pytest.mark.parametrize("seed", range(3))
def test_share_and_run_are_those_of_brute_force(tmp_path: Path, seed: int):
    drawn = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz "
    evaluation = ["".join(drawn.choices(letters, k=drawn.randint(5, 90))) for _ in range(12)]
    texts = [""]
    for _ in range(60):
        of = drawn.choice(evaluation)
        start, stop = sorted(drawn.choices(range(len(of) + 1), k=2))
        around = ["".join(drawn.choices(letters, k=drawn.randint(0, 40))) for _ in range(2)]
        texts.append(around[0] + of[start:stop] + around[1])
    dataset = leaks(tmp_path, texts, evaluation)
    build(dataset)

    rows = found(dataset)
    assert [of["contamination"] for of in rows] == [expected(t, evaluation)[0] for t in texts]
    assert [of["contamination_run"] for of in rows] == [expected(t, evaluation)[1] for t in texts]
    assert sum(of["contamination"] > 0 for of in rows) > 10
    assert problems_of(dataset) == []


def test_what_leaks_is_left_out_named_and_shown(tmp_path: Path):
    texts = [f"Before. {LONG} After.", "nothing of it", f"{LONG[:30]} and so on", SHORT]
    select = "contamination < 0.5"
    dataset = leaks(tmp_path, texts, [LONG, SHORT, "short"], select=select)
    build(dataset)

    assert [of["contaminated_by"] for of in found(dataset)] == [
        *("q.jsonl, row 0", None, "q.jsonl, row 0", "q.jsonl, row 1"),
    ]
    matches = {(of["document"], of["ngram"]) for of in found(dataset, MATCHES_NAME)}
    assert matches == {(0, LONG[:13]), (2, LONG[:13]), (3, SHORT[:8])}
    manifest = graph_of(dataset).output("attributes", "a.jsonl", "leaks").manifest()
    assert manifest.details["too_short"] == ["q.jsonl, row 2"]
    assert manifest.counts["num_contaminated"] == 3
    trace = trace_document(dataset, "a.jsonl", 0)
    assert trace.why_not == "left out by select: contamination < 0.5"
    assert trace.values["leaks.contaminated_by"] == "q.jsonl, row 0"
    assert trace_document(dataset, "a.jsonl", 2).why_not is None


def test_runs_of_one_token_count_for_nothing(tmp_path: Path):
    table = "a" + " " * 40 + "b"
    dataset = leaks(tmp_path, [f"x{table}y", " " * 100], [table])
    build(dataset)

    assert [of["contamination"] for of in found(dataset)] == [0.0, 0.0]
    manifest = graph_of(dataset).output("attributes", "a.jsonl", "leaks").manifest()
    assert manifest.counts["num_too_short"] == 1


def test_other_evaluation_texts_make_no_token_again(tmp_path: Path):
    build(leaks(tmp_path, [LONG], [LONG], select="contamination < 0.5"))

    other = leaks(tmp_path, [LONG], [SHORT], select="contamination < 0.5")
    stages = [of.output.stage for of in make_plan(other).missing]
    assert stages == ["attributes", "selection", "split", "export"]


def test_a_text_is_found_behind_a_space_and_by_the_name_of_its_file(tmp_path: Path):
    vocabulary = {"kind": "trained", "vocab_size": 400}
    texts = [f"Q: {LONG}"] * 9 + ["other"]
    dataset = leaks(tmp_path, texts, [LONG], tokenizer=vocabulary)
    build(dataset)
    assert found(dataset)[0]["contamination"] > 0.9

    (tmp_path / "eval/q.jsonl").rename(tmp_path / "eval/other.jsonl")
    build(dataset)
    assert found(dataset)[0]["contaminated_by"] == "other.jsonl, row 0"


def test_what_many_evaluation_texts_share_counts_for_none(tmp_path: Path):
    told = "Read the following passage and answer with one letter."
    evaluation = [f"{told} {chr(97 + number) * 3}{LONG[number:]}" for number in range(12)]
    dataset = leaks(tmp_path, [told, evaluation[3]], evaluation)
    build(dataset)

    assert [of["contamination"] for of in found(dataset)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"columns": {"contamination": "text"}}, "attributes.leaks"),
        ({"files": "eval/*.jsonl"}, "attributes.leaks"),
        ({"evaluation": "nowhere/*"}, "attributes.leaks.evaluation"),
    ],
)
def test_what_is_no_evaluation_is_an_error_with_its_place(
    tmp_path: Path, fields: dict[str, Any], where: str
):
    named = {"leaks": {"evaluation": "eval/*.jsonl", **fields}}
    with pytest.raises(ConfigError, match=where):
        recipe_of(declare(tmp_path, {"a.jsonl": ["text"]}, attributes=named))


def recipe_of(dataset: Dataset) -> Any:
    return graph_of(dataset).output("attributes", "a.jsonl", "leaks").recipe
