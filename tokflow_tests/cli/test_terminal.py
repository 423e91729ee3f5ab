import gzip
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from tokflow.cli import progress, terminal
from tokflow.cli.progress import Bars
from tokflow.cli.terminal import (
    print_error,
    print_styled,
    print_table,
)
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import TEXTS, declare_small, load_dataset, write_raw, write_yaml


def test_a_run_and_a_plan_name_what_a_pattern_matches_and_is_not_read(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    os.mkfifo(tmp_path / "raw/pipe.jsonl")
    config = write_yaml(tmp_path, exports=["bin"])
    line = f"matched, but not read: {tmp_path}/raw/pipe.jsonl (a fifo)"
    entry = {"path": f"{tmp_path}/raw/pipe.jsonl", "found": "a fifo"}

    for command in ("plan", "run", "run"):  # the second run has nothing to do
        assert line in run(command, "--config", config).stdout.splitlines()
    for command in ("plan", "run"):
        document = json_of(command, "--config", config)
        assert document["datasets"][0]["left_out"] == [entry]


LONG = "a/path/" * 60 + "[red]file[/]"


def test_a_table_in_a_pipe_is_plain_and_has_a_line_for_each_row(
    capsys: pytest.CaptureFixture[str],
):
    print_table(("file", "tokens", "state"), [(LONG, "1,200", "new"), ("b", "7", "")])

    assert capsys.readouterr().out.splitlines() == [
        f"{'file':<{len(LONG)}}  tokens  state",
        f"{LONG}   1,200  new",
        f"{'b':<{len(LONG)}}       7",
    ]


def test_a_terminal_gets_colours_and_no_markup_of_the_users_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def colourful(*, is_stderr: bool = False) -> Console:
        return Console(
            stderr=is_stderr,
            force_terminal=True,
            color_system="standard",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )

    monkeypatch.setattr(terminal, "console", colourful)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    print_styled((LONG, "bold"), ": [b]3[/b] files")
    print_error("[b]none[/b]")

    printed = capsys.readouterr()
    assert printed.out == f"\x1b[1m{LONG}\x1b[0m: [b]3[/b] files\n"
    assert printed.err.startswith("\x1b[31merror: [b]none[/b]\x1b[0m")  # rich 13 reddens its end


def test_a_name_that_would_turn_text_around_is_escaped_in_all_that_is_printed(tmp_path: Path):
    name = "a\u202egpj.jsonl"
    write_raw(tmp_path, {name: ["one", "two"], f"bad{name}": ["three"]})
    (tmp_path / f"raw/bad{name}").write_text("{broken\n")
    os.mkfifo(tmp_path / f"raw/pipe{name}")
    config = write_yaml(tmp_path, exports=["bin"])
    commands = [("plan",), ("run",), ("plan",), ("verify",)]

    told = [run(*of, "--config", config) for of in commands]
    told.append(run("init", tmp_path / "raw" / name, "--output", tmp_path / f"x{name}.yaml"))
    output = next((tmp_path / "store").glob(f"*/tokens/{name}/*"))
    told.append(run("inspect", output))

    for result in told:
        assert "\u202e" not in result.output, result.output
        assert r"a\u202egpj.jsonl" in result.output, result.output
    printed = run("plan", "--config", config, "--json").stdout
    assert "\u202e" not in printed
    assert f"raw/pipe{name}" in json.loads(printed)["datasets"][0]["left_out"][0]["path"]


def test_bars_hear_of_the_whole_build(config: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_dataset(config)

    with Bars(make_plan(dataset)) as bars:
        built = build_dataset(dataset, reporter=bars)

    assert built.num_new == 13
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        "tokenizer",
        "tokens",
        "split",
        "sequences",
        "export",
    ]
    assert "193 B of 193 B" in lines[1]


def test_the_bar_of_a_compressed_file_takes_its_text_for_four_times_as_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "it is said again"}\n'))
    plan = make_plan(declare_small(tmp_path, raw={"files": "raw/*.gz"}))

    assert progress.raw_per_text(plan) == 1.0  # a small file is not asked
    monkeypatch.setattr(progress, "LARGE_BYTES", 1)
    assert progress.raw_per_text(plan) == 0.25
