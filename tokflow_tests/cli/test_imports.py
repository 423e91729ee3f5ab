"""Commands import what they use and no more: imports are most of what a small one costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tokflow.exports import FORMATS
from tokflow_tests.tiny import write_raw, write_yaml

HEAVY = {
    *("dagster", "pandas", "torch", "transformers", "fsspec", "concurrent.futures.process"),
    *("gigatoken", "awkward", "tokenizers", "tiktoken", "sentencepiece", "jinja2"),
    *("rich.progress", "tokflow.components"),
}

BY_PARQUET = {"pyarrow.parquet", "pyarrow.fs", "pyarrow.compute", "ssl", "urllib3"}
"""Imported where a parquet file is read or written."""

NOT_FOR_NOTHING = {
    *("rich", "multiprocessing", "urllib.request", "http.client"),
    *("tokflow.cli.closing_summary", "tokflow.cli.progress", "tokflow.cli.recorded"),
    *("tokflow.pipeline.run", "tokflow.pipeline.tasks", "tokflow.pipeline.run_log"),
    *("tokflow.pipeline.describe", "tokflow.audit", "tokflow.views"),
}
"""What a run needs that builds, shows or records something."""

CODE = """
import atexit, gc, json, os, sys
from tokflow.cli import main
atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps([sorted(sys.modules), os.environ["OPENBLAS_NUM_THREADS"]]), file=sys.stderr)
"""


def ended(*arguments: str | Path, **variables: str) -> tuple[set[str], str, int]:
    """Return the modules that a command has imported in a process of its own, the threads that it
    has for matrices, and the objects that are not looked at again when it ends."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment | variables,
    )
    said, num_frozen = done.stderr.splitlines()
    modules, threads = json.loads(said)
    return set(modules), threads, int(num_frozen)


def modules_of(*arguments: str | Path) -> set[str]:
    return ended(*arguments)[0]


def other_formats(*used: str) -> set[str]:
    """Return the modules of the formats of exports but for those that are `used`."""
    modules = {FORMATS[name].options.__module__ for name in FORMATS if name not in used}
    return {module for module in modules if not module.endswith((".token_files", ".npy"))}


def test_help_imports_nothing_but_the_options_and_takes_the_threads_that_are_asked_for():
    imported, threads, _ = ended("--help", OPENBLAS_NUM_THREADS="2")

    assert imported & (HEAVY | BY_PARQUET | other_formats() | {"pyarrow", "numpy"}) == set()
    assert threads == "2"  # which numpy reads when it is imported


def test_the_formats_import_no_stage_and_no_dataset():
    assert modules_of("formats") & {"tokflow.pipeline.dataset", "tokflow.tokens.stage"} == set()


def test_a_run_with_nothing_to_do_imports_neither_dagster_nor_rich_nor_what_writes(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["ab"], "b.parquet": ["c"]})
    config = write_yaml(tmp_path, raw={"files": "raw/*"}, exports=["bin"])
    ended("run", "--config", config, "--jobs", "1")

    imported, _, _ = ended("run", "--config", config, "--jobs", "1")

    assert imported & (HEAVY | BY_PARQUET | other_formats("bin") | NOT_FOR_NOTHING) == set()


def test_an_inspection_imports_no_engine_and_no_other_format_and_nothing_is_looked_at_again(
    store: Path,
):
    imported, threads, num_frozen = ended("inspect", store / "exports/bin/latest")

    assert imported & (HEAVY | other_formats("bin")) == set()
    assert threads == "1"
    assert num_frozen > 10_000
