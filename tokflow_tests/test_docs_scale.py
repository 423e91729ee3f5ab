"""docs/scale.md has the tables of `make bench-scale`, and its lines for schedulers build shares."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks import scale
from tokflow_tests.cli.commands import run
from tokflow_tests.test_docs import blocks, text_of
from tokflow_tests.tiny import write_raw, write_yaml

PAGE = text_of("scale.md")
JOBS = {
    "SLURM_ARRAY_TASK_ID": "64",
    "JOB_COMPLETION_INDEX": "63",
    "AWS_BATCH_JOB_ARRAY_INDEX": "63",
}
"""The last of 64 jobs, as each scheduler numbers it."""


@pytest.mark.slow
def test_the_tables_are_those_of_the_benchmark():
    printed = ["\n".join(table(scale.FINEWEB)) + "\n" for table in scale.TABLES.values()]

    assert blocks(PAGE, "text") == printed, "run `make bench-scale` and paste its tables"


def _words_of(script: str) -> list[str]:
    """Return the words that a script of the page calls tokflow with, as the shell makes them."""
    shown = f'tokflow() {{ printf "%s\\n" "$@"; }}\n{script}'
    environment = {**os.environ, **JOBS}
    done = subprocess.run(["sh", "-c", shown], env=environment, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def test_the_line_of_each_scheduler_builds_the_last_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_raw(tmp_path, {f"{n:02}.jsonl": [f"{n}"] for n in range(64)})
    write_yaml(tmp_path, name="web").rename("web.yaml")
    [job] = map(yaml.safe_load, blocks(PAGE, "yaml"))
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    scripts = [script for script in [*blocks(PAGE, "sh"), command[2]] if "--shard" in script]

    lines = [_words_of(script) for script in scripts]

    assert len(lines) == 3
    assert all(line == lines[0] for line in lines)
    result = run(*lines[0])
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "store/web/tokens").iterdir()] == ["63.jsonl"]


def test_every_line_for_the_shell_has_options_that_there_are():
    for script in blocks(PAGE, "sh"):
        assert run(*_words_of(script), "--help").exit_code == 0, script
