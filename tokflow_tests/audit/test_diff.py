"""`tokflow diff`: what differs between two exports, document by document, and why."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tokflow.audit.differences import compare
from tokflow.audit.sides import side_of
from tokflow.exports.reading import open_export
from tokflow.store.store import StoredOutput
from tokflow_tests.audit.verify.test_excluded import mixed, web
from tokflow_tests.cli.commands import run
from tokflow_tests.exclusion.test_exclusion import ROWS, write_list
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import index_of
from tokflow_tests.selection.test_stage import write_rows
from tokflow_tests.tiny import build, declare, write_raw

HALVES = {"train": {"hash_fraction": 0.5}, "rest": {"hash_fraction": 0.5}}
MORE = {"train": {"hash_fraction": 0.7}, "rest": {"hash_fraction": 0.3}}


def diff(a: Any, b: Any) -> dict[str, Any]:
    return compare(side_of(str(a)), side_of(str(b)), limit=None, num_shown=100)


def built(folder: Path, name: str = "bin", rows: Any = ROWS, **fields: Any) -> Path:
    """Build ROWS, or others, and return the folder of an export."""
    write_rows(folder, rows)
    fields = {"documents": {"keep_columns": ["lang"]}, "exports": [name], **fields}
    return build(declare(folder, **fields)).export(name).output.folder


def test_each_document_is_named_with_what_happened_to_it_and_why(tmp_path: Path):
    before = built(tmp_path, split={"parts": HALVES})
    write_list(tmp_path / "list.csv", [{"lang": "u1"}])
    rows = {
        **ROWS,
        "b.jsonl": [("twa", "u4", 9), *ROWS["b.jsonl"][1:]],
        "d.jsonl": [("new", "", 1)],
    }
    after = built(tmp_path, rows=rows, exclude="list.csv", split={"parts": MORE})

    found = diff(before, after)

    [output] = found["outputs"]
    assert not found["is_same"]
    assert {
        (of["raw_file"], of["row"]): (*of["kinds"], of.get("left_out_by"), of["cause"])
        for of in output["documents"]
    } == {
        ("a.jsonl", 1): ("removed", "excluded: list.csv", "selection: excluded"),
        ("b.jsonl", 0): ("changed", None, "tokens: raw"),
        ("b.jsonl", 3): ("moved", None, "split: parts.train.hash_fraction"),
        ("c.jsonl", 0): ("moved", None, "split: parts.train.hash_fraction"),
        ("c.jsonl", 1): ("removed", "excluded: list.csv", "selection: excluded"),
        ("d.jsonl", 0): ("added", None, "raw file only in B"),
    }
    assert output["documents"][1]["first_other_token"] == {
        "token": 2, "a": "two<eos>", "b": "twa<eos>"
    }  # fmt: skip
    assert output["kinds"]["changed"] == {
        "num_documents": 1, "num_tokens_a": 4, "num_tokens_b": 4
    }  # fmt: skip
    assert output["num_tokens"] == [44, 40]
    assert sum(output["causes"].values()) == 6
    assert found["raw_files"] == {
        "changed": ["tiny/b.jsonl"], "only_a": [], "only_b": ["tiny/d.jsonl"]
    }  # fmt: skip
    fields = {(of["stage"], of["field"]): (of["a"], of["b"]) for of in found["fields"]}
    assert fields["split", "parts.train.hash_fraction"] == (0.5, 0.7)
    assert {stage for stage, _ in fields} == {"tokens", "selection", "split"}
    [tokens] = [of for of in found["stages"] if of["stage"] == "tokens"]
    assert [*tokens.values()][1:] == [2, ["tiny/b.jsonl"], ["tiny/d.jsonl"]]


def test_another_order_and_another_format_are_told_from_other_tokens(tmp_path: Path):
    stream = built(tmp_path)
    shuffled = built(tmp_path, shuffle={"documents": "dataset", "seed": 1})
    numpy = built(tmp_path, "npy")
    copy = Path(shutil.copytree(stream, tmp_path / "copy"))

    results = [diff(stream, of)["outputs"][0] for of in (copy, shuffled, numpy)]

    assert [of["result"] for of in results] == [
        "same bytes",
        "same tokens in another order",
        "same tokens in the same order, in other files",
    ]
    assert results[1]["documents"] == results[2]["documents"] == []


def test_of_a_store_the_build_counts_that_latest_leads_to(tmp_path: Path):
    first = built(tmp_path)
    other = built(tmp_path, select="num_chars > 3")
    built(tmp_path)

    assert diff(tmp_path / "store", first)["is_same"]
    assert not diff(tmp_path / "store", other)["is_same"]
    latest = first.parent / "latest"
    latest.unlink()
    latest.symlink_to("0123456789abcdef")  # it dangles
    assert diff(tmp_path / "store", other)["is_same"]  # which was made last


@pytest.mark.parametrize("packing", [{"overlap": 3}, {"label_token": True}])
def test_tokens_that_sequences_repeat_count_once(tmp_path: Path, packing: dict[str, Any]):
    rows = {"b.jsonl": ROWS["b.jsonl"]}
    once, more = (
        built(tmp_path, "parquet", rows, packing={"sequence_length": 4, **of})
        for of in ({}, packing)
    )
    rows = {"b.jsonl": [("twa", "u4", 9), *ROWS["b.jsonl"][1:]]}
    other = built(tmp_path, rows=rows)

    copy = shutil.copytree(more, tmp_path / "copy")  # of which all tokens are read
    [same], [changed] = diff(once, copy)["outputs"], diff(more, other)["outputs"]

    assert same["result"] == "same tokens in the same order, in other files"
    assert same["num_tokens"] == [13, 13]
    [two] = changed["documents"]
    assert two["first_other_token"] == {"token": 2, "a": "two<eos>", "b": "twa<eos>"}


@pytest.mark.parametrize("has_stores", [True, False])
def test_tokens_are_read_where_hashes_say_nothing(tmp_path: Path, has_stores: bool):
    """BOS in place of EOS: as many tokens of the same texts."""
    tokenizers = [{"eos": "last"}, {"eos": "none", "bos": "first"}]
    one, other = (built(tmp_path, tokenizer={"kind": "bytes", **of}) for of in tokenizers)
    rows = {**ROWS, "b.jsonl": [("owt", "u4", 9), *ROWS["b.jsonl"][1:]]}
    third = built(tmp_path, rows=rows)
    exports = [one, other, third]
    if not has_stores:
        exports = [Path(shutil.copytree(of, tmp_path / of.name)) for of in exports]

    all_changed, one_changed = (diff(exports[0], of)["outputs"][0] for of in exports[1:])

    assert all_changed["kinds"]["changed"]["num_documents"] == 10
    assert [(of["raw_file"], of["row"]) for of in one_changed["documents"]] == [("b.jsonl", 0)]


def test_a_document_whose_parts_take_another_half_of_it_each_is_changed(tmp_path: Path):
    halves = {"characters": 2}, {"start": 2}
    sides = []
    for parts in (dict(zip("xy", halves, strict=True)), dict(zip("yx", halves, strict=True))):
        split = {"scope": "dataset", "boundary": "character", "parts": parts}
        how = {"split": split, "tokenizer": {"kind": "bytes", "eos": "none"}}
        sides.append(built(tmp_path, rows={"a.jsonl": [("abcd", "", 0)]}, **how))

    [document] = diff(*sides)["outputs"][0]["documents"]

    assert document["kinds"] == ["changed"]
    assert document["num_tokens_a"] == document["num_tokens_b"] == {"x": 2, "y": 2}


def test_a_document_that_is_cut_elsewhere_into_as_many_tokens_is_changed(tmp_path: Path):
    """Of `aa` and `a`, and of `aa` twice: two tokens each, from the first character on."""
    sides = []
    for num in (3, 4):
        split = {"boundary": "character", "parts": {"x": {"characters": num}}}
        how = {"split": split, "tokenizer": {"kind": "trained", "vocab_size": 258, "eos": "none"}}
        sides.append(built(tmp_path, rows={"a.jsonl": [("aaaaa", "", 0)]}, **how))

    [document] = diff(*sides)["outputs"][0]["documents"]

    assert document["kinds"] == ["changed"]
    assert document["num_tokens_a"] == document["num_tokens_b"] == {"x": 2}


def slow_documents(stored: StoredOutput) -> dict[tuple[str, int], dict[str, list[int]]]:
    """Return the tokens of each document in each part, one after another."""
    export, found = open_export(stored.folder), dict[tuple[str, int], dict[str, list[Any]]]()
    for part in export.parts:
        for of in index_of(stored.folder, part):
            start = of["position"]
            read = export.between(part, start, start + of["num_tokens"])
            tokens = np.concatenate([each["token_ids"] for each in read])
            place = of["char_start"], of["token_in_piece"]
            parts = found.setdefault((of["raw_file"], of["row"]), {})
            parts.setdefault(part, []).append((place, tokens.tolist()))
    return {
        document: {
            part: [(place[0], *tokens) for place, tokens in sorted(of)]
            for part, of in parts.items()
        }
        for document, parts in found.items()
    }


def slow_kinds(a: StoredOutput, b: StoredOutput) -> dict[tuple[str, int], list[str]]:
    before, after = slow_documents(a), slow_documents(b)
    found = {}
    for of in {**before, **after}:
        if of not in before or of not in after:
            found[of] = ["added" if of not in before else "removed"]
            continue
        kinds = []
        if before[of].keys() != after[of].keys():
            kinds.append("moved")
        flat = [
            [token for part in sorted(each[of]) for piece in each[of][part] for token in piece[1:]]
            for each in (before, after)
        ]
        if flat[0] != flat[1]:
            kinds.append("changed")
        if kinds:
            found[of] = kinds
    return found


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_what_a_loop_over_all_documents_finds(tmp_path: Path, seed: int):
    random = Random(seed)
    texts = {
        f"{of}.jsonl": ["x" * random.randrange(9) + str(row) for row in range(12)] for of in "abc"
    }
    sides = []
    for _ in range(2):
        for of in random.sample(sorted(texts), 2):
            at = random.randrange(12)
            texts[of][at] = texts[of][at][::-1] or "y"
            texts[of].insert(random.randrange(12), "new" * random.randrange(2))
        fields: dict[str, Any] = {
            "exports": [random.choice(["bin", "parquet", "npy"])],
            "packing": {"sequence_length": random.choice([4, 6]), "strategy": random.choice(
                ["concat", "best_fit", "one_document"])},
            "tokenizer": {"kind": "bytes", "eos": random.choice(["last", "last", "none"])},
            "split": {"parts": random.choice([HALVES, MORE])},
            "raw": {"files": "raw/*.jsonl", "group": random.choice([None, 2])},
            "select": random.choice(["", "num_chars > 2"]),
        }  # fmt: skip
        write_raw(tmp_path, texts)
        sides.append(build(declare(tmp_path, **fields)).export(fields["exports"][0]).stored)

    [output] = diff(sides[0].folder, sides[1].folder)["outputs"]

    found = {(of["raw_file"], of["row"]): of["kinds"] for of in output.get("documents", ())}
    assert found == slow_kinds(*sides)


def test_two_stores_and_two_yamls_are_compared_by_their_exports(
    tmp_path: Path, object_store: ObjectStore
):
    url = f"{object_store.url}/store"
    web(tmp_path)
    build(mixed(tmp_path))
    build(web(tmp_path))
    shutil.copy(tmp_path / "web.yaml", tmp_path / "before.yaml")
    build(web(tmp_path, store=url, select="num_chars > 3", exports=["bin"]))

    stores = diff(tmp_path / "store", url)
    yamls = run("diff", tmp_path / "before.yaml", tmp_path / "web.yaml")
    same = run("diff", tmp_path / "before.yaml", tmp_path / "store" / "web")

    assert not diff(tmp_path / "store", tmp_path / "store" / "web")["is_same"]
    assert stores["only_a"] == ["mixed/export/bin", "web/export/parquet"]
    [output] = stores["outputs"]
    assert output["causes"] == {"selection: expression": 7}
    assert {of["left_out_by"] for of in output["documents"]} == {"num_chars > 3"}
    assert yamls.exit_code == 1, yamls.output
    assert "web/export/bin: other tokens\n" in yamls.stdout
    assert "documents of web/export/bin:\na.jsonl, row " in yamls.stdout
    assert "a.jsonl, row 1 removed: 4 in train -> none (num_chars > 3)\n" in yamls.stdout
    assert (same.exit_code, same.stdout.count("same bytes")) == (0, 2)


def test_a_mixture_leads_to_what_changed_in_its_source(tmp_path: Path):
    web(tmp_path)
    before = build(mixed(tmp_path)).export("bin").output.folder
    write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 1}])
    web(tmp_path, exclude="list.csv")
    after = build(mixed(tmp_path)).export("bin").output.folder
    web(tmp_path, exclude="list.csv")
    write_rows(tmp_path, {**ROWS, "b.jsonl": [*ROWS["b.jsonl"], ("new", "", 1)]})
    longer = build(mixed(tmp_path)).export("bin").output.folder

    [output], [added] = diff(before, after)["outputs"], diff(after, longer)["outputs"]

    assert [of["raw_file"] for of in output["documents"]] == ["web/a.jsonl", "web@2/a.jsonl"]
    assert output["causes"] == {"selection: excluded": 2}
    assert added["kinds"]["added"]["num_documents"] == 2
    assert added["causes"] == {"tokens: raw": 2}


def test_a_list_is_the_cause_where_a_rule_looks_at_all_files(tmp_path: Path):
    before = build(web(tmp_path, select="not duplicate")).export("bin").output.folder
    write_list(tmp_path / "list.csv", [{"file": "a.jsonl", "row": 0}])
    dataset = web(tmp_path, select="not duplicate", exclude="list.csv")

    [output] = diff(before, build(dataset).export("bin").output.folder)["outputs"]

    assert output["causes"] == {"selection: excluded": 1}


def test_an_error_is_no_difference(tmp_path: Path):
    export = built(tmp_path)

    missing = run("diff", export, tmp_path / "nothing")
    (export / "_tokflow" / "index.parquet").write_bytes(b"")
    other = built(tmp_path, select="num_chars > 3")

    assert (missing.exit_code, run("diff", export, other).exit_code) == (2, 2)
