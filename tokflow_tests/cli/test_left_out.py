import json
import os
from pathlib import Path

from typer.testing import CliRunner

from tokflow.cli.app import app
from tokflow.cli.output import described_left_out
from tokflow.raw import LeftOut
from tokflow_tests.declared import TEXTS, declare, write_raw


def output_of(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_and_a_plan_name_what_a_pattern_matches_and_is_not_read(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    os.mkfifo(tmp_path / "raw/pipe.jsonl")
    config = declare(tmp_path, exports=["bin"])
    line = f"matched, but not read: {tmp_path}/raw/pipe.jsonl (a fifo)"
    entry = {"path": f"{tmp_path}/raw/pipe.jsonl", "found": "a fifo"}

    for command in ("plan", "run", "run"):  # the second run has nothing to do
        assert line in output_of(command, "--config", config).splitlines()
    for command in ("plan", "run"):
        document = json.loads(output_of(command, "--config", config, "--json"))
        assert document["datasets"][0]["left_out"] == [entry]


def test_five_are_named_and_the_others_counted():
    found = [LeftOut(path=f"s3://bucket/{number}", found="a folder") for number in range(7)]

    assert described_left_out(found).endswith("s3://bucket/4 (a folder), and 2 more")
