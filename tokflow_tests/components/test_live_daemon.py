"""Builds in a project whose daemon runs: for each change exactly the one that is needed."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tokflow_tests.dagster_case import Case
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

NUM_FILES = 150
"""With 100 parents Dagster itself calls nothing stale."""

QUIET_SECONDS = 16
"""Three ticks in which nothing follows."""

ONE_FILE = {"raw": 1, "files": 2, "tokens": 1, "split": 1, "sequences": 1, "parquet": 1}
OF_ALL = dict.fromkeys(("raw", "tokens", "split", "sequences"), NUM_FILES)
EVERYTHING = {**OF_ALL, "files": 2, "tokenizer": 1, "parquet": 1}
"""Events of a first build: the list of files as new ones, and as built ones."""


class Live(Case):
    """A dataset of many files, and what a daemon does with it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        super().__init__(folder, instance)
        self.attributes |= {"exports": ["parquet"], "automation": True}
        for number in range(3, NUM_FILES):
            self.write(f"f{number:03}", f"text of {number}\n")
        self._known = 0, Counter[str]()

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run the daemon with the attributes as they are now."""
        (self.folder / "defs.yaml").write_text(yaml.safe_dump(self.attributes))
        script = Path(sys.executable).with_name("dagster-daemon")
        command = [script, "run", "-f", "location.py", "-d", self.folder]
        with (self.folder / "daemon.log").open("a") as log:
            how = {"cwd": self.folder, "stdout": log, "stderr": log, "start_new_session": True}
            process = subprocess.Popen(command, **how)
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
        fetch = self.instance.fetch_materializations
        counts = {of: len(fetch(of, limit=10_000).records) for of in self.instance.all_asset_keys()}
        self._known = len(runs), Counter({of.path[-1]: num for of, num in counts.items()})
        new = runs[: len(runs) - num_runs]
        said = [f"{run.job_name.removeprefix('small_')} {run.status.value}" for run in new]
        return said, self._known[1] - events


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(REPOSITORY / "dagster.yaml", folder)
    (folder / "location.py").write_text(LOCATION)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        yield Live(folder, instance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dagster, which opens the same history
def test_each_change_is_one_build_of_what_it_changes(live: Live):
    good, bad = ["build SUCCESS"], ["build FAILURE"]
    with live.daemon():
        assert live.watch() == (good, EVERYTHING)
        assert live.watch(is_build=False) == ([], {})
        live.write("b", "another text\n")
        assert live.watch() == (good, ONE_FILE), "edit"
        live.write("new", "a new file\n")
        assert live.watch() == (good, ONE_FILE), "add"
        live.remove("a")
        assert live.watch() == (good, {"files": 1, "parquet": 1}), "delete"
        (live.folder / "raw/c.txt").write_bytes(b"not \xff UTF-8\n")
        assert live.watch() == (bad, {"raw": 1, "files": 2, "tokenizer": 1}), "break"
        live.write("c", "mended\n")
        assert live.watch() == (good, ONE_FILE), "repair"
        shutil.rmtree(live.folder / "store/small/tokens/b.txt")
        assert live.watch() == (good, {}), "deleted from the store"
    live.attributes["packing"] = {"sequence_length": 8}
    with live.daemon():
        expected = {"sequences": NUM_FILES, "parquet": 1, "files": 1}
        assert live.watch() == (good, expected), "packing"
    live.attributes["tokenizer"] = {"kind": "trained", "vocab_size": 300}
    with live.daemon():
        expected = {**EVERYTHING, "files": 1}
        del expected["raw"]
        assert live.watch() == (good, expected), "tokenizer"
        assert live.watch(is_build=False) == ([], {})
