"""Commands that are told to end, by Ctrl-C or by a batch system."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tokflow_tests.cli.commands import run
from tokflow_tests.tiny import FEW_TEXTS, write_raw, write_yaml


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_end_leaves_nothing_half_written(
    number: signal.Signals, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[Path] = []

    def write(_: Any, share: None, folder: Path, progress: Any) -> None:
        written.append(folder / "tokens.bin")
        written[-1].write_bytes(b"half")
        signal.raise_signal(number)

    monkeypatch.setattr("tokflow.tokens.stage.TokensWriter.write", write)
    write_raw(tmp_path, {"a.jsonl": FEW_TEXTS})

    result = run("run", "--config", write_yaml(tmp_path))

    assert len(written) == 1
    assert result.stderr == "error: interrupted; finished outputs stay, run again to go on\n"
    assert result.exit_code == status
    assert not list(tmp_path.rglob("tokens.bin"))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_told_to_end_while_it_is_imported_says_so(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.cli.app.import_module", lambda _: signal.raise_signal(number))

    result = run("formats")

    assert result.stderr == "error: interrupted; finished outputs stay, run again to go on\n"
    assert result.exit_code == status
