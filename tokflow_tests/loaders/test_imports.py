import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import tokflow
import tokflow.loaders

MODULES = [
    f"tokflow.loaders.{module.name}" for module in pkgutil.iter_modules(tokflow.loaders.__path__)
]


def test_loaders_import_nothing_heavy_and_nothing_before_they_are_asked_for():
    code = f"""
import sys, tokflow.loaders
print(*{{"numpy", "pyarrow"}} & {{*sys.modules}})
import {", ".join(MODULES)}
heavy = {{"torch", "grain", "jax", "pandas", "dagster", "tokenizers", "transformers"}}
print(*heavy & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.parametrize("module", [tokflow, tokflow.loaders])
def test_a_shell_completes_names_that_are_not_imported_yet(module: ModuleType):
    assert {*module.__all__} <= {*dir(module)}
