import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import ConfigError, TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.run import build_dataset
from tokflow.record.receipt import (
    OF_RECEIPT,
    check_dataset,
    check_rebuilt,
    check_store,
    leaves_of,
    merkle_root,
    signed,
    statement_in,
    statement_of,
)
from tokflow.store.manifest import MANIFEST_NAME, indented
from tokflow.store.stored_outputs import opened
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import edit_manifest
from tokflow_tests.record.keys import write_keys
from tokflow_tests.tiny import TEXTS, build, declare_small, write_raw, write_yaml

RECEIPT = Path("receipt.json")

SELECTED = {
    "select": "not near_duplicate and num_tokens >= 5",
    "near_duplicates": {"threshold": 0.7},
    "split": {"parts": {"train": {"fraction": 0.5}, "validation": {"fraction": 0.5}}},
}


def statement_about(dataset: Dataset, export: str = "bin", **how: Any) -> dict[str, Any]:
    built = build_dataset(dataset, **how)
    assert not built.failed
    return statement_of(built.export(export).stored, Ancestry())


def root_of(statement: dict[str, Any]) -> str:
    return str(statement["predicate"]["merkle_root"])


def test_the_root_is_that_of_rfc_9162():
    leaves = {name: hashlib.sha256(b"\0" + name.encode()).hexdigest() for name in "abcde"}
    a, b, c, d, e = (bytes.fromhex(of) for of in leaves.values())

    def node(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(b"\1" + left + right).digest()

    assert merkle_root(leaves) == node(node(node(a, b), node(c, d)), e).hex()
    assert merkle_root({"a": leaves["a"]}) == leaves["a"]


def test_a_leaf_can_be_computed_from_the_manifest_by_hand(tmp_path: Path):
    dataset = declare_small(tmp_path)
    leaves = statement_about(dataset)["predicate"]["leaves"]

    for name, below in (("small/export", "exports/bin/latest"), ("small/tokenizer", "tokenizer/*")):
        [manifest] = dataset.folder.glob(f"{below}/{MANIFEST_NAME}")
        fields = json.loads(manifest.read_bytes())
        del fields["digest"]
        fields["details"].pop("origin", None)
        fields["details"].pop("reference", None)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert leaves[name] == hashlib.sha256(b"\0" + text.encode()).hexdigest()


@pytest.mark.parametrize("attributes", [{}, SELECTED], ids=["plain", "selected"])
@pytest.mark.parametrize("export", ["bin", "parquet"])
def test_two_folders_worker_counts_and_orders_give_one_root(
    attributes: dict[str, Any], export: str, tmp_path: Path
):
    one = statement_about(declare_small(tmp_path / "one", **attributes), export, jobs=1)
    other = declare_small(tmp_path / "another/folder", **attributes)
    for key in reversed([*TEXTS]):  # each file alone, the last one first
        build_dataset(other, partitions=[key], jobs=2)
    card = {"license": "mit"}
    again = declare_small(tmp_path / "another/folder", **attributes, card=card, keep="exports")
    two = statement_about(again, export, jobs=2)

    assert root_of(one) == root_of(two)
    assert one["subject"] == two["subject"]
    assert one["predicate"]["leaves"] == two["predicate"]["leaves"]
    stages = {of.split("/")[1] for of in one["predicate"]["leaves"]}
    assert {"tokenizer", "tokens", "split", "export"} <= stages
    assert not attributes or {"near_duplicates", "selection"} <= stages


def test_a_mixture_has_its_sources_below_the_root(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    roots = set()
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_raw(folder, TEXTS)
        path = write_mixture(folder)
        mixture = load_datasets(path)[-1]
        statement = statement_about(mixture)
        roots.add(root_of(statement))
        assert {"a/tokens/a.jsonl", "b/tokens/b.jsonl", "mix/export", "a/split/a.jsonl"} <= (
            statement["predicate"]["leaves"].keys()
        )
        assert statement["predicate"]["raw_files"].keys() == {"a/a.jsonl", "b/b.jsonl"}
    assert len(roots) == 1


def write_mixture(folder: Path) -> Path:
    each = {"tokenizer": "bytes", "packing": {"sequence_length": 4}, "store": "store"}
    sources = {name: {**each, "raw": {"files": f"raw/{name}.jsonl"}} for name in "ab"}
    mix = {"mixture": {"sources": {"a": {"weight": 1}, "b": {"weight": 1}}}, "store": "store"}
    mix |= {"exports": ["bin"], "packing": {"sequence_length": 4}}
    path = folder / "mixture.yaml"
    path.write_text(json.dumps({"datasets": {**sources, "mix": mix}}))
    return path


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "pattern",
    [
        "raw/b.jsonl",
        f"store/small/split/b.jsonl/*/{MANIFEST_NAME}",
        "store/small/exports/bin/latest/train.bin",
        "store/small/tokens/b.jsonl/*/tokens.bin",
    ],
)
def test_a_changed_byte_is_named_with_what_was_expected_and_found(pattern: str, tmp_path: Path):
    dataset = declare_small(tmp_path)
    statement = statement_about(dataset)
    assert list(check_dataset(statement, dataset)) == []
    [path] = tmp_path.glob(pattern)
    flipped(path)

    try:
        problems = list(check_dataset(statement, dataset))
    except TokflowError as error:  # of a manifest, behind which nothing can be found
        problems = [str(error)]

    [problem] = problems
    name = "raw file small/b.jsonl" if pattern.startswith("raw") else str(path.resolve())
    assert problem.startswith(f"{name}: expected ")
    assert ", found " in problem


def test_a_manifest_that_was_sealed_again_is_found(tmp_path: Path):
    dataset = declare_small(tmp_path)
    statement = statement_about(dataset)

    edit_manifest(dataset.folder / "exports/bin/latest", lambda of: of["details"].update(eos_id=7))

    export, root = check_store(statement, dataset.store, dataset.folder)
    assert export.startswith("manifest small/export: expected sha256 ")
    assert root.startswith(f"Merkle root: expected sha256 {root_of(statement)}")


def test_leaves_of_another_root_are_no_receipt(tmp_path: Path):
    dataset = declare_small(tmp_path)
    statement = statement_about(dataset)
    statement["predicate"]["merkle_root"] = "0" * 64

    [problem] = check_store(statement, dataset.store, dataset.folder)

    assert problem.startswith("Merkle root: expected sha256 0000")


def test_a_build_from_raw_files_has_the_root_until_one_is_another(tmp_path: Path):
    statement = statement_about(declare_small(tmp_path), "parquet")
    fresh = declare_small(tmp_path, store=str(tmp_path / "fresh"))

    assert list(check_rebuilt(statement, fresh)) == []

    flipped(tmp_path / "raw/a.jsonl")
    stat = (tmp_path / "raw/a.jsonl").stat()
    os.utime(tmp_path / "raw/a.jsonl", (stat.st_mtime + 5, stat.st_mtime + 5))
    found = list(check_rebuilt(statement, declare_small(tmp_path, store=str(tmp_path / "other"))))
    names = [of.partition(":")[0] for of in found]
    assert names[0] == "raw file small/a.jsonl"
    assert {"manifest small/tokens/a.jsonl", "manifest small/export"} <= {*names}
    assert "manifest small/tokens/b.jsonl" not in names
    assert names[-1] == "Merkle root"


def test_a_copied_store_is_found_from_any_folder_above_the_export(tmp_path: Path):
    statement = statement_about(declare_small(tmp_path))
    store = Path(shutil.copytree(tmp_path / "store", tmp_path / "elsewhere", symlinks=True))

    for below in ("", "small", "small/exports", "small/exports/bin", "small/exports/bin/latest"):
        assert list(check_store(statement, *opened(store / below))) == []


def test_a_store_at_a_url_is_compared(object_store: ObjectStore, tmp_path: Path):
    here = statement_about(declare_small(tmp_path))
    there = statement_about(declare_small(tmp_path, store=object_store.url))

    assert root_of(here) == root_of(there)
    assert list(check_store(here, *opened(object_store.url))) == []
    [key] = [key for key in object_store.contents() if key.endswith("train.bin")]
    object_store.put(key, b"other")
    assert len(list(check_store(here, *opened(object_store.url)))) == 1


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_a_statement_is_signed_and_any_change_of_it_is_found(
    curve: ec.EllipticCurve, tmp_path: Path
):
    statement = {"subject": [], "predicate": dict.fromkeys(sorted(OF_RECEIPT), "ab")}
    private, public = write_keys(tmp_path, curve, password=b"secret")
    bundle = signed(indented(statement), private, b"secret")

    found, said = statement_in(bundle, where=RECEIPT, key=public)
    assert (found, said) == (statement, f"signed by the key in {public}")
    assert statement_in(bundle, where=RECEIPT)[1].startswith("signed; name the public key")
    fields = json.loads(bundle)
    fields["dsseEnvelope"]["payload"] = fields["dsseEnvelope"]["payload"].replace("A", "B", 1)
    (tmp_path / "other").mkdir()
    del statement["predicate"]["leaves"]
    other = signed(indented(statement), private, b"secret")
    for data, key in (
        (other, public),
        (json.dumps(fields).encode(), public),
        (bundle, write_keys(tmp_path / "other", curve)[1]),
        (indented(statement), public),
    ):
        with pytest.raises(TokflowError, match=r"expected (a signature by|an in-toto statement)"):
            statement_in(data, where=RECEIPT, key=key)


def test_what_is_no_private_ec_key_is_refused(tmp_path: Path):
    private, public = write_keys(tmp_path, password=b"secret")

    for key, password in ((public, None), (private, b"wrong"), (private, None), (tmp_path, None)):
        with pytest.raises(ConfigError, match="expected a private key in PEM"):
            signed(b"{}", key, password)


def test_a_receipt_is_written_signed_and_verified_by_commands(tmp_path: Path):
    from tokflow_tests.cli.commands import run

    declare_small(tmp_path)
    config = write_yaml(tmp_path, exports=["bin"])
    build(load_datasets(config)[0])
    private, public = write_keys(tmp_path)
    receipt = tmp_path / "out/small-bin.receipt.json"

    written = run("receipt", "small", "--config", config, "--key", private, "-o", tmp_path / "out")

    assert written.exit_code == 0, written.output
    how = ["--receipt", receipt, "--key", public]
    for arguments in (
        [tmp_path / "store"],
        ["--config", config],
        ["--config", config, "--rebuild"],
    ):
        verified = run("verify", *arguments, *how)
        assert verified.exit_code == 0, verified.output
        assert f"signed by the key in {public}: all well" in verified.stdout
    flipped(tmp_path / "raw/a.jsonl")
    for more in ([], ["--rebuild"]):
        verified = run("verify", "--config", config, *how, *more)
        assert verified.exit_code == 1
        assert "raw file small/a.jsonl: expected sha256" in verified.stderr


def test_leaves_are_equal_for_a_commit_of_lance_that_has_its_time(tmp_path: Path):
    pytest.importorskip("lance")
    leaves = []
    for name in ("one", "two"):
        built = build(declare_small(tmp_path / name, exports=["lance"]))
        leaves.append(leaves_of([built.export("lance").stored]))

    assert leaves[0] == leaves[1]
