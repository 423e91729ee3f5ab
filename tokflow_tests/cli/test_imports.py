"""Commands import what they use and no more: imports are most of what a small one costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokflow.exports import FORMATS

HEAVY = {
    *("dagster", "pandas", "torch", "transformers", "fsspec", "concurrent.futures.process"),
    *("gigatoken", "awkward", "tokenizers", "tiktoken", "sentencepiece", "jinja2"),
    *("rich.progress", "tokflow.components"),
}

BY_PARQUET = {"pyarrow.parquet", "pyarrow.fs", "pyarrow.compute", "ssl", "urllib3"}
"""Imported where a parquet file is read or written."""

CODE = """
import json, sys
from tokflow.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_of(*arguments: str | Path) -> set[str]:
    """Return the modules that a command has imported, in a process of its own."""
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def other_formats(*used: str) -> set[str]:
    """Return the modules of the formats of exports but for those that are `used`."""
    modules = {FORMATS[name].options.__module__ for name in FORMATS if name not in used}
    return {module for module in modules if not module.endswith((".token_files", ".npy"))}


def test_help_imports_nothing_but_the_options():
    imported = modules_of("--help")

    assert imported & (HEAVY | BY_PARQUET | other_formats()) == set()
    assert "pyarrow" not in imported


def test_the_list_of_formats_imports_no_engine_and_no_parquet():
    assert modules_of("formats") & (HEAVY | BY_PARQUET) == set()


def test_one_format_is_shown_without_the_others():
    imported = modules_of("formats", "bin")

    assert imported & (HEAVY | BY_PARQUET | other_formats("bin")) == set()


def test_an_inspection_reads_parquet_and_imports_no_other_format(store: Path):
    imported = modules_of("inspect", store / "exports/bin/latest")

    assert imported & (HEAVY | other_formats("bin")) == set()


@pytest.mark.parametrize("command", ["run", "plan"])
def test_where_nothing_is_to_do_nothing_is_imported_for_it(command: str, store: Path, config: Path):
    imported = modules_of(command, "--config", config)

    used = ("bin", "parquet", "pickle")
    assert imported & (HEAVY | BY_PARQUET | other_formats(*used)) == set()


def test_a_worker_imports_no_yaml_and_no_command_line():
    code = "import json, sys, tokflow.pipeline.tasks\nprint(json.dumps(sorted(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    imported = set(json.loads(done.stdout))
    assert imported & (HEAVY | BY_PARQUET | other_formats() | {"yaml", "typer", "rich"}) == set()


def test_what_was_imported_is_not_looked_at_again_when_a_command_ends():
    code = f"import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count()))\n{CODE}"

    done = subprocess.run(
        [sys.executable, "-c", code, "formats", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout.splitlines()[-1]) > 10_000


@pytest.mark.parametrize(("asked", "num_threads"), [(None, "1"), ("2", "2")])
def test_a_command_has_no_threads_for_matrices_unless_they_are_asked_for(
    asked: str | None, num_threads: str
):
    code = f"{CODE}\nimport numpy, os\nprint(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": asked} if asked else {}

    done = subprocess.run(
        [sys.executable, "-c", code.replace("sys.modules", "{*sys.modules} & {'numpy'}"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    assert done.stdout.splitlines()[-1] == num_threads
    assert json.loads(done.stderr) == []  # numpy, which reads it, comes later
