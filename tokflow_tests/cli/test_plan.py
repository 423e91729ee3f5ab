import re
import shutil
from pathlib import Path

import pytest
import yaml

from tokflow.raw import config as raw_config
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import build, declare_small, write_raw, write_yaml


def test_a_plan_names_what_is_missing_and_why(store: Path, config: Path):
    write_yaml(config.parent, packing={"sequence_length": 16}, exports=["parquet"])

    result = run("plan", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small: 4 outputs to build, 0 B to tokenize, about ")
    columns = ["stage", "name", "raw", "bytes", "to", "write", "about", "why"]
    assert lines[1].split() == columns
    assert lines[2].startswith("sequences  a.jsonl and 2 more ")
    assert lines[2].endswith("config changed (sequence_length: 8 to 16)")
    num_bytes = sum(of.stat().st_size for of in (config.parent / "raw").rglob("*.jsonl"))
    assert lines[3].split()[:6] == [
        "export",
        "parquet",
        f"{num_bytes}",
        "B",
        f"{num_bytes // 2}",
        "B",
    ]
    assert lines[4].startswith(f"tokens and exports: about {num_bytes // 2} B to write, ")
    assert len(lines) == 5


def test_the_json_of_a_plan_has_causes_and_bytes(config: Path):
    (document,) = json_of("plan", "--config", config)["datasets"]

    first, second = document["missing"][:2]
    assert (first["stage"], first["cause"]) == ("tokenizer", "missing")
    assert second["details"] == ["waits for the tokenizer"]
    assert second["num_bytes"] == (config.parent / "raw/a.jsonl").stat().st_size


def test_a_plan_shows_what_a_preset_stands_for(config: Path):
    write_yaml(config.parent, exports=["bin", {"preset": "trl", "shards": 2}])

    lines = run("plan", "--config", config).stdout.splitlines()
    (document,) = json_of("plan", "--config", config)["datasets"]

    options = {"padding": "none", "columns": ["labels", "seq_lengths"], "shards": 2}
    assert document["exports"] == [
        {"format": "bin"},
        {"name": "trl", "format": "hf_dataset", **options},
    ]
    assert [yaml.safe_load(line) for line in lines if line.startswith("trl: {")] == [
        {"trl": document["exports"][1]}
    ]


@pytest.mark.parametrize(
    ("shuffle", "named"),
    [({"sequences": True}, " parquet"), ({"documents": "dataset"}, " bin, parquet"), ({}, None)],
)
def test_a_plan_names_the_exports_of_which_a_change_writes_all(
    shuffle: dict[str, object], named: str | None, config: Path
):
    write_yaml(config.parent, exports=["bin", "parquet"], shuffle=shuffle)

    found = re.findall("a change of one writes all of(.*)", run("plan", "--config", config).stdout)

    assert found == [named] * bool(named)


def test_a_plan_of_a_bad_file_says_what_failed_and_when(config: Path):
    (config.parent / "raw/b.jsonl").write_text("{broken\n")
    run("run", "--config", config)

    lines = run("plan", "--config", config).stdout.splitlines()
    (document,) = json_of("plan", "--config", config)["datasets"]

    [told] = [line for line in lines if " failed on " in line]
    assert re.match(r"tokens b\.jsonl failed on \d{4}-\d\d-\d\d \d\d:\d\d: .*b\.jsonl", told)
    failures = {of["name"]: of["failure"] for of in document["missing"] if of["stage"] == "tokens"}
    assert failures["b.jsonl"]["message"] in told
    assert failures["b.jsonl"]["time"].endswith("+00:00")
    assert {of["failure"] for of in document["missing"] if of["stage"] != "tokens"} == {None}


def test_a_dataset_without_raw_files_does_not_keep_the_others_from_being_planned(
    config: Path, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    bad = write_yaml(tmp_path / "empty", name="empty")

    result = run("plan", "--config", bad, "--config", config)

    assert result.exit_code == 2
    assert "empty" in result.stderr
    assert "small: 13 outputs to build" in result.stdout


def test_a_run_does_not_begin_where_the_disk_has_plainly_no_room(
    config: Path, monkeypatch: pytest.MonkeyPatch
):
    num_raw = sum(of.stat().st_size for of in (config.parent / "raw").rglob("*.jsonl"))
    num_new = 4 * num_raw // 2  # tokens and three exports
    usage = shutil.disk_usage(config.parent)
    room = [usage._replace(free=num_new // 5 + 1)]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room[0])
    (document,) = json_of("plan", "--config", config)["datasets"]
    assert (document["bytes_to_write"], document["free_bytes"]) == (num_new, num_new // 5 + 1)

    room[0] = usage._replace(free=num_new // 5 - 1)
    stopped = run("run", "--config", config)
    assert stopped.exit_code == 1
    assert "free; remove what `tokflow gc` lists" in stopped.stderr
    assert not list(config.parent.rglob("exports"))
    assert run("run", "--config", config, "--force").exit_code == 0


def test_a_plan_and_the_first_run_of_many_small_files_propose_groups(
    config: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(raw_config, "MANY_FILES", 3)
    proposal = "3 files of 64 B each: 3 partitions; `raw: {group: 250}` makes 1, which are "

    assert proposal in run("plan", "--config", config).stdout
    assert json_of("plan", "--config", config)["datasets"][0]["proposed_group"] == 250
    assert f"small: {proposal}" in run("run", "--config", config).stdout
    (config.parent / "raw/d.jsonl").write_text('{"text": "new"}\n')  # grouped now all is built anew
    assert "group" not in run("plan", "--config", config).stdout


REJECT = {"on_bad_document": "reject"}


def test_rejects_are_listed_with_their_lines_and_in_json(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["good"], "b.jsonl": ["good"]})
    with (tmp_path / "raw/b.jsonl").open("a") as file:
        file.write('{"text": null}\n{"text": 5}\n{"a": 1, "b": 2}\nno JSON\n')
    build(declare_small(tmp_path, documents=REJECT, exports=["bin"]))
    config = ["--config", tmp_path / "dataset.yaml"]

    assert run("rejects", *config).stdout.splitlines() == [
        "b.jsonl, line 2: expected a string in 'text', found null",
        "b.jsonl, line 3: expected a string in 'text', found the number 5",
        "b.jsonl, line 4: expected the key 'text', found the keys 'a', 'b'",
        "b.jsonl, line 5: expected a JSON object, found b'no JSON' (JSON is malformed: invalid "
        "character (byte 4))",
        "small: 4 rejects",
    ]
    [of_small] = json_of("rejects", *config)["datasets"]
    assert [(of["raw_file"], of["row"]) for of in of_small["rejects"]] == [
        ("b.jsonl", 1),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
        ("b.jsonl", 4),
    ]
    assert run("rejects", *config, "--partition", "a.jsonl").stdout == "small: 0 rejects\n"
    assert (
        "rejected: 4 documents: 1 something else in place of a JSON object, 1 null in place of a "
        "string in 'text', 1 number in place of a string in 'text', 1 other keys in place of the "
        "key 'text'; `tokflow rejects` with the same NAME or --config lists them"
    ) in run("run", *config).stdout
