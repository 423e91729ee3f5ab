"""Nothing is made from a fault: what comes to be has the bytes that it has without, or nothing."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import trace_tokens
from tokflow.errors import TokflowError
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.results import BuildResult
from tokflow.pipeline.run import build_dataset
from tokflow_tests.integrity.store import FAULTS, declared, files_of, outputs
from tokflow_tests.outputs import content, touched
from tokflow_tests.tiny import copy_of

pytestmark = pytest.mark.integrity

NEW_EXPORTS = [
    {"format": "bin", "name": "again"},
    {"format": "mds", "name": "rows"},
]
OTHER_SPLIT = {
    "boundary": "character",
    "parts": {"train": {"characters": 9}, "validation": {"start": 9}},
}
CHANGES: dict[str, dict[str, Any]] = {
    "raw": {"tokenizer": {"kind": "bytes"}},
    "tokenizer": {"documents": {"on_bad_document": "reject", "limit": {"documents": 2}}},
    "tokens": {"split": OTHER_SPLIT},
    "split": {"packing": {"sequence_length": 4}},
    "sequences": {},
}
"""What is declared otherwise, so that an output of the stage is read again."""


def rebuilt(folder: Path, url: str, stage: str) -> BuildResult:
    """Build what reads the outputs of `stage`, and two exports that are new."""
    return build_dataset(declared(folder, url, **{**CHANGES[stage], "exports": NEW_EXPORTS}))


def made_by(built: BuildResult, folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the content of each output that is new, by its path below `folder`."""
    return {
        made.output.folder.relative_to(folder).as_posix(): content(made.output.folder)
        for made in built.made
        if made.is_new
    }


def copies(stages: Path, folder: Path, output: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a copy for each file of an output, and the file in it."""
    for ordinal, name in enumerate(files_of(output)):
        (folder / str(ordinal)).mkdir()
        copy = copy_of(stages, folder / str(ordinal))
        yield copy, copy / output.relative_to(stages) / name
        shutil.rmtree(copy)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("stage", CHANGES)
def test_a_run_makes_the_right_bytes_or_none(
    stage: str, fault: Callable[[Path], None], stages: Path, url: str, tmp_path: Path
):
    (tmp_path / "right").mkdir()
    folder = copy_of(stages, tmp_path / "right")
    right = made_by(rebuilt(folder, url, stage), folder)
    of_first_run = content(stages / "store")

    for copy, path in copies(stages, tmp_path, outputs(stages / "store")[stage][0]):
        fault(path)
        again = rebuilt(copy, url, stage)
        for name, files in made_by(again, copy).items():
            whole = {f"{name}/{file}".removeprefix("store/"): data for file, data in files.items()}
            assert files == right.get(name) or whole.items() <= of_first_run.items(), (path, name)
        assert again.failed or right.keys() <= made_by(again, copy).keys(), path


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("stage", CHANGES)
def test_who_only_looks_writes_nothing(
    stage: str, fault: Callable[[Path], None], stages: Path, url: str, tmp_path: Path
):
    for copy, path in copies(stages, tmp_path, outputs(stages / "store")[stage][0]):
        fault(path)
        before = touched(copy / "store")
        export = copy / "store/small/exports/mds/latest"

        looks: list[Callable[[], object]] = [
            lambda path=path: inspect_output(path.parent),
            lambda export=export: inspect_output(export),
            lambda export=export: trace_tokens(export, part="train", start=0, stop=1),
            lambda copy=copy: make_plan(declared(copy, url, exports=["mds"])),
        ]
        for look in looks:
            try:
                look()
            except TokflowError:
                continue

        hashes = "small/hashes.jsonl"  # the copies of the raw files are new to it
        assert {**touched(copy / "store"), hashes: before[hashes]} == before
