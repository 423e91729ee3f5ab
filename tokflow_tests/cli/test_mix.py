"""`tokflow mix`: YAMLs of a mixture with weights drawn around the shares of its sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tokflow.cli.mix import Bounds, Draw, draw
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.projects import declare_in, make_project
from tokflow_tests.tiny import build, load_dataset

SOURCES = {"w.long": {"weight": 1, "max_epochs": 4}, "w.rest": {"weight": 1}, "c": {"weight": 1}}
AVAILABLE = {"w.long": {"train": 100}, "w.rest": {"train": 300}, "c": {"train": 600}}


def declared(folder: Path, **mixture: Any) -> Dataset:
    """Return a mixture of w, 90 tokens in long and 60 in rest, and c, 150."""
    texts = {"a.jsonl": ["eight ch"] * 10, "b.jsonl": ["short"] * 10}
    declare_source(folder, "w", texts, strata={"long": "num_chars > 5", "rest": True})
    declare_source(folder, "c", {"c.jsonl": ["code"] * 30})
    sources = {name: dict(of) for name, of in SOURCES.items()}
    return declare_mixture(folder, {"sources": sources, **mixture}, exports=["bin"])


def drawn(
    folder: Path, num: int, *, alpha: float = 1, seed: int = 0, bounds: Bounds | None = None
) -> np.ndarray:
    found, _ = draw(declared(folder), AVAILABLE, Draw(num, alpha, seed, bounds or {}))
    assert [list(of.weights) for of in found] == [list(AVAILABLE)] * num
    return np.array([list(of.weights.values()) for of in found])


def test_a_seed_gives_the_same_weights_for_ever(tmp_path: Path):
    first = drawn(tmp_path, 2, alpha=3)

    assert first.tolist() == [[0.022388, 0.135582, 0.842031], [0.511201, 0.201567, 0.287232]]
    assert drawn(tmp_path, 3, alpha=3)[:2].tolist() == first.tolist()
    assert (drawn(tmp_path, 2, alpha=3, seed=1) != first).all()


def test_weights_have_the_mean_and_the_variance_of_the_distribution(tmp_path: Path):
    shares, num, alpha = np.array([0.1, 0.3, 0.6]), 4_000, 20

    found = drawn(tmp_path, num, alpha=alpha)

    variance = shares * (1 - shares) / (alpha + 1)
    assert (np.abs(found.mean(axis=0) - shares) < 4 * np.sqrt(variance / num)).all()
    assert np.allclose(found.var(axis=0), variance, rtol=0.1)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (found > 0).all()


def test_bounds_leave_draws_as_they_were_and_heap_none_up_at_an_edge(tmp_path: Path):
    free = drawn(tmp_path, 2_000, alpha=4)
    kept = free[(free[:, 0] >= 0.05) & (free[:, 0] <= 0.3) & (free[:, 2] >= 0.5)]

    bounded = drawn(tmp_path, len(kept), alpha=4, bounds={"w.long": (0.05, 0.3), "c": (0.5, 1.0)})

    assert 400 < len(kept) < 1_500
    assert bounded.tolist() == kept.tolist()


def test_weights_that_would_repeat_a_source_too_often_are_drawn_again(tmp_path: Path):
    dataset = declared(tmp_path, tokens=500)

    found, num_refused = draw(dataset, AVAILABLE, Draw(50, 2, 0, {}))

    assert num_refused > 0
    for of in found:
        assert sum(of.tokens.values()) == 500
        assert of.tokens["w.long"] <= 400
        assert of.tokens["w.rest"] <= 300


def test_the_yamls_build_at_once_over_the_tokens_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    build(declared(tmp_path, tokens=60))
    command = ("mix", "mixed", "--config", "mixed.yaml", "--candidates", 12, "--seed", 7)

    found = json_of(*command, "--output", "some/where")
    assert found["shares"] == {"w.long": 0.3, "w.rest": 0.2, "c": 0.5}
    paths = [Path(of["path"]) for of in found["candidates"]]
    assert [path.name for path in paths] == [f"mixed-{number:02}.yaml" for number in range(12)]
    for of, path in zip(found["candidates"], paths, strict=True):
        dataset = load_dataset(path)
        plan = make_plan(dataset)
        assert {each.output.stage for each in plan.missing} == {"split", "export"}
        assert {each.output.graph.dataset.name for each in plan.missing} == {of["name"]}
    built = json_of("run", "--config", str(paths[3]))["datasets"][0]
    realised = {
        row["source"]: row["tokens"]
        for row in built["statistics"]["mixture"]
        if row["part"] == "train"
    }
    assert realised == found["candidates"][3]["tokens"]
    assert sum(realised.values()) == 60
    again = json_of(*command, "--output", "else")
    for old, new in zip(paths, again["candidates"], strict=True):
        text = old.read_text().replace("../../", "../")  # the only path
        assert Path(new["path"]).read_text() == text


def test_candidates_of_a_project_find_sources_and_store_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = make_project(tmp_path / "project")
    for name in ("c", "d"):
        (project / "data").mkdir(exist_ok=True)
        (project / f"data/{name}.txt").write_text(f"some {name}")
        raw = {"files": f"data/{name}.txt"}
        declare_in(project, name, {"name": name, "raw": raw, "tokenizer": {"kind": "bytes"}})
    mixture = {"sources": {"c": {"weight": 1}, "d": {"weight": 2}}}
    declare_in(project, "mixed", {"name": "mixed", "mixture": mixture, "exports": ["bin"]})
    monkeypatch.chdir(project)
    json_of("run", "mixed")

    for folder in (project / "mixes", tmp_path / "outside"):
        json_of("mix", "mixed", "--candidates", 2, "--output", str(folder))
        dataset = load_dataset(folder / "mixed-1.yaml")
        assert dataset.folder == project / "data/store/mixed-1"
        assert {of.output.stage for of in make_plan(dataset).missing} == {"split", "export"}
    assert graph_of(dataset).dataset.sources[0].folder == project / "data/store/c"
    text = yaml.safe_load((tmp_path / "outside/mixed-1.yaml").read_text())["attributes"]
    assert text["mixture"]["sources"]["c"]["config"] == "../project/mine/defs/c/defs.yaml"


def test_files_of_other_content_are_not_overwritten(tmp_path: Path):
    build(declared(tmp_path))
    command = ("mix", "mixed", "--config", str(tmp_path / "mixed.yaml"), "--candidates", 2)
    folder = ("--output", str(tmp_path / "mixes"))

    assert run(*command, *folder).exit_code == 0
    assert run(*command, *folder).exit_code == 0
    refused = run(*command, *folder, "--seed", 1)
    assert refused.exit_code != 0
    assert "nothing is overwritten" in refused.stderr


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Draw(1, 0, 0, {}), "--alpha: expected a number above 0, found 0"),
        (Draw(1, 1, 0, {"w": (0, 1)}), "--bounds: expected one of the sources w.long"),
        (Draw(1, 1, 0, {"c": (0.6, 0.1)}), "--bounds: expected shares, the smaller first"),
        (Draw(1, 1, 0, {"c": (0.6, 1), "w.rest": (0.6, 1)}), "shares that can add up to 1"),
        (Draw(1, 1, 0, dict.fromkeys(AVAILABLE, (0, 0.2))), "found 0 to 0.6 together"),
        (Draw(9, 1e-9, 0, {}), "--candidates: expected 9 weightings"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_says_why(tmp_path: Path, how: Draw, expected: str):
    with pytest.raises(ConfigError) as caught:
        draw(declared(tmp_path), AVAILABLE, how)

    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("mix", "w"), "expected a mixture, found a dataset with raw files"),
        (("mix", "mixed", "--bounds", "c=a:b"), "--bounds: expected a source with its least"),
        (("mix", "mixed"), "expected two sources by weight, or more, found 1 by epochs"),
    ],
)
def test_a_command_that_cannot_be_says_why(tmp_path: Path, arguments: Sequence[str], expected: str):
    declared(tmp_path)
    sources = {"c": {"epochs": 1}} if arguments == ("mix", "mixed") else dict(SOURCES)
    build(declare_mixture(tmp_path, {"sources": sources}, exports=["bin"]))
    config = tmp_path / ("w.yaml" if "w" in arguments else "mixed.yaml")

    assert expected in run(*arguments, "--config", str(config)).stderr
