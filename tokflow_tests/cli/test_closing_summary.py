from pathlib import Path
from typing import Any

import pytest

from tokflow.cli.closing_summary import left_out, print_summary
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.tiny import declare_small, write_raw


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
