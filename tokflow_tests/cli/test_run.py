import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokflow.cli.closing_summary import left_out, print_summary
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import TEXTS, declare_small, write_raw, write_yaml

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


def test_the_last_partition_completes_the_exports(config: Path):
    results = [run("run", "--config", config, "--partition", key) for key in TEXTS]

    assert "exports: not made; 2 other files not built yet" in results[0].stdout
    assert [result.exit_code for result in results] == [0, 0, 0]
    assert (config.parent / "store/small/exports/bin/latest/train.bin").is_file()


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


def closing_of(folder: Path, capsys: pytest.CaptureFixture[str], **fields: Any) -> list[str]:
    made = declare_small(folder, **fields)
    plan = make_plan(made)
    built = build_dataset(made)
    print_summary(plan, built)
    return capsys.readouterr().out.splitlines()


def test_the_files_shown_are_those_that_failed_or_have_rejects_and_the_largest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.cli.closing_summary.FILES_SHOWN", 3)
    texts = {"a": "12", "b": "1", "c": "1234", "d": "123", "e": "1"}
    write_raw(tmp_path, {f"{name}.jsonl": [text] for name, text in texts.items()})
    for name, more in (("b", '{"text": null}\n'), ("e", "{")):
        with (tmp_path / f"raw/{name}.jsonl").open("a") as file:
            file.write(more)

    documents = {"on_bad_document": "reject", "max_rejects": 1}
    (tmp_path / "raw/e.jsonl").write_text("{\n{\n")
    lines = closing_of(tmp_path, capsys, documents=documents, exports=["bin"])

    start = next(index for index, line in enumerate(lines) if line.startswith("file "))
    assert [" ".join(line.split()) for line in lines[start + 1 : start + 5]] == [
        "b.jsonl 1 2 new, 1 reject",
        "c.jsonl 1 5 new",
        "e.jsonl failed (tokens)",
        "and 2 more",
    ]


def test_the_time_of_each_stage_and_the_memory_of_all_processes_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.cli.closing_summary.LEAST_SECONDS", 0)

    *_, spent, _ = closing_of(tmp_path, capsys, exports=["bin"])

    stages, memory = spent.split("; ")
    names = [of.split()[0] for of in stages.split(", ")]
    assert names == ["raw", "tokenizer", "tokens", "split", "export"]
    assert memory.startswith("peak memory ")


def test_only_files_in_which_the_limit_stopped_the_reading_are_said_to_have_a_rest(tmp_path: Path):
    def said(**limit: int) -> list[str]:
        made = declare_small(tmp_path, documents={"limit": limit}, exports=["bin"])
        return left_out(made, build_dataset(made))

    assert said(documents=5) == said(characters=24) == ["left out: nothing"]
    assert said(documents=4) == ["not read: anything past documents.limit in a.jsonl, b.jsonl"]
    assert said(tokens=30) == ["left out: nothing"]
    assert said(tokens=29) == ["not read: anything past documents.limit in a.jsonl"]
    assert said(characters=20) == ["not read: anything past documents.limit in a.jsonl"]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"documents": 11}, ["10 of 11 documents"]),
        ({"documents": 10, "count_empty": False}, ["9 of 10 documents that have text"]),
        ({"documents": 11, "tokens": 73}, ["10 of 11 documents, 72 of 73 tokens"]),
        ({"documents": 11, "tokens": 72}, []),
        ({"documents": 11, "scope": "file"}, []),
    ],
)
def test_a_limit_of_all_files_that_they_do_not_reach_is_said(
    limit: dict[str, Any], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    limit = {"scope": "dataset", **limit}

    lines = closing_of(tmp_path, capsys, documents={"limit": limit}, exports=["bin"])

    start = "documents.limit is not reached: all files together have "
    assert [of.removeprefix(start) for of in lines if of.startswith(start)] == said


def test_exports_that_wait_are_said_to_be_as_they_were_or_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_raw(tmp_path, {"a.jsonl": ["one"], "b.jsonl": ["two"]})
    good = (tmp_path / "raw/b.jsonl").read_text()
    fields: dict[str, Any] = {"exports": ["bin"], "split": {"scope": "dataset"}}
    for text, state in (("{", "not made"), (good, None), ("{", "as they were")):
        (tmp_path / "raw/b.jsonl").write_text(text)

        lines = closing_of(tmp_path, capsys, **fields)

        if state is not None:
            assert f"exports: {state}, since not every file is built" in lines
            waiting = "b.jsonl, the split of all files"
            assert f"not built: {waiting}; see the errors below" in lines


def test_exports_of_a_limited_dataset_wait_for_files_that_are_not_known_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    limit = {"documents": 5, "scope": "dataset"}
    made = declare_small(tmp_path, documents={"limit": limit})
    plan = make_plan(made, partitions=["a.jsonl"])

    built = build_dataset(made, partitions=["a.jsonl"])
    print_summary(plan, built)

    said = "exports: not made; other files that documents.limit takes are not built yet"
    assert said in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("form", ["files", "source_split"])
def test_a_part_whose_files_are_all_behind_the_limit_is_warned_of(form: str, tmp_path: Path):
    taken = {"train": "train", "validation": "test", "other": "validation"}
    of_part = {"files": "{}.jsonl", "source_split": "{}"}[form]
    fields: dict[str, Any] = {
        "raw": {"files": "raw"},
        "split": {"parts": {part: {form: of_part.format(of)} for part, of in taken.items()}},
        "exports": ["bin"],
    }
    write_raw(tmp_path, {"test.jsonl": ["a", "b"], "train.jsonl": ["c"], "validation.jsonl": [""]})

    def said(num_documents: int, *keys: str) -> list[str]:
        limit = {"documents": num_documents, "scope": "dataset"}
        made = declare_small(tmp_path, documents={"limit": limit}, **fields)
        lines = left_out(made, build_dataset(made, partitions=keys or None))
        return [line for line in lines if "no text falls into" in line]

    warning = (
        "warning: {}: no text falls into this part, since documents.limit is reached before its "
        "files; raise it, or set its scope to file"
    )
    assert not [line for line in said(3, "test.jsonl") if line.startswith("warning")]
    assert said(2) == [warning.format("train"), warning.format("other")]
    assert said(3) == [warning.format("other")]
    assert said(4) == ["other: no text falls into this part"]


def test_where_only_an_export_failed_nothing_else_is_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "store/small").mkdir(parents=True)
    (tmp_path / "store/small/exports").write_text("in the way")

    lines = closing_of(tmp_path, capsys, exports=["bin"])

    assert "not built: bin; see the errors below" in lines
    lines = [line for line in lines if "peak memory" not in line]  # the seconds of stages
    assert not [line for line in lines if line.startswith(("exports:", "export "))]
