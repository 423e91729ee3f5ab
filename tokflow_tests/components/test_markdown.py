"""Claims about the markdown and the tables of metadata."""

import re

import pytest

from tokflow.components.reports import (
    MAX_CHARACTERS,
    WIDTH,
    code_block,
    for_shell,
    numbers_table,
    rows_table,
)
from tokflow_tests.dagster_case import shown


def test_numbers_have_separators_and_names_in_plain_words():
    table = numbers_table(
        {"num_documents": 1_234_567, "bytes_per_token": 3.754, "fill_fraction": 0.98213}
    )

    assert shown(table) == {"documents": "1,234,567", "bytes per token": "3.75", "fill": "98.2 %"}
    assert shown(numbers_table({"fill_fraction": 0.9999})) == {"fill": "99.9 %"}


@pytest.mark.parametrize("text", ["a|b", "<b>", "![x](y)", "`", "https://x", "a\nb", "*_~", "&lt;"])
def test_a_text_stays_in_its_cell_and_means_nothing(text: str):
    [_, _, row] = str(numbers_table({"name": text}).value).split("\n")

    assert shown(numbers_table({"name": text})) == {"name": " ".join(text.split())}
    assert not re.search(r"[!-/:-@[-`{-~]", re.sub(r"\\.", "", row[len("| name | ") : -2]))


def test_a_text_is_shown_letter_by_letter_in_lines_that_are_not_cut():
    text = "word  " * 40

    lines = str(code_block(text).value).split("\n")[1:-1]

    assert "".join(lines) == text
    assert max(map(len, lines)) <= WIDTH


def test_no_text_ends_the_block_that_it_is_shown_in():
    shown_text = code_block("```` <script>\x1b[31m\u202e\n```").value

    assert shown_text == "`````text\n```` <script>\\x1b[31m\\u202e\n```\n`````"


def test_of_a_long_text_as_much_is_shown_as_dagster_shows_without_a_click():
    for text in ("word " * 5_000, "line\n" * 5_000, "x" * 5_000, "`" * 300 + "\n" + "y" * 5_000):
        assert len(str(code_block(text).value)) <= MAX_CHARACTERS


def test_what_is_not_known_is_not_shown_as_zero():
    assert shown(numbers_table({"num_tokens": 0, "bytes_per_token": 0.0})) == {"tokens": "0"}


def test_a_long_name_goes_on_in_the_next_line_of_its_cell():
    [record] = rows_table([{"file": "train-00001-of-00002.parquet", "state": "built"}]).records

    assert record.data["file"].split("\u200b") == ["train-", "00001-", "of-", "00002.", "parquet"]
    assert record.data["state"] == "built"


def test_a_shell_reads_a_command_as_one_line():
    long = "tokflow inspect /srv/project/data/store/demo/exports/parquet --html viewer.html"

    lines = str(for_shell(long).value).split("\n")[1:-1]

    assert max(map(len, lines)) <= WIDTH
    assert "".join(of.removesuffix("\\") for of in lines) == long
