"""`tokflow verify --excluded`: no token of what lists name is in any export, or each is named."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokflow.audit.verify.excluded import prove_excluded
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.store.manifest import MANIFEST_NAME, has_its_digest
from tokflow_tests.cli.commands import run
from tokflow_tests.exclusion.test_exclusion import BY, KEPT, ROWS, write_list
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.selection.test_stage import write_rows
from tokflow_tests.tiny import TINY, build, load_dataset

NAMED = {"row": 2, "lang": 3, "text_hash": 4}
"""Documents that each list of BY names."""


def web(folder: Path, rows: Any = ROWS, **more: Any) -> Dataset:
    """Return a dataset of some rows, and write its YAML."""
    write_rows(folder, rows)
    fields = {**TINY, "name": "web", "documents": KEPT, "exports": ["bin", "parquet"], **more}
    (folder / "web.yaml").write_text(yaml.safe_dump(fields))
    return load_dataset(folder / "web.yaml")


def mixed(folder: Path, store: str = "store") -> Dataset:
    """Return a mixture that has two passes over web."""
    sources = {"web": {"epochs": 2, "config": "web.yaml"}}
    fields = {"name": "mixed", "mixture": {"sources": sources}, "exports": ["bin"], "store": store}
    fields["packing"] = {"sequence_length": 4}
    (folder / "mixed.yaml").write_text(yaml.safe_dump(fields))
    return load_dataset(folder / "mixed.yaml")


def remove_old(dataset: Dataset) -> None:
    remove_all(dataset.store, find_garbage(dataset, keep=1))


@pytest.mark.parametrize(("by", "suffix"), [*zip(BY, ["csv", "jsonl", "parquet"], strict=True)])
def test_documents_in_an_export_are_named_until_it_is_made_without_them(
    tmp_path: Path, by: str, suffix: str
):
    named = write_list(tmp_path / f"list.{suffix}", BY[by])
    exclude = {"path": named.name, "by": by}
    build(web(tmp_path))
    before = prove_excluded(web(tmp_path, exclude={"by": by}), [named])
    build(web(tmp_path, exclude=exclude))
    beside_old = prove_excluded(web(tmp_path, exclude=exclude), [named])
    remove_old(web(tmp_path, exclude=exclude))
    after = prove_excluded(web(tmp_path, exclude=exclude), [named])

    assert before.fields["num_documents"] == NAMED[by]
    found = {(of["raw_file"], of["row"]) for of in before.fields["held"]}
    assert len(found) == NAMED[by]
    assert {of["export"].split("/")[2] for of in before.fields["held"]} == {"bin", "parquet"}
    assert beside_old.fields["held"] == before.fields["held"]
    assert (after.is_proven, len(after.fields["exports"])) == (True, 2)
    assert after.fields["num_tokens"] == before.fields["num_tokens"]
    written = after.path.read_bytes()
    assert has_its_digest(written)
    [of_list] = json.loads(written)["lists"]
    assert of_list["sha256"] == hashlib.sha256(named.read_bytes()).hexdigest()
    for of in after.fields["exports"]:
        manifest = tmp_path / "store" / of["export"] / MANIFEST_NAME
        assert of["manifest_sha256"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert prove_excluded(web(tmp_path, exclude=exclude), [named]).path.read_bytes() == written


def test_a_token_of_them_is_named_with_its_place_and_copies_where_they_are_asked_for(
    tmp_path: Path,
):
    named = write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 1}])
    build(web(tmp_path, exports=["bin"]))

    alone = prove_excluded(web(tmp_path), [named]).fields
    copies = prove_excluded(web(tmp_path, exclude={"copies": True}), [named]).fields

    assert [(of["part"], of["position"], of["num_tokens"]) for of in alone["held"]] == [
        ("train", 6, 4)  # behind "three" and its EOS
    ]
    assert (alone["num_documents"], alone["num_tokens"]) == (1, 4)
    assert {(of["raw_file"], of["row"]) for of in copies["held"]} == {
        ("a.jsonl", 1),
        ("b.jsonl", 1),
        ("c.jsonl", 1),
    }


def test_a_mixture_that_takes_the_dataset_is_looked_at_and_each_pass_is_named(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    named = write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 1}])
    web(tmp_path, store=url, exports=[])
    build(mixed(tmp_path, url))

    held = prove_excluded(web(tmp_path, store=url), [named]).fields["held"]
    of_mixture = prove_excluded(mixed(tmp_path, url), [named]).fields["held"]
    by_either = write_list(tmp_path / "both.csv", [{"file": "a.jsonl", "row": 1, "lang": "u2"}])
    web(tmp_path, store=url, exports=[], exclude={"by": "row", "copies": True})
    copies = prove_excluded(mixed(tmp_path, url), [by_either]).fields
    web(tmp_path, store=url, exports=[], exclude="list.csv")
    build(mixed(tmp_path, url))
    remove_old(mixed(tmp_path, url))
    after = prove_excluded(web(tmp_path, store=url, exclude="list.csv"), [named])

    assert {of["raw_file"] for of in held} == {"web/a.jsonl", "web@2/a.jsonl"}
    assert sum(of["num_tokens"] for of in held) == 8
    assert of_mixture == held
    assert (copies["copies"], copies["num_documents"]) == (True, 3)  # as its source has it
    assert after.is_proven
    assert object_store.contents()[f"store/web/{after.path.name}"] == after.path.read_bytes()


def test_rows_name_documents_of_the_newest_build_and_older_ones_are_searched_for_their_texts(
    tmp_path: Path,
):
    listed = [{"file": "a.jsonl", "row": 3}, {"file": "b.jsonl", "row": 1}]
    named = write_list(tmp_path / "list.csv", [*listed, {"file": "d.jsonl", "row": 0}])
    web(tmp_path, exports=[])
    build(mixed(tmp_path))
    build(web(tmp_path, exports=["bin"]))
    (tmp_path / "raw/c.jsonl").rename(tmp_path / "raw/d.jsonl")
    moved = {"a.jsonl": [("new", "u9", 1), *ROWS["a.jsonl"]]}
    dataset = web(tmp_path, moved, exports=["bin"], exclude=named.name)
    build(dataset)

    proof = prove_excluded(dataset, [named])

    held = {(of["export"].split("/")[0], of["raw_file"], of["row"]) for of in proof.fields["held"]}
    old = [("a.jsonl", 2), ("b.jsonl", 1), ("c.jsonl", 0)]
    passes = {("mixed", f"{of}/{file}", row) for of in ("web", "web@2") for file, row in old}
    assert held == {("web", *of) for of in old} | passes
    assert len([of for of in proof.fields["exports"] if not of["num_held"]]) == 1


def test_a_damaged_export_proves_nothing(tmp_path: Path):
    named = write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 1}])
    dataset = web(tmp_path, exports=["bin"], exclude="list.csv")
    built = build(dataset)
    file = built.export("bin").output.folder / "train.bin"
    file.write_bytes(b"\0" * file.stat().st_size)

    proof = prove_excluded(dataset, [named])

    assert (proof.is_proven, proof.fields["held"]) == (False, [])
    assert "train.bin" in proof.fields["problems"][0]


def test_a_list_that_names_no_document_proves_nothing(tmp_path: Path):
    named = write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 9}])
    build(web(tmp_path))

    with pytest.raises(ConfigError, match=r"--excluded: .*list.csv: expected documents of web"):
        prove_excluded(web(tmp_path), [named])


def test_the_command_says_where_they_are_and_exits_with_1(tmp_path: Path):
    named = write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 1}])
    build(web(tmp_path, exports=["parquet"]))

    result = run("verify", "--config", tmp_path / "web.yaml", "--excluded", named)

    assert result.exit_code == 1
    said = "error: a.jsonl, row 1: expected in no export, found in web/exports/parquet/"
    assert result.stderr.startswith(said)
    assert "train: tokens 6 to 7, sequence 1; name it by `exclude`" in result.stderr
    last = "web: 1 document, 4 tokens looked for in 1 export: 2 segments of them found; "
    assert result.stdout.startswith(last)
    both = run("verify", "--excluded", named, "--rebuild", "--key", named)
    both_said = "none of --receipt, --key, --rebuild, --reference, found --key, --rebuild; "
    assert (both.exit_code, both_said in both.stderr) == (2, True)
    alone = run("verify", "--receipt", named, "--reference")
    assert (alone.exit_code, "expected no --reference, found --reference; " in alone.stderr) == (
        2,
        True,
    )
