"""Commands import what they use and no more: imports are most of what a small one costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    *("dagster", "pandas", "torch", "transformers", "fsspec", "concurrent.futures.process"),
    *("gigatoken", "awkward", "tokenizers", "tiktoken", "sentencepiece", "jinja2"),
    *("rich.progress", "tokflow.components"),
}

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


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["formats"], ["inspect", "exports/bin/latest"], ["run"], ["plan"]],
    ids=lambda arguments: arguments[0],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_use(
    arguments: list[str], store: Path, config: Path
):
    arguments = [str(store / of) if of.startswith("exports/") else of for of in arguments]
    if arguments[0] in ("run", "plan"):  # with nothing to do
        arguments = [arguments[0], "--config", str(config)]

    assert modules_of(*arguments) & HEAVY == set()
