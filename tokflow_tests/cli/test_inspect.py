from pathlib import Path

from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import build, write_raw


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
