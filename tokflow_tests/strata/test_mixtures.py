"""Mixtures of strata, and of several parts."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tokflow.audit.document_trace import trace_documents
from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import file_statuses
from tokflow.split.mixed_split import source_and_key
from tokflow_tests.outputs import problems_of
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source, documents_of
from tokflow_tests.tiny import build, load_dataset

STRATA = {"long": "num_chars >= 8", "some": "num_chars >= 5"}
PARTS = {"parts": {"train": {"hash_fraction": 0.7}, "validation": {"hash_fraction": 0.3}}}


def texts_of(name: str, random: Random) -> dict[str, list[str]]:
    """Return texts of 4 to 11 characters, of which the first say where they are from."""
    return {
        f"{file}.jsonl": [f"{name}{file}{row:02}" + "x" * random.randrange(8) for row in range(30)]
        for file in range(random.randrange(1, 4))
    }


def declared(folder: Path, mixture: dict[str, Any], *, seed: int = 0, **more: Any) -> Dataset:
    """Return a mixture of w, which has strata, and c, which has none."""
    random = Random(seed)
    for name, own in (("w", {"strata": more.pop("strata", STRATA)}), ("c", {})):
        declare_source(folder, name, texts_of(name, random), **{"split": PARTS, **own})
    return declare_mixture(folder, mixture, exports=["bin"], **more)


def stratum_of(text: str) -> str | None:
    return "long" if len(text) >= 8 else "some" if len(text) >= 5 else None


@pytest.mark.parametrize("seed", range(6))
def test_a_stratum_gives_what_is_planned_of_its_own_documents_alone(tmp_path: Path, seed: int):
    random = Random(seed)
    weights = {of: round(random.uniform(0.2, 3), 2) for of in ("w.long", "w.some", "c")}
    sources = {of: {"weight": num, "max_epochs": 3} for of, num in weights.items()}
    shuffle = random.choice([{}, {"documents": "dataset"}, {"documents": "file"}])
    dataset = declared(tmp_path, {"sources": sources, "seed": seed}, seed=seed, shuffle=shuffle)

    details = build(dataset).export("bin").manifest.details["mixture"]

    total = sum(of["train"]["tokens"] for of in details.values())
    for name, weight in weights.items():
        taken = details[name]["train"]
        assert taken["tokens"] == taken["planned_tokens"]
        assert abs(taken["tokens"] - total * weight / sum(weights.values())) <= 1
        assert taken["epochs"] <= 3.01
    found = Counter(documents_of(dataset, "train"))
    whole = [text for of in texts_of("w", Random(seed)).values() for text in of]
    in_train = set(found) & set(whole)
    assert {stratum_of(text) for text in in_train} == {"long", "some"}
    for stratum in STRATA:
        counts = {found[text] for text in in_train if stratum_of(text) == stratum}
        epochs = int(details[f"w.{stratum}"]["train"]["epochs"])
        assert counts <= {epochs, epochs + 1}
    assert [of for of in verify_dataset(dataset) if of.problems or of.notes] == []
    held = Counter[str]()
    for of in trace_documents(dataset.sources[0], where="row >= 0", limit=None).documents:
        [holder] = of.exports
        for tokens in holder.tokens:
            source, _ = source_and_key(tokens.raw_file)
            held[source] += tokens.num_tokens * (tokens.part == "train")
    assert held == {of: details[of]["train"]["tokens"] for of in ("w.long", "w.some")}


def test_a_dataset_gives_all_of_its_strata_in_the_order_of_its_files(tmp_path: Path):
    mixture = {"sources": {"w": {"epochs": 1.5}, "c": {"epochs": 1}}}
    some = declared(tmp_path / "some", mixture)
    total = declared(tmp_path / "total", mixture, strata={**STRATA, "rest": True})
    without = declared(tmp_path / "without", mixture, strata=None)
    for dataset in (some, total, without):
        build(dataset)

    for part in ("train", "validation"):
        documents = [of for of in documents_of(some, part) if of[0] == "w"]
        assert {stratum_of(of) for of in documents if len(of) > 4} == set(STRATA)
        assert documents_of(total, part) == documents_of(without, part)
    assert all(len(of) > 4 for of in documents_of(some, "validation") if of[0] == "w")
    assert any(len(of) == 4 for of in documents_of(total, "validation") if of[0] == "w")


def test_strata_are_sources_of_their_own_in_trace_plan_and_store(tmp_path: Path):
    sources = {"w.long": {"epochs": 2}, "w.some": {"epochs": 0.5}, "c": {"epochs": 1}}
    dataset = declared(tmp_path, {"sources": sources})
    built = build(dataset)
    texts = texts_of("w", Random(0))

    [*origins] = trace_tokens(built.export("bin").folder, part="train", start=0, stop=2_000)
    assert {of.raw_file.split("/")[0] for of in origins} == {"w.long", "w.long@2", "w.some", "c"}
    for of in origins:
        name, _, key = of.raw_file.partition("/")
        if name != "c":
            assert stratum_of(texts[key][of.row]) == name.split("@")[0].partition(".")[2]
    assert [of.problems for of in verify_path(tmp_path / "store/mixed") if of.problems] == []
    plan = make_plan(dataset)
    assert plan.is_up_to_date
    assert {of.key.partition("/")[0]: of.state for of in file_statuses(plan)} == dict.fromkeys(
        sources, "built"
    )
    assert {of.output.stage for of in built.made} >= {"split", "export"}
    heavier = {**sources, "w.some": {"epochs": 1}}
    again = declare_mixture(tmp_path, {"sources": heavier}, exports=["bin"])
    assert {of.output.stage for of in make_plan(again).missing} == {"split", "export"}
    assert {of.output.name.partition("/")[0] for of in make_plan(again).missing} == {
        *("w.some", "bin")
    }


def test_validation_is_weighed_as_train_is_and_no_text_of_it_is_taken_twice(tmp_path: Path):
    sources = {
        "w.long": {"weight": 3, "max_epochs": 4},
        "w.some": {"weight": 1},
        "c": {"weight": 1},
    }
    dataset = declared(tmp_path, {"sources": sources, "part": ["train", "validation"]})
    build(dataset)

    details = graph_of(dataset).named("export", "bin").manifest().details["mixture"]
    for part in ("train", "validation"):
        taken = {name: of[part]["tokens"] for name, of in details.items()}
        total = sum(taken.values())
        assert all(abs(taken[of] - total * sources[of]["weight"] / 5) <= 1 for of in taken)
    counts = Counter(documents_of(dataset, "validation"))
    whole = {text for name in "wc" for of in read_texts(tmp_path / name) for text in of}
    assert max(num for text, num in counts.items() if text in whole) == 1
    assert max(of["validation"]["epochs"] for of in details.values()) == 1
    assert problems_of(dataset) == []


def read_texts(folder: Path) -> list[list[str]]:
    return [
        [json.loads(line)["text"] for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]


def test_parts_have_the_tokens_that_are_given_for_each(tmp_path: Path):
    sources = {"w": {"epochs": 1}, "c": {"epochs": 0.5}}
    mixture = {"sources": sources, "part": ["train", "validation"], "tokens": {"validation": 50}}
    dataset = declared(tmp_path, mixture)
    build(dataset)

    found = graph_of(dataset).named("export", "bin").manifest().details["mixture"]
    train, validation = (
        {name: of[part]["tokens"] for name, of in found.items()} for part in mixture["part"]
    )
    assert sum(validation.values()) == 50
    assert abs(validation["w"] - 50 * train["w"] / sum(train.values())) <= 1


def test_strata_of_two_datasets_of_one_name_are_refused(tmp_path: Path):
    declared(tmp_path, {"sources": {"w": {"weight": 1}}})
    text = (tmp_path / "w.yaml").read_text()
    (tmp_path / "other.yaml").write_text(text.replace("w/*.jsonl", "c/*.jsonl"))
    fields = yaml.safe_load((tmp_path / "mixed.yaml").read_text())
    sources = {
        of: {"weight": 1, "config": f"{file}.yaml"}
        for of, file in (("w.long", "w"), ("w.some", "other"))
    }
    (tmp_path / "mixed.yaml").write_text(
        yaml.safe_dump({**fields, "mixture": {"sources": sources}})
    )

    with pytest.raises(ConfigError, match="found another of this name"):
        load_dataset(tmp_path / "mixed.yaml")
    fields["mixture"]["sources"] = {of: {"weight": 1, "config": "w.yaml"} for of in sources}
    (tmp_path / "mixed.yaml").write_text(yaml.safe_dump(fields))
    assert [of.name for of in load_dataset(tmp_path / "mixed.yaml").sources] == ["w"]


@pytest.mark.parametrize(
    ("sources", "more", "expected"),
    [
        ("w.lon", {}, "expected a stratum of w: w.long, w.some, found w.lon; did you mean"),
        ("c.long", {}, "expected c, without strata, found c.long"),
        ("w w.long", {}, "found w.long and w, which has it"),
        ("mixed.x", {}, "found the mixture itself"),
        ("w c", {"part": ["train", "train"]}, "expected one part, or several, each once"),
        ("w c", {"part": []}, "expected one part, or several, each once, found none"),
        ("w c", {"part": ["train", "test"]}, "expected a part 'test', which is mixed"),
        ("w c", {"tokens": {"validation": 9}}, "mixture: tokens: expected parts that are mixed"),
        (
            "w c",
            {"part": ["train", "validation"], "tokens": {"validation": 10_000}},
            "expected at most",
        ),
    ],
)
def test_a_source_or_part_that_is_not_there_is_refused_by_name(
    tmp_path: Path, sources: str, more: dict[str, Any], expected: str
):
    with pytest.raises(ConfigError) as caught:
        build(
            declared(tmp_path, {"sources": {of: {"weight": 1} for of in sources.split()}, **more})
        )

    assert expected in str(caught.value)
