"""Our own programs that make token ids from one file, and how each is called."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TOKFLOW_SHARED", ROOT.parent / "shared"))
GPT2 = SHARED / "tokenizers/gpt2"
EOS_ID = 50256
TOKFLOW = (sys.executable, "-P", "-m", "tokflow")
"""The command `tokflow`, of the package that PYTHONPATH leads to first, if to any."""
DAGSTER = (sys.executable, "-P", "-m", "dagster")
KINDS = ("jsonl", "parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one repeat of one program finds its input and leaves what it makes."""

    file: Path
    """A pattern, such as `raw/*.jsonl`, where there are several."""
    folder: Path
    """Empty before the first program of a repeat."""
    jobs: int | None = None
    """How many processes work at once, on no more cores; None: as many as the machine has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One line of the table."""

    name: str
    command: Callable[[Place], list[object]]
    output: str | None
    """Where its token ids are as uint16, relative to the folder; None where it makes none."""
    needs: tuple[tuple[Path, str], ...] = ()
    """Paths it cannot do without, and how to get each."""
    environment: Callable[[Place], dict[str, object]] = field(default=lambda place: {})
    working_folder: Callable[[Place], Path] = field(default=lambda place: ROOT)
    prepare: Callable[[Place], list[object]] | None = None
    """What is run before and not timed."""
    read: Callable[[Place], list[object]] | None = None
    """What is run after, and not timed, to make `output` from the program's own format."""
    is_peer: bool = False
    kinds: tuple[str, ...] = KINDS
    """The files it reads."""
    difference: str | None = None
    """Why its tokens are not tokflow's, where they are not."""

    def missing(self) -> str | None:
        """Return why it cannot run here; None where it can."""
        return absent(self.needs)


def absent(needs):
    """Return which paths are not there, and how to get each; None where all are."""
    return "; ".join(f"no {path}: {remedy}" for path, remedy in needs if not path.exists()) or None


def raw_engine(place):
    output = place.folder / "raw.bin"
    return [sys.executable, "-m", "benchmarks.raw_engine", place.file, GPT2, output]


def core(place):
    """Without Dagster: into an empty store, up to the bin export."""
    code = (
        "import sys, tokflow; file, name, store = sys.argv[1:]; tokflow.tokenize_and_save("
        "file, tokenizer={'kind': 'huggingface', 'name': name}, output=store)"
    )
    return [sys.executable, "-c", code, place.file, GPT2, place.folder / "core"]


def tokflow_run_config(place):
    config = place.folder / "benchmark.yaml"
    config.write_text(dataset_yaml(place.file))
    jobs = ["--jobs", place.jobs] if place.jobs else []
    return [*TOKFLOW, "run", "--config", config, "--store", place.folder / "store", *jobs]


def tokflow_run_name(place):
    """Declare the dataset in a project of its own, with a fresh history of Dagster."""
    project = place.folder / "project"
    if not project.exists():
        declaration = project / "benchmarks/defs/benchmark/defs.yaml"
        declaration.parent.mkdir(parents=True)
        declaration.write_text(dataset_yaml(place.file))
        pyproject = '[tool.dg.project]\nroot_module = "benchmarks"\n'
        (project / "pyproject.toml").write_text(pyproject)
        shutil.copy2(ROOT / "dagster.yaml", project)
    return [*TOKFLOW, "run", "benchmark"]


def dagster_job(place):
    return [*DAGSTER, "job", "execute", "-m", "tokflow.definitions", "-j", "benchmark_build"]


def project_folder(place):
    return place.folder / "project"


def dataset_yaml(files, **changes):
    """Return a dataset whose `train` is all of the files, exported as .bin; JSON is YAML too.

    `changes` replace attributes.
    """
    attributes = {
        "name": "benchmark",
        "raw": {"files": str(files)},
        "documents": {"text": "text"},
        "tokenizer": {"kind": "huggingface", "name": str(GPT2)},
        "packing": {"strategy": "concat", "sequence_length": 1024},
        "exports": ["bin"],
        **changes,
    }
    return json.dumps({"type": "tokflow.components.TextDataset", "attributes": attributes})


NEEDS_GPT2 = (GPT2 / "tokenizer.json", "put GPT-2's tokenizer files there")

of_gpt2 = partial(Program, needs=(NEEDS_GPT2,))
in_project = partial(of_gpt2, working_folder=project_folder)

CORE = of_gpt2(
    name="tokflow core", command=core, output="core/dataset/exports/bin/latest/train.bin"
)
RAW_ENGINE = of_gpt2(name="raw engine", command=raw_engine, output="raw.bin")
RUN_CONFIG = of_gpt2(
    name="tokflow run --config",
    command=tokflow_run_config,
    output="store/benchmark/exports/bin/latest/train.bin",
)
RUN_NAME = in_project(
    name="tokflow run NAME",
    command=tokflow_run_name,
    output="project/data/store/benchmark/exports/bin/latest/train.bin",
)
RUN_NAME_AGAIN = in_project(name="tokflow run NAME again", command=tokflow_run_name, output=None)
DAGSTER_JOB = in_project(name="dagster job execute again", command=dagster_job, output=None)
OWN = (CORE, RAW_ENGINE, RUN_CONFIG, RUN_NAME, RUN_NAME_AGAIN)
