from pathlib import Path

import pytest

from tokflow_tests.cli.commands import json_of, refused, run
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


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
