"""Builds in a project whose daemon runs: for each change exactly the one that is needed."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow_tests.serving import end

REPOSITORY = Path(__file__).parents[2]

LOCATION = """\
from pathlib import Path

import dagster as dg

from tokflow.pipeline.declared import load_datasets
from tokflow.components import decisions, make_definitions, text_dataset

text_dataset.SENSOR_SECONDS = 1  # the daemon ticks every five seconds at most
decisions.CALM_SECONDS = 2.0

[dataset] = load_datasets(Path(__file__).with_name("defs.yaml"))
defs = dg.Definitions.merge(
    dg.Definitions(executor=dg.in_process_executor), make_definitions(dataset)
)
"""

QUIET_SECONDS = 16
"""Three ticks in which nothing follows."""

ONE_FILE = {"raw": 1, "files": 2, "tokens": 1, "split": 1, "sequences": 1, "parquet": 1}


class Live:
    """A project in a folder, and what its daemon does."""

    def __init__(self, folder: Path, num_files: int) -> None:
        self.folder = folder
        self.num_files = num_files
        self.instance: dg.DagsterInstance
        self.fields: dict[str, Any] = {
            "name": "live",
            "raw": {"files": "raw/*.jsonl"},
            "tokenizer": {"kind": "bytes"},
            "packing": {"sequence_length": 16},
            "exports": ["parquet"],
            "automation": True,
            "report": False,
            "store": "store",
        }
        (folder / "raw").mkdir(parents=True)
        for number in range(num_files):
            self.write(number, f"text of {number}")
        shutil.copy(REPOSITORY / "dagster.yaml", folder)
        (folder / "location.py").write_text(LOCATION)

    def write(self, number: int, text: str) -> None:
        self.path(number).write_text(json.dumps({"text": text}) + "\n")

    def path(self, number: int) -> Path:
        return self.folder / f"raw/f{number:03}.jsonl"

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run the daemon with the fields as they are now."""
        (self.folder / "defs.yaml").write_text(yaml.safe_dump(self.fields))
        script = Path(sys.executable).with_name("dagster-daemon")
        with (self.folder / "daemon.log").open("a") as log:
            process = subprocess.Popen(
                [script, "run", "-f", "location.py", "-d", self.folder],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            end(process)

    def watch(self, *, is_build: bool = True) -> tuple[list[str], Counter[str]]:
        """Return the runs, each its job and status, and the events of each asset that follow,
        until nothing follows any more."""
        num_runs, events = self._known
        quiet_since, deadline = time.monotonic(), time.monotonic() + 300
        while time.monotonic() < quiet_since + QUIET_SECONDS:
            assert time.monotonic() < deadline, (self.folder / "daemon.log").read_text()[-5000:]
            time.sleep(1)
            runs = self.instance.get_runs()
            is_awaited = is_build and len(runs) == num_runs
            if is_awaited or not all(run.is_finished for run in runs):
                quiet_since = time.monotonic()
        self._known = (len(runs), self._count())
        new = runs[: len(runs) - num_runs]
        said = [f"{run.job_name.removeprefix('live_')} {run.status.value}" for run in new]
        return said, self._known[1] - events

    _known: tuple[int, Counter[str]] = (0, Counter())

    def _count(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for key in self.instance.all_asset_keys():
            records = self.instance.fetch_materializations(key, limit=10_000).records
            counts[key.path[-1]] = len(records)
        return counts


@pytest.fixture(params=[150])  # with 100 parents Dagster itself calls nothing stale
def live(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Live]:
    live = Live(tmp_path / "project", request.param)
    monkeypatch.setenv("DAGSTER_HOME", str(live.folder))
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    with dg.DagsterInstance.from_config(str(live.folder)) as instance:
        live.instance = instance
        yield live


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dagster, which opens the same history
def test_each_change_is_one_build_of_what_it_changes(live: Live):
    everything = {"raw", "files", "tokenizer", "tokens", "split", "sequences", "parquet"}
    of_all = ("raw", "tokens", "split", "sequences")
    num = {asset: live.num_files if asset in of_all else 1 for asset in everything}
    num["files"] = 2  # as new ones, and as built ones
    good, bad = ["build SUCCESS"], ["build FAILURE"]
    with live.daemon():
        assert live.watch() == (good, num)
        assert live.watch(is_build=False) == ([], {})
        live.write(1, "another text")
        assert live.watch() == (good, ONE_FILE), "edit"
        live.write(live.num_files, "a new file")
        assert live.watch() == (good, ONE_FILE), "add"
        live.path(0).unlink()
        assert live.watch() == (good, {"files": 1, "parquet": 1}), "delete"
        live.path(2).write_text("{broken\n")
        assert live.watch() == (bad, {"raw": 1, "files": 2}), "break"
        live.write(2, "mended")
        assert live.watch() == (good, ONE_FILE), "repair"
        shutil.rmtree(live.folder / "store/live/tokens" / live.path(1).name)
        assert live.watch() == (good, {}), "deleted from the store"
    live.fields["packing"] = {"sequence_length": 8}
    with live.daemon():
        expected = {"sequences": live.num_files, "parquet": 1, "files": 1}
        assert live.watch() == (good, expected), "packing"
    live.fields["tokenizer"] = {"kind": "trained", "vocab_size": 300}
    with live.daemon():
        expected = {asset: num[asset] for asset in everything - {"raw", "files"}} | {"files": 1}
        assert live.watch() == (good, expected), "tokenizer"
        assert live.watch(is_build=False) == ([], {})
