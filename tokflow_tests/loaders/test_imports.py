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


def test_loaders_need_no_torch_pandas_or_dagster():
    code = f"""
import sys
import {", ".join(MODULES)}
print(*{{"torch", "grain", "jax", "pandas", "dagster", "transformers"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.parametrize("module", [tokflow, tokflow.loaders])
def test_a_shell_completes_names_that_are_not_imported_yet(module: ModuleType):
    assert {*module.__all__} <= {*dir(module)}
