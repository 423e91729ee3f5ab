from pathlib import Path

import pytest

from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.cli.commands import json_of, refused, run
from tokflow_tests.tiny import TEXTS, build, write_raw, write_yaml


def test_an_inspection_marks_where_documents_begin(store: Path):
    result = run("inspect", store / "exports/parquet", "--sequences", "1")

    assert result.exit_code == 0
    assert result.stdout.endswith(
        "\ntrain: sequence 0: 8 tokens of 2 segments\n"
        "  a.jsonl:0\n"
        "  │ one<eos>\n"
        "  a.jsonl:1\n"
        "  │ two \n"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "export parquet of dataset small"
    assert "dtype        <u2" in lines
    assert "eos          256 '<eos>'" in lines
    assert ["train.num_tokens", "72"] in [line.split() for line in lines]


def test_an_inspection_shows_line_ends_and_spells_out_what_a_terminal_obeys(config: Path):
    write_raw(config.parent, {"a.jsonl": ["x\ny\x1b[31m\tz"]})
    run("run", "--config", config)

    result = run("inspect", config.parent / "store/small/tokens/a.jsonl")

    assert "  │ x⏎\n  │ y\\x1b[31m⇥z<eos>\n" in result.stdout


def test_an_inspection_of_chats_ticks_what_is_supervised(tmp_path: Path):
    build(chat_dataset(tmp_path, [chat("q", "a")], exports=["parquet"]))

    result = run("inspect", tmp_path / "store/chats/exports/parquet", "--sequences", "1")

    assert (
        "  chats.jsonl:0\n"
        "    template                       │ <|im_start|>user⏎\n"
        "    user: given                    │ q\n"
        "    template                       │ <|im_end|>⏎\n"
        "                                   │ <|im_start|>assistant⏎\n"
        "  ✓ assistant: content, stop token │ a<|im_end|>\n"
        "    template                       │ ⏎\n"
    ) in result.stdout


def test_the_json_of_an_inspection_has_the_manifest(store: Path):
    document = json_of("inspect", store / "tokens/a.jsonl", "--sequences", "1")

    assert document["manifest"]["counts"]["num_tokens"] == 29
    assert document["excerpts"][0]["segments"][0]["text"] == "one<eos>"


def test_a_page_of_an_export_is_written_and_its_size_printed(store: Path, tmp_path: Path):
    result = run("inspect", store / "exports/parquet", "--html", tmp_path / "page.html")

    assert result.exit_code == 0
    size = (tmp_path / "page.html").stat().st_size
    assert result.stdout == f"viewer: {tmp_path}/page.html, {size / 1000:.1f} kB\n"


def test_a_report_goes_into_the_store_or_to_the_file_that_is_named(
    store: Path, config: Path, tmp_path: Path
):
    result = run("report", "--config", config)
    (named,) = json_of("report", "--config", config, "-o", tmp_path / "own.html")["reports"]

    path = tmp_path / "store/small/report/report.html"
    assert result.exit_code == 0, result.output
    assert result.stdout == f"report: {path}, {path.stat().st_size / 1000:,.1f} kB\n"
    assert named["num_bytes"] == path.stat().st_size
    assert (tmp_path / "own.html").read_bytes() == path.read_bytes()
    verified = run("verify", tmp_path / "store")
    assert "all well" in verified.output
    assert "report" not in verified.output


def test_a_file_holds_the_report_of_one_dataset(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    config = write_yaml(tmp_path)
    (tmp_path / "other").mkdir()
    other = write_yaml(tmp_path / "other", name="other")

    message = refused("report", "--config", config, "--config", other, "-o", tmp_path / "own.html")

    assert "--output: expected one dataset, whose report the file is to hold, found 2" in message


@pytest.mark.parametrize("arguments", [("report", "-o"), ("inspect", "store", "--html")])
def test_a_page_is_written_to_this_disk_and_to_no_url(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    message = refused(*arguments, "s3://bucket/page.html")

    assert "expected a file on this disk, found a URL" in message
    assert [*tmp_path.iterdir()] == []


def test_without_matplotlib_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.views.picture.find_spec", lambda _: None)

    assert "pip install 'dagster-tokflow[report]'" in refused("report")
