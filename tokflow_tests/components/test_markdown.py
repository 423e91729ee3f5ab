"""Claims about the markdown and the tables of metadata."""

import re
import threading
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import reports
from tokflow.components.instance import kept_open
from tokflow.components.reports import (
    MAX_CHARACTERS,
    WIDTH,
    code_block,
    for_shell,
    numbers_table,
    rows_table,
)
from tokflow_tests.dagster_case import KEYS, Case, failure, is_built, shown


def test_numbers_have_separators_and_names_in_plain_words():
    table = numbers_table(
        {"num_documents": 1_234_567, "bytes_per_token": 3.754, "fill_fraction": 0.98213}
    )

    assert shown(table) == {"documents": "1,234,567", "bytes per token": "3.75", "fill": "98.2 %"}
    assert shown(numbers_table({"fill_fraction": 0.9999})) == {"fill": "99.9 %"}
    unknown = {"num_tokens": 0, "bytes_per_token": 0.0}  # which is not shown as zero
    assert shown(numbers_table(unknown)) == {"tokens": "0"}


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


def test_a_long_name_goes_on_in_the_next_line_of_its_cell():
    [record] = rows_table([{"file": "train-00001-of-00002.parquet", "state": "built"}]).records

    assert record.data["file"].split("\u200b") == ["train-", "00001-", "of-", "00002.", "parquet"]
    assert record.data["state"] == "built"


def test_a_shell_reads_a_command_as_one_line():
    long = "tokflow inspect /srv/project/data/store/demo/exports/parquet --html viewer.html"

    lines = str(for_shell(long).value).split("\n")[1:-1]

    assert max(map(len, lines)) <= WIDTH
    assert "".join(of.removesuffix("\\") for of in lines) == long


EVENT = dg.AssetMaterialization("asset")


def test_events_of_many_files_hold_their_numbers_and_how_the_text_begins(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reports, "MANY_FILES", len(KEYS) - 1)

    assert (built := case.job()).success, failure(built)

    made = {of: case.event(of, partition="a.txt").metadata for of in ("raw", "tokens", "split")}
    drawn = {"num_documents", "num_chars", "num_bytes", "num_tokens", "bytes_per_token"}
    assert {of: found.keys() - {"megabytes_per_second"} for of, found in made.items()} == {
        "raw": {"num_bytes", "dagster/uri"},
        "tokens": {"summary", "preview", "dagster/uri", *drawn},
        "split": {"parts", "dagster/uri"},
    }
    assert shown(made["tokens"]["summary"])["tokens"] == "34"
    assert "details" in case.event("exports", "bin").metadata
    assert case.not_fresh() == {}


@is_built
def test_the_event_of_a_partition_is_one_of_the_runs_step(case: Case):
    case.write("b", "another text\n")
    result = case.run(keys=["b.txt"])

    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    entered = case.instance.all_logs(result.run_id, of_type=kind)
    tokens = case.event("tokens", partition="b.txt")

    assert {of.step_key for of in entered} == {"small_build_all"}
    assert [of.message for of in entered].count(str(tokens.description)) == 1


def test_files_of_events_are_opened_once_and_each_event_is_there_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        storage = instance.event_log_storage
        instance.report_runless_asset_event(EVENT)
        opened, connect = [], type(storage)._connect
        monkeypatch.setattr(
            type(storage), "_connect", lambda self, of: (opened.append(of), connect(self, of))[1]
        )
        with kept_open(instance):
            for number in range(2, 5):
                instance.report_runless_asset_event(EVENT)
                with dg.DagsterInstance.local_temp(str(tmp_path)) as other:
                    assert num_events(other) == number
                    if number == 2:
                        opened.clear()
            assert [of for of in opened if of != "index"] == []
            another = threading.Thread(target=instance.report_runless_asset_event, args=[EVENT])
            another.start()
            another.join()
        instance.report_runless_asset_event(EVENT)

        assert num_events(instance) == 6
        assert not {"run_connection", "index_connection", "has_table"} & vars(storage).keys()


def num_events(instance: dg.DagsterInstance) -> int:
    return len(instance.fetch_materializations(EVENT.asset_key, limit=100).records)
