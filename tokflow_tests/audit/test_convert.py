import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tokflow.audit.convert import convert_export
from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify.verification import verify_path
from tokflow.cli.app import app
from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports import FORMATS, ExportConfig
from tokflow.pipeline.dataset import Dataset
from tokflow.sequences.config import PackingConfig
from tokflow.store.manifest import read_manifest
from tokflow_tests.chats import chat_dataset
from tokflow_tests.outputs import content, edit_manifest, index_of
from tokflow_tests.tiny import EOS, build, declare

FILES = {
    "a.jsonl": ["abcdefghijk", "", "lm"],
    "b.jsonl": ["n"],
    "c.jsonl": ["", "opqrstuvwxyz", "ABC", "DEFGHI"],
}
PARTS = {
    "boundary": "character",
    "parts": {
        "train": {"start": 0, "characters": 7},
        "validation": {"start": 7, "characters": 9},
    },
}


def to(format_: str, **options: Any) -> ExportConfig:
    return ExportConfig.read({"format": format_, **options}, where="test")


def latest(dataset: Dataset, name: str) -> Path:
    return (dataset.folder / "exports" / name / "latest").resolve()


def files_of(folder: Path) -> dict[str, bytes]:
    """Return what others read of an export, but the name that hf_dataset's cache has for it."""
    return {
        name: re.sub(rb'"_fingerprint": "\w+"', b"", data) if name.endswith("state.json") else data
        for name, data in content(folder).items()
        if name != "_tokflow/manifest.json"
    }


TARGETS = list(FORMATS)
SOURCES = [name for name in TARGETS if FORMATS[name].portions is not None]
PAIRS = [
    (source, target)
    for source in SOURCES
    for target in TARGETS
    if {"bin", "parquet"} & {source, target}
]
"""Each format from a stream and from rows, and each into a stream and into rows."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("convert")
    dataset = declare(folder, FILES, split=PARTS, exports=sorted(TARGETS))
    build(dataset)
    return dataset


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_files_are_those_that_a_run_makes(
    source: str, target: str, built: Dataset, tmp_path: Path
):
    packing = PackingConfig(sequence_length=4)

    folder = convert_export(
        latest(built, source), to(target), packing=packing, output=tmp_path / "out"
    )

    assert files_of(folder) == files_of(latest(built, target))
    assert read_manifest(folder).counts == read_manifest(latest(built, target)).counts


def test_neither_store_nor_raw_files_are_needed(built: Dataset, tmp_path: Path):
    copy = tmp_path / "copied"
    shutil.copytree(latest(built, "bin"), copy)

    folder = convert_export(
        copy,
        to("parquet"),
        packing=PackingConfig(sequence_length=4),
        output=tmp_path / "elsewhere",
    )

    assert files_of(folder) == files_of(latest(built, "parquet"))
    assert [(of.name, of.problems) for of in verify_path(folder)] == [("export elsewhere", ())]


def test_the_packing_is_the_export_s_own_unless_another_is_asked_for(tmp_path: Path):
    packing = {"strategy": "one_document", "sequence_length": 3, "pad_id": 7}
    dataset = declare(tmp_path, FILES, packing=packing, exports=["parquet", "pickle"])
    build(dataset)

    same = convert_export(latest(dataset, "parquet"), to("pickle"))
    other = convert_export(
        latest(dataset, "parquet"), to("pickle"), packing=PackingConfig(sequence_length=9)
    )

    assert files_of(same) == files_of(latest(dataset, "pickle"))
    assert read_manifest(other).details["sequence_length"] == 9


PACKINGS = {
    "best_fit": {"strategy": "best_fit"},
    "greedy": {"strategy": "greedy"},
    "pool": {"strategy": "pool", "pool_size": 2},
    "first_fit, overlap": {"strategy": "first_fit", "overlap": 2},
    "concat, overlap": {"overlap": 3},
    "concat, label_token": {"label_token": True},
    "one_document, label_token": {"strategy": "one_document", "label_token": True, "overlap": 1},
}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_documents_are_put_together_again_however_they_were_packed(
    packing: dict[str, Any], tmp_path: Path
):
    dataset = declare(
        tmp_path,
        FILES,
        split=PARTS,
        packing={"sequence_length": 4, **packing},
        exports=["bin", "parquet", "pickle"],
    )
    build(dataset)

    stream = convert_export(latest(dataset, "parquet"), to("bin"))
    rows = convert_export(latest(dataset, "parquet"), to("pickle"))

    assert files_of(stream) == files_of(latest(dataset, "bin"))
    assert files_of(rows) == files_of(latest(dataset, "pickle"))
    assert read_manifest(rows).counts == read_manifest(latest(dataset, "pickle")).counts


def test_what_truncate_left_out_stays_out(tmp_path: Path):
    packing = {"sequence_length": 4, "strategy": "greedy", "overlong": "truncate"}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdef", "g"]}, packing=packing, exports=["parquet"])
    build(dataset)

    folder = convert_export(latest(dataset, "parquet"), to("bin"))

    tokens = np.fromfile(folder / "train.bin", dtype="<u2")
    assert tokens.tolist() == [*b"abcd", *b"g", EOS]


def test_of_truncated_beginnings_the_export_and_the_raw_file_are_named(tmp_path: Path):
    packing = {"sequence_length": 4, "strategy": "one_document", "truncation_side": "left"}
    packing["overlong"] = "truncate"
    dataset = declare(tmp_path, {"a.jsonl": ["abcdef", "g"]}, packing=packing, exports=["parquet"])
    build(dataset)
    export = latest(dataset, "parquet").resolve()

    with pytest.raises(ConfigError) as raised:
        convert_export(export, to("bin"))

    assert str(raised.value).startswith(f"{export}: a.jsonl, document 0, token 0: expected the ")


def test_a_conversion_stands_beside_its_export_and_is_made_once(built: Dataset):
    first = convert_export(latest(built, "parquet"), to("bin"))
    written = (first / "_tokflow/manifest.json").stat().st_mtime_ns

    second = convert_export(latest(built, "parquet"), to("bin"))

    assert first == second == latest(built, "bin-from-parquet")
    assert first.parent.parent == latest(built, "parquet").parent.parent
    assert (first / "_tokflow/manifest.json").stat().st_mtime_ns == written
    assert not list(first.parent.glob(".*.tmp"))


def test_a_conversion_is_verified_against_its_export_and_traced_through_it(built: Dataset):
    folder = convert_export(latest(built, "parquet"), to("bin"))
    direct = latest(built, "bin")

    [verified] = verify_path(folder)

    assert (verified.problems, verified.notes) == ((), ())
    for token in (0, 3, 9):
        there = trace_tokens(direct, part="validation", start=token, stop=token + 1)
        assert trace_tokens(folder, part="validation", start=token, stop=token + 1) == there


def test_a_damaged_conversion_is_found(built: Dataset, tmp_path: Path):
    folder = convert_export(latest(built, "parquet"), to("bin"), output=None)
    copy = folder.parents[1] / "copy" / folder.name
    shutil.copytree(folder, copy)
    name = next(copy.glob("train*"))
    data = bytearray(name.read_bytes())
    data[0] ^= 1
    name.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    edit_manifest(copy, lambda fields: fields["files"][name.name].update(sha256=sha256))

    [verified] = verify_path(copy)

    shutil.rmtree(copy.parent)
    assert "train: token 0 differs from the split" in verified.problems[0]


def test_the_index_leads_to_the_same_documents(built: Dataset, tmp_path: Path):
    folder = convert_export(
        latest(built, "bin"),
        to("parquet"),
        packing=PackingConfig(sequence_length=4),
        output=tmp_path / "out",
    )

    assert index_of(folder, "train") == index_of(latest(built, "parquet"), "train")


def test_chats_keep_their_loss_mask_or_are_refused(tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["bin", "parquet"])
    build(dataset)

    kept = convert_export(
        latest(dataset, "parquet"), to("parquet", shard_size=1), output=tmp_path / "kept"
    )

    counts = read_manifest(latest(dataset, "parquet")).counts
    assert counts["train.num_loss_tokens"] > 0
    assert read_manifest(kept).counts == counts
    with pytest.raises(ConfigError, match="expected the loss mask of the chats, which parquet"):
        convert_export(latest(dataset, "bin"), to("parquet"))


def test_a_lost_mask_stays_lost_however_often_it_is_converted(tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["bin"])
    build(dataset)

    again = convert_export(latest(dataset, "bin"), to("litdata"))

    assert read_manifest(again).details["lost"] == ["loss_mask"]
    with pytest.raises(ConfigError, match="expected the loss mask of the chats, which parquet"):
        convert_export(again, to("parquet"))


def test_a_damaged_export_is_not_converted(built: Dataset, tmp_path: Path):
    shutil.copytree(latest(built, "bin"), tmp_path / "copy")
    path = tmp_path / "copy" / "train.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)

    with pytest.raises(CorruptOutputError, match=r"train.bin: expected sha256"):
        convert_export(tmp_path / "copy", to("npy"), output=tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_files_that_hold_less_than_the_manifest_says_are_named(built: Dataset, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(latest(built, "bin"), copy)
    data = (copy / "train.bin").read_bytes()[:-2]
    (copy / "train.bin").write_bytes(data)
    entry = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(copy, lambda fields: fields["files"].update({"train.bin": entry}))

    with pytest.raises(CorruptOutputError, match=r"copy: expected 19 tokens of train.*found 18"):
        convert_export(copy, to("npy"), output=tmp_path / "out")


def test_an_export_outside_of_a_store_needs_an_output(built: Dataset, tmp_path: Path):
    shutil.copytree(latest(built, "bin"), tmp_path / "a" / "b" / "c")

    with pytest.raises(ConfigError, match="an export outside of a store; name the folder"):
        convert_export(tmp_path / "a" / "b" / "c", to("npy"))


def test_what_the_export_left_out_is_counted_in_all_that_is_made_of_it(tmp_path: Path):
    packing = {"sequence_length": 4, "strategy": "greedy", "overlong": "truncate"}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdef", "g"]}, packing=packing, exports=["parquet"])
    build(dataset)

    stream = convert_export(latest(dataset, "parquet"), to("bin"))
    again = convert_export(stream, to("npy"))

    left_out = {"train.num_dropped_tokens": 3, "train.num_truncated_documents": 1}
    assert read_manifest(stream).details["left_out"] == left_out
    assert read_manifest(again).details["left_out"] == left_out


def test_what_is_never_read_is_refused_with_a_way_out(built: Dataset):
    with pytest.raises(ConfigError, match="pickle, which is written and never read; name"):
        convert_export(latest(built, "pickle"), to("bin"))


def test_parts_that_a_format_has_no_file_for_are_refused(tmp_path: Path):
    parts = {"train": {"files": "a.jsonl"}, "dev": {"files": "b.jsonl"}}
    dataset = declare(tmp_path, FILES, split={"parts": parts}, exports=["bin"])
    build(dataset)

    with pytest.raises(ConfigError, match=r"no parts but train, validation, test, .* found dev;"):
        convert_export(latest(dataset, "bin"), to("archai"))


def test_a_folder_in_use_is_refused(built: Dataset, tmp_path: Path):
    (tmp_path / "mine").write_text("")

    with pytest.raises(ConfigError, match="--output: expected a folder that is empty"):
        convert_export(latest(built, "bin"), to("bin"), output=tmp_path)
    with pytest.raises(ConfigError, match="--output: expected a folder that is empty"):
        convert_export(latest(built, "bin"), to("bin"), output=tmp_path / "mine")
    with pytest.raises(ConfigError, match="outside of the export"):
        convert_export(latest(built, "bin"), to("bin"), output=latest(built, "bin") / "inside")


def test_tokens_that_were_dropped_stay_dropped(tmp_path: Path):
    packing = {"sequence_length": 4, "tail": "drop"}
    dataset = declare(tmp_path, {"a.jsonl": ["abcde"]}, packing=packing, exports=["parquet"])
    build(dataset)

    folder = convert_export(latest(dataset, "parquet"), to("bin"))

    assert (folder / "train.bin").read_bytes() == b"a\0b\0c\0d\0"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_takes_options_and_packing(built: Dataset, tmp_path: Path):
    result = run(
        "convert", latest(built, "bin"), "--to", "parquet", "--output", tmp_path / "out",
        "--option", "shards=3", "--packing", "sequence_length=4", "--json",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["counts"] == read_manifest(latest(built, "parquet")).counts
    assert (tmp_path / "out/train-00001-of-00003.parquet").exists()


def test_the_command_says_what_packing_left_out(tmp_path: Path):
    packing = {"sequence_length": 4, "tail": "drop"}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdefgh"]}, packing=packing, exports=["parquet"])
    build(dataset)

    result = run(
        "convert", latest(dataset, "parquet"), "--to", "mds", "--output", tmp_path / "out",
        "--packing", "sequence_length=3",
    )  # fmt: skip

    lines = result.stdout.splitlines()
    assert lines[0].startswith("mds: train 6 tokens in 2 sequences (100 % full, ")
    assert lines[0].endswith("2 tokens dropped)")
    assert "sequence_length: 3" in lines[1]
    assert "tail: drop" in lines[1]
    assert lines[2] == "not in the export it is made from: train 1 dropped tokens"
    assert str(tmp_path / "out") in lines[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "banana"], "--to: expected one of"),
        (["--to", "parquet", "--option", "sequence_per_file=2"], "did you mean"),
        (["--to", "parquet", "--option", "format=npy"], "name the format with --to"),
        (["--to", "parquet", "--option", "compression"], "write it as --option shard_size"),
        (["--to", "parquet", "--packing", "overlap"], "write it as --packing strategy"),
        (["--to", "parquet", "--option", "dtype=int8"], "--option: expected one of the keys"),
        (["--to", "parquet", "--packing", "sequence_length=no"], "--packing: sequence_length"),
        (["--to", "npy", "--packing", "overlap=1"], "nothing is packed in a stream"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(arguments: list[str], message: str, built: Dataset):
    result = run("convert", latest(built, "bin"), *arguments)

    assert result.exit_code == 2
    assert message in result.stderr
