"""The code of docs/loaders.md with torch, Grain and JAX does what it says."""

from pathlib import Path

import jax
import pytest

from tokflow_tests.loaders.documentation import WITH_NUMPY, run_sections

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # StatefulDataLoader calls it
]


def test_the_code_with_torch_gives_batches_of_the_loader(tmp_path: Path):
    found = run_sections(tmp_path, *WITH_NUMPY, "torch")

    with found["Loader"](found["rows"], batch_size=8, rank=0, world_size=2, seed=1) as loader:
        expected = next(loader)
    assert found["batch"]["input_ids"].tolist() == expected["input_ids"].tolist()


def test_the_code_with_grain_gives_rows_in_their_order(tmp_path: Path):
    found = run_sections(tmp_path, *WITH_NUMPY, "Grain")

    expected = found["rows"].shuffled(seed=1)[:4]
    assert found["batch"]["input_ids"].tolist() == expected["input_ids"].tolist()


def test_the_code_with_jax_gives_an_array_of_all_processes(tmp_path: Path):
    found = run_sections(tmp_path, *WITH_NUMPY, "JAX")

    expected = found["rows"].shuffled(seed=1)[:8]
    assert isinstance(found["input_ids"], jax.Array)
    assert found["input_ids"].tolist() == expected["input_ids"].tolist()
