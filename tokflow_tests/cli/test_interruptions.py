"""Commands that are told to end, by Ctrl-C or by a batch system."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokflow_tests.tiny import FEW_TEXTS, write_raw, write_yaml

SCRIPT = """
import signal, sys, time
from tokflow.pipeline import writers
from tokflow.cli.app import app

def write(*arguments, **more):
    (arguments[3] / "tokens.bin").write_bytes(b"half")
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # who started it may have ignored it
writers.write_token_shard = write
app(["run", "--config", sys.argv[1]])
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_end_leaves_nothing_half_written(
    number: signal.Signals, status: int, tmp_path: Path
):
    write_raw(tmp_path, {"a.jsonl": FEW_TEXTS})
    config = write_yaml(tmp_path)
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(config)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.rglob("tokens.bin")):
        assert run.poll() is None
        time.sleep(0.01)

    run.send_signal(number)

    assert run.communicate()[1] == "error: interrupted; finished outputs stay, run again to go on\n"
    assert run.returncode == status
    assert not list(tmp_path.rglob("*.tmp"))
