"""The programs that make the same token ids from one file, and how each is called."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TOKFLOW_SHARED", ROOT.parent / "shared"))
GPT2 = SHARED / "tokenizers/gpt2"
TIKTOKEN_CACHE = SHARED / "tiktoken-cache"
PEERS = ROOT / ".venv-peers/bin/python"
TOKFLOW = (sys.executable, "-P", "-m", "tokflow")
"""The command `tokflow`, of the package that PYTHONPATH leads to first, if to any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one repeat of one program finds its input and leaves what it makes."""

    file: Path
    folder: Path
    """Empty before the first program of a repeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One line of the table."""

    name: str
    command: Callable[[Place], list[object]]
    output: str | None
    """Where its token ids are, relative to the folder; None where it makes none."""
    needs: tuple[tuple[Path, str], ...] = ()
    """Paths it cannot do without, and how to get each."""
    environment: Callable[[Place], dict[str, object]] = field(default=lambda place: {})

    def missing(self) -> str | None:
        """Return why it cannot run here; None where it can."""
        absent = [f"no {path}: {remedy}" for path, remedy in self.needs if not path.exists()]
        return "; ".join(absent) or None


def raw_engine(place):
    options = ["--tokenizer", GPT2, "--output", place.folder / "raw.bin"]
    return [sys.executable, "-m", "benchmarks.raw_engine", place.file, *options]


def tiktoken_datasets(place):
    options = ["--output", place.folder / "tiktoken.bin", "--processes", os.cpu_count()]
    return [PEERS, "-m", "benchmarks.tiktoken_datasets", place.file, *options]


def peers_environment(place):
    return {
        "TIKTOKEN_CACHE_DIR": TIKTOKEN_CACHE,
        "HF_HOME": place.folder
        / "datasets",  # an empty cache: the second run would read the first's
        "HF_HUB_OFFLINE": 1,
    }


def tokflow_run_config(place):
    config = place.folder / "benchmark.yaml"
    config.write_text(dataset_yaml(place.file))
    return [*TOKFLOW, "run", "--config", config, "--store", place.folder / "store"]


def tokflow_run_name(place):
    """Declare the dataset in a project of its own, with a fresh history of Dagster."""
    project = place.folder / "project"
    if not project.exists():
        shutil.copytree(ROOT / "tokflow", project / "tokflow")
        for name in ("pyproject.toml", "dagster.yaml"):
            shutil.copy2(ROOT / name, project)
        declaration = project / "tokflow/defs/benchmark/defs.yaml"
        declaration.parent.mkdir()
        declaration.write_text(dataset_yaml(place.file))
    return [*TOKFLOW, "run", "benchmark"]


def project_environment(place):
    return {"PYTHONPATH": place.folder / "project", "DAGSTER_DISABLE_TELEMETRY": 1}


def core(place):
    options = ["--tokenizer", GPT2, "--store", place.folder / "core"]
    return [sys.executable, "-m", "benchmarks.core", place.file, *options]


def import_dagster(place):
    return [sys.executable, "-c", "import dagster"]


def dataset_yaml(file):
    """Return a dataset whose `train` is all of one file, exported as .bin; JSON is YAML too."""
    attributes = {
        "name": "benchmark",
        "raw": {"files": str(file)},
        "documents": {"text": "text"},
        "tokenizer": {"kind": "huggingface", "name": str(GPT2)},
        "packing": {"strategy": "concat", "sequence_length": 1024},
        "exports": ["bin"],
    }
    return json.dumps({"type": "tokflow.components.TextDataset", "attributes": attributes})


NEEDS_GPT2 = (GPT2 / "tokenizer.json", "put GPT-2's tokenizer files there")
NEEDS_RANKS = (TIKTOKEN_CACHE, "put tiktoken's cache for gpt2 there")
NEEDS_PEERS = (PEERS, "make bench-peers")

PROGRAMS = (
    Program(
        name="raw engine",
        command=raw_engine,
        output="raw.bin",
        needs=(NEEDS_GPT2,),
    ),
    Program(
        name="tokflow core",
        command=core,
        output="core/dataset/exports/bin/latest/train.bin",
        needs=(NEEDS_GPT2,),
    ),
    Program(
        name="tokflow run --config",
        command=tokflow_run_config,
        output="store/benchmark/exports/bin/latest/train.bin",
        needs=(NEEDS_GPT2,),
    ),
    Program(
        name="tokflow run NAME",
        command=tokflow_run_name,
        output="project/data/store/benchmark/exports/bin/latest/train.bin",
        needs=(NEEDS_GPT2,),
        environment=project_environment,
    ),
    Program(
        name="tokflow run NAME again",
        command=tokflow_run_name,
        output=None,
        needs=(NEEDS_GPT2,),
        environment=project_environment,
    ),
    Program(
        name="tiktoken + datasets",
        command=tiktoken_datasets,
        output="tiktoken.bin",
        needs=(NEEDS_RANKS, NEEDS_PEERS),
        environment=peers_environment,
    ),
    Program(name="import dagster", command=import_dagster, output=None),
)
