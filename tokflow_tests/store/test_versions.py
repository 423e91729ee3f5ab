import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tokflow.audit.verify import verify_path
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store import versions
from tokflow.store.versions import Change, other_versions
from tokflow_tests.cli.commands import run
from tokflow_tests.tiny import build, declare, declare_small, write_yaml

FILES = {"a.jsonl": ["one"], "b.jsonl": ["two"]}


def edit_run(folder: Path, **changed: str) -> None:
    run = json.loads((folder / "_tokflow/run.json").read_text())
    run["versions"] |= changed
    (folder / "_tokflow/run.json").write_text(json.dumps(run))


def test_the_versions_that_made_an_output_stand_beside_it_and_not_in_its_manifest(tmp_path: Path):
    made = build(declare(tmp_path, FILES)).made

    assert made[-1].output.stage == "sequences"
    assert made[-1].run["versions"]["pyarrow"] == version("pyarrow")
    assert version("pyarrow") not in (made[-1].folder / "_tokflow/manifest.json").read_text()


def test_another_version_makes_nothing_stale_and_plan_and_verify_name_it(tmp_path: Path):
    dataset = declare(tmp_path, FILES)
    for made in build(dataset).made:
        edit_run(made.folder, pyarrow="1.0")
    now = version("pyarrow")

    plan = make_plan(dataset)

    assert plan.is_up_to_date
    assert plan.library_changes() == [f"pyarrow 1.0 -> {now} since: not known to differ"]
    for verified in verify_path(dataset.store.root):
        assert verified.problems == ()
        assert f"pyarrow 1.0 -> {now} since: not known to differ" in verified.notes


def test_a_version_that_is_known_to_differ_makes_its_outputs_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare(tmp_path, FILES, exports=["bin"])
    build(dataset)
    change = Change(library="pyarrow", version="2.1", stages=("tokens",), what="sort dictionaries")

    monkeypatch.setattr(versions, "CHANGES", (change,))
    reasons = {(one.stage, one.name): one.reason for one in make_plan(dataset).missing}
    built = build_dataset(dataset)

    why = "code changed (pyarrow 2.1 is known to sort dictionaries)"
    assert [reasons["tokens", key] for key in FILES] == [why, why]
    assert reasons["split", "a.jsonl"] == "input changed (tokens)"
    assert reasons["export", "bin"].startswith("input changed (a.jsonl, b.jsonl")
    assert built.num_new == 2 * 2 + 1
    assert make_plan(dataset).is_up_to_date


@pytest.mark.parametrize(("library", "since"), [("pyarrow", "999.0"), ("tiktoken", "0.1")])
def test_a_change_of_a_later_version_or_of_another_tokenizer_is_no_change(
    library: str, since: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare(tmp_path, FILES)  # a token is a byte
    build(dataset)
    change = Change(library=library, version=since, stages=("tokens",), what="differ")

    monkeypatch.setattr(versions, "CHANGES", (change,))

    assert make_plan(dataset).is_up_to_date


def test_libraries_of_two_machines_differ_where_both_have_them():
    driver = {"tokenizers": "0.23.1", "pyarrow": "24.0", "pylance": "14.0"}
    node = {"tokenizers": "0.23.2", "pyarrow": "24.0", "tensorstore": "0.1"}

    assert other_versions(node, driver) == ["tokenizers 0.23.2 in place of 0.23.1"]
    assert other_versions(driver, driver) == []


def test_a_run_over_tokens_that_another_version_made_says_so(tmp_path: Path):
    dataset = declare_small(tmp_path, exports=[])
    for made in build(dataset).of("tokens"):
        edit_run(made.folder, pyarrow="1.0")
    yaml = write_yaml(tmp_path, exports=["bin"])

    printed = run("run", "--config", yaml).stdout

    assert f"tokens of two versions of a library: pyarrow 1.0 -> {version('pyarrow')}" in printed
