"""Claims about the markdown and the tables of metadata."""

import re

import pytest

from tokflow.components.markdown import (
    MAX_CHARACTERS,
    WIDTH,
    code_block,
    columns_table,
    details_table,
    numbers_table,
    rows_table,
)
from tokflow_tests.dagster_case import shown


def test_numbers_have_separators_and_names_in_plain_words():
    table = numbers_table(
        {"num_documents": 1_234_567, "bytes_per_token": 3.754, "fill_fraction": 0.98213}
    )

    assert shown(table) == {
        "documents": "1,234,567",
        "bytes per token": "3.75",
        "fill": "98.2 %",
    }
    assert shown(numbers_table({"fill_fraction": 0.9999})) == {"fill": "99.9 %"}


def test_a_long_value_goes_on_in_the_next_row():
    lines = str(details_table({"engine_reason": "equal to tiktoken on strings"}).value).split("\n")

    assert [line.split(" | ")[1] for line in lines[2:]] == ["equal to tiktoken on |", "strings |"]


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


def test_of_a_long_text_as_much_is_shown_as_dagster_shows_without_a_click():
    for text in ("word " * 5_000, "line\n" * 5_000, "x" * 5_000, "`" * 300 + "\n" + "y" * 5_000):
        assert len(str(code_block(text).value)) <= MAX_CHARACTERS


def test_of_many_rows_the_number_of_the_others_is_said():
    rows = [{"file": f"f{number}", "num_tokens": number} for number in range(1_002)]

    records = [of.data for of in rows_table(rows).records]

    assert len(records) == 1_001
    assert records[-1] == {"file": "and 2 more", "tokens": ""}


def test_parts_stand_beside_each_other_unless_they_are_many():
    rows = [{"part": f"p{number}", "num_tokens": 1_000 * number} for number in range(6)]

    assert str(columns_table(rows[:2]).value).endswith("| tokens | 0 | 1\\,000 |")
    assert len(columns_table(rows).value.records) == 6
