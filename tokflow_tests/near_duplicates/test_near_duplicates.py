"""Near-duplicates: which pairs are found, which documents go, and what is made again."""

import random
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokflow.audit.document_trace import trace_document
from tokflow.errors import ConfigError
from tokflow.near_duplicates import ngrams, pairs
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import statistics_of
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import build, declare, load_dataset, write_raw, write_yaml

ALL_PAIRS = {"threshold": 0.5, "bands": 128, "rows": 1, "ngram": 3}
"""Bands of one number each: pairs that are alike are missed with a probability of 2**-128."""


def edited_texts(seed: int, num: int = 40) -> list[str]:
    """Return texts of which many are edits of others, some equal, some shorter than an n-gram."""
    drawn = random.Random(seed)
    texts = ["", "ab", "ab"]
    while len(texts) < num:
        text = [*drawn.choice(texts)] if drawn.random() < 0.7 else []
        text = text or drawn.choices("abcdefgh ", k=drawn.randint(1, 60))
        for _ in range(drawn.choice((0, 1, 1, 2, 5))):
            text.insert(drawn.randrange(len(text) + 1), drawn.choice("xyz"))
        texts.append("".join(text))
    drawn.shuffle(texts)
    return texts


def similarity(text: str, other: str) -> float:
    both = [{each[i : i + 3] for i in range(len(each) - 2)} for each in (text, other)]
    return len(both[0] & both[1]) / len(both[0] | both[1]) if all(both) else float(text == other)


def near(folder: Path, files: dict[str, Iterable[str]], select: str = "", **fields: Any) -> Dataset:
    settings = {"near_duplicates": ALL_PAIRS, "exports": ["bin"], **fields}
    return declare(folder, files, select=select, **settings)


def pairs_of(dataset: Dataset) -> Path:
    return graph_of(dataset).output("near_duplicates").open().file(pairs.PAIRS_NAME)


def kept(dataset: Dataset) -> dict[str, list[bool]]:
    graph = graph_of(dataset)
    return {key: graph.open(graph.output("selection", key)).tolist() for key in graph.partitions}


@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_those_of_brute_force_and_what_goes_is_like_what_stays(tmp_path: Path, seed: int):
    texts = edited_texts(seed)
    dataset = near(tmp_path, {"a.jsonl": texts[:25], "b.jsonl": texts[25:]}, "not near_duplicate")
    build(dataset)

    found = pq.read_table(pairs_of(dataset))["similarity"].to_pylist()
    every = (similarity(*two) for two in combinations(dict.fromkeys(texts), 2))
    assert sorted(found) == sorted(of for of in every if of >= 0.5)
    assert len(found) > 10
    stays = [of for one in kept(dataset).values() for of in one]
    left = [text for text, is_kept in zip(texts, stays, strict=True) if is_kept]
    assert all(similarity(*two) < 0.5 for two in combinations(left, 2))
    gone = [text for text, is_kept in zip(texts, stays, strict=True) if not is_kept]
    for text in gone:  # the longest stays
        assert any(similarity(text, of) >= 0.5 and len(of) >= len(text) for of in left)
    assert problems_of(dataset) == []


def test_a_copy_stays_where_the_text_it_is_like_goes_by_another_rule(tmp_path: Path):
    texts = ["a long text of some words", "a long text of some words!", "something else"]
    select = "not near_duplicate and num_chars != 26"
    dataset = near(tmp_path, {"a.jsonl": texts}, select)
    built = build(dataset)

    assert kept(dataset) == {"a.jsonl": [True, False, True]}
    assert [of["num_left_out"] for of in statistics_of(built)["select"]] == [1, 0]


def test_of_equal_texts_the_first_stays_and_no_signature_is_made(tmp_path: Path):
    files = {"a.jsonl": ["one", "two", "one"], "b.jsonl": ["two", "three"]}
    dataset = near(tmp_path, files, "not duplicate and num_chars > 0", near_duplicates={})
    build(dataset)

    assert kept(dataset) == {"a.jsonl": [True, True, False], "b.jsonl": [False, True]}
    assert not (tmp_path / "store/tiny/signatures").exists()
    reason = "left out by select: not duplicate, 1.000 like a.jsonl, row 1"
    assert trace_document(dataset, "b.jsonl", 0).why_not == reason


def test_copies_and_near_duplicates_are_counted_by_their_own_rules(tmp_path: Path):
    texts = [
        "a long text of some words",
        "a long text of some words!",
        "a long text of some words!",
    ]
    dataset = near(tmp_path, {"a.jsonl": texts}, "not near_duplicate and not duplicate")
    built = build(dataset)

    rules = {of["rule"]: of["num_left_out"] for of in statistics_of(built)["select"]}
    assert rules == {"not duplicate": 1, "not near_duplicate": 1}
    reason = "left out by select: not near_duplicate, 0.958 like a.jsonl, row 1"
    assert trace_document(dataset, "a.jsonl", 0).why_not == reason


def test_pairs_do_not_depend_on_files_and_batches_nor_on_what_was_made_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    texts = edited_texts(9, 60)
    whole = near(tmp_path / "whole", {"a.jsonl": texts})
    build(whole)
    grown = near(tmp_path / "grown", {"b.jsonl": texts[:20], "c.jsonl": texts[20:40]})
    build(grown)
    near(tmp_path / "grown", {"a.jsonl": texts[:39:-1]})
    missing = {of.output.title for of in make_plan(grown).missing}
    monkeypatch.setattr(ngrams, "BATCH_DOCUMENTS", 7)
    monkeypatch.setattr(ngrams, "CHUNK_TOKENS", 16)
    monkeypatch.setattr(ngrams, "BATCH_TOKENS", 100)
    monkeypatch.setattr(pairs, "RANGE_TEXTS", 9)
    build(grown)

    assert pairs_of(grown).read_bytes() == pairs_of(whole).read_bytes()
    assert "signatures of a.jsonl" in missing
    assert "signatures of b.jsonl" not in missing


def test_a_key_that_many_share_takes_not_the_square_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pairs, "NUM_NEIGHBOURS", 2)
    monkeypatch.setattr(pairs, "NUM_LEADERS", 1)
    texts = [f"the same beginning of all texts, and {'x' * number}" for number in range(12)]
    dataset = near(tmp_path, {"a.jsonl": texts}, "not near_duplicate")
    build(dataset)

    counts = graph_of(dataset).output("near_duplicates").manifest().counts
    assert counts["num_compared"] < 12 * 3
    assert counts["num_passed_by"] > 0
    assert sum(kept(dataset)["a.jsonl"]) == 1


def test_another_threshold_makes_no_signature_again_and_without_one_nothing_is_another_output(
    tmp_path: Path,
):
    texts = {"a.jsonl": edited_texts(1)}
    build(near(tmp_path, texts, near_duplicates={}))
    assert make_plan(near(tmp_path, texts, near_duplicates={"ngram": 7})).is_up_to_date
    build(near(tmp_path, texts))

    other = near(tmp_path, texts, near_duplicates={**ALL_PAIRS, "threshold": 0.6})
    assert [of.output.stage for of in make_plan(other).missing] == ["near_duplicates"]


@pytest.mark.parametrize(
    ("select", "found"),
    [
        ("near_duplicate", "near_duplicate"),
        ("not near_duplicate or num_chars > 3", "near_duplicate"),
        ("not (duplicate)  and not not duplicate", "duplicate"),
        ("not near_duplicate", "none"),
    ],
)
def test_copies_are_left_out_by_a_term_of_its_own_and_with_a_threshold(
    tmp_path: Path, select: str, found: str
):
    with pytest.raises(ConfigError) as raised:
        near(tmp_path, {}, select, near_duplicates={})
    assert raised.value.where.startswith("test: select")
    assert raised.value.found == found


def test_it_is_the_same_at_a_url_and_by_several_processes(
    tmp_path: Path, object_store: ObjectStore
):
    texts = edited_texts(5, 60)
    files = {"a.jsonl": texts[:30], "b.jsonl": texts[30:]}
    here = near(tmp_path / "here", files, "not near_duplicate")
    store = f"{object_store.url}/store"
    far = near(tmp_path / "far", files, "not near_duplicate", store=store)
    assert not build_dataset(here, jobs=2).failed
    build(far)

    assert pairs_of(far).read_bytes() == pairs_of(here).read_bytes()
    assert kept(far) == kept(here)
    assert problems_of(far) == []


def test_a_dataset_without_pairs_is_built_too(tmp_path: Path):
    for number, texts in enumerate(([], ["alone"], ["one text", "and another one"])):
        dataset = near(tmp_path / str(number), {"a.jsonl": texts}, "not near_duplicate")
        build(dataset)

        manifest = graph_of(dataset).output("near_duplicates").manifest()
        assert (manifest.counts["num_pairs"], manifest.details["samples"]) == (0, [])
        assert kept(dataset) == {"a.jsonl": [True] * len(texts)}


def test_a_mixture_makes_of_a_source_what_it_needs_and_is_up_to_date(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["one text", "one texts", "other"]})
    source = write_yaml(tmp_path, name="source", near_duplicates=ALL_PAIRS, exports=[])
    source.rename(tmp_path / "source.yaml")
    (tmp_path / "mix.yaml").write_text(
        "{name: mix, store: store, exports: [bin], "
        "mixture: {sources: {source: {config: source.yaml, weight: 1}}}}"
    )
    dataset = load_dataset(tmp_path / "mix.yaml")
    build(dataset)

    assert make_plan(dataset).is_up_to_date
    assert not (tmp_path / "store/source/near_duplicates").exists()


def test_partitions_that_are_built_one_by_one_are_complete_in_the_end(tmp_path: Path):
    dataset = near(tmp_path, {"a.jsonl": ["a text"], "b.jsonl": ["a text"]}, "not near_duplicate")
    for key in ("a.jsonl", "b.jsonl", "a.jsonl"):
        build_dataset(dataset, partitions=[key])

    assert make_plan(dataset).is_up_to_date


def test_a_signature_of_too_many_numbers_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError) as raised:
        near(tmp_path, {}, near_duplicates={"threshold": 0.5, "bands": 64, "rows": 9})
    assert raised.value.where == "test: near_duplicates.bands"
