import pkgutil
import subprocess
import sys

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
