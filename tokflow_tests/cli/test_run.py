import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import write_yaml

BAD_LINE = '{"text": "good"}\n{"text": 5}\n'


def without_numbers(text: str) -> str:
    return re.sub(r"\d+\.\d+ s", "N s", re.sub(r", \d+\.\d+ MB/s", "", text))


def test_a_run_says_what_it_made_and_ends_with_tables(config: Path):
    result = run("run", "--config", config)

    assert result.exit_code == 0
    assert result.stderr == ""
    folder = config.parent / "store/small/exports"
    lines = without_numbers(result.stdout).splitlines()
    assert lines[1] == "small: tokens a.jsonl: 4 documents, 29 tokens, bytes"
    assert not any(line.startswith("small: export") for line in lines)  # the table has them
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["file", "documents", "tokens", "MB/s", "state"]
    assert re.fullmatch(r"a\.jsonl +4 +29 +(\d+\.\d)?  new", table[1])
    assert table[4] == (
        "3 files: 10 documents, 1 empty document, 56 characters, 62 B, 72 tokens, "
        "0.86 bytes per token"
    )
    assert re.fullmatch(
        "part +documents +characters +tokens +share +characters per token +tokens of the longest",
        table[6],
    )
    assert table[7].split() == ["train", "10", "56", "72", "100.00", "%", "0.78", "15"]
    assert table[9].split() == ["export", "tokens", "bytes", "path"]
    assert re.fullmatch(rf"bin +train 72 +\d\.\d kB  {folder}/bin/latest", table[10])
    rows = "train 72 tokens in 9 sequences (100 % full, 5 documents cut)"
    assert table[14:16] == [f"packed in parquet, pickle: {rows}", "left out: nothing"]
    assert table[-1] == "small: 13 outputs new, 0 up to date (N s)"


def test_a_second_run_says_in_one_sentence_that_there_is_nothing_to_do(store: Path, config: Path):
    first = run("run", "--config", config)
    assert first.stdout.startswith("small: cards of 3 exports written\n")  # those of no command

    result = run("run", "--config", config)

    assert result.exit_code == 0
    assert re.fullmatch(
        r"small: nothing to do: 13 outputs of 3 files are up to date \(.*\d s\)\n",
        result.stdout,
    )


def test_one_bad_file_is_named_at_once_and_last_and_the_others_go_on(config: Path):
    (config.parent / "raw/b.jsonl").write_text(BAD_LINE)

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {config.parent}/raw/b.jsonl, row 1, line 2, byte 17: expected a string in 'text', "
        "found the number 5; fix the line, or set documents.on_bad_document: reject to set such "
        "lines aside\n"
    )
    lines = result.output.splitlines()
    assert "small: tokens b.jsonl: failed" in lines
    assert (lines[-1][:7], lines[-2][-3:]) == ("error: ", " s)")
    assert "small: sequences: 2 files: " in result.stdout
    assert re.search(r"b\.jsonl +failed \(tokens\)", result.stdout)
    assert "exports: not made, since not every file is built" in result.stdout
    assert "1 failure (" in result.stdout


def test_one_damage_that_two_exports_meet_is_said_once(store: Path, config: Path):
    (folder,) = (store / "tokens/a.jsonl").iterdir()
    tokens = folder / "tokens.bin"
    tokens.write_bytes(b"X" + tokens.read_bytes()[1:])
    write_yaml(config.parent, exports=["npy", "olmo"])

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tokens}: expected sha256 ")
    assert result.stderr.count("\n") == 1
    assert "not built: npy, olmo; see the errors below" in result.stdout.splitlines()


def test_rejects_and_text_in_no_part_are_said(config: Path):
    (config.parent / "raw/b.jsonl").write_text(BAD_LINE)
    write_yaml(
        config.parent,
        documents={"on_bad_document": "reject"},
        split={"parts": {"train": {"documents": 1}}},
        packing={"sequence_length": 8, "tail": "drop"},
    )

    result = run("run", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rejected = lines[lines.index("notices:") + 1]
    assert rejected.startswith("  rejected: 1 document: 1 number in place of a string in 'text'; ")
    assert "in no part of the split: 30 characters of 4 documents (39 tokens)" in lines
    assert "dropped: 7 tokens by parquet, 7 tokens by pickle" in lines
    assert "left out: nothing" not in lines
    again = run("run", "--config", config)
    assert again.stdout.splitlines()[1:3] == ["notices:", rejected]


def test_a_vocabulary_that_comes_out_smaller_than_asked_is_said(config: Path):
    write_yaml(config.parent, tokenizer={"kind": "trained", "vocab_size": 1024}, exports=[])

    result = run("run", "--config", config)

    found = re.search(
        r"^small: tokenizer: (\d+) ids, 1,024 asked for, ", result.stdout, re.MULTILINE
    )
    assert found is not None
    said = f"tokenizer: {found[1]} ids of the 1,024 asked for: the text has no more"
    assert said in result.stdout.splitlines()
    shown = run("tokenizers", "--config", config).stdout
    assert re.search(rf"^vocab_size +{found[1]} of 1,024$", shown, re.MULTILINE)


def test_the_json_of_a_run_has_every_output_also_where_all_are_there(config: Path):
    (document,) = json_of("run", "--config", config)["datasets"]
    (again,) = json_of("run", "--config", config)["datasets"]

    assert document["num_new"] == len(document["outputs"]) == len(again["outputs"]) == 13
    assert again["num_new"] == 0
    tokens = next(output for output in document["outputs"] if output["stage"] == "tokens")
    assert tokens["counts"]["num_tokens"] == 29
    assert Path(tokens["folder"], "tokens.bin").is_file()


@pytest.mark.parametrize("exports", [["parquet", "bin"], ["pickle", "arrow"]])
def test_the_lines_that_load_a_batch_run_as_they_are(exports: Sequence[str], config: Path):
    write_yaml(config.parent, exports=list(exports))
    lines = run("run", "--config", config).stdout.splitlines()
    code = lines[lines.index("load a batch:") + 1 :][:3]

    names: dict[str, Any] = {}
    exec("\n".join(code), names)

    batch = names["batch"]["input_ids"]
    assert batch.shape[1] == 8
    assert batch[0, :4].tolist() == [111, 110, 101, 256]


def test_going_back_to_an_earlier_config_publishes_its_export_again(store: Path, config: Path):
    latest = store / "exports/parquet/latest"
    before = latest.resolve()
    write_yaml(config.parent, packing={"sequence_length": 16})
    run("run", "--config", config)
    assert latest.resolve() != before
    write_yaml(config.parent)

    result = run("run", "--config", config)

    assert "nothing to do" in result.stdout
    assert latest.resolve() == before
