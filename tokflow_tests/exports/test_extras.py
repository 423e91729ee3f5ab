import sys
from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.exports.format import Extra
from tokflow_tests.tiny import declare

MISSING = "no_such_package_at_all"


def test_a_module_that_is_missing_says_which_extra_brings_it():
    with pytest.raises(ConfigError) as caught:
        Extra(name="lance", module=MISSING).load()

    assert (caught.value.where, caught.value.found) == ("lance", "none")


def test_a_module_that_lacks_what_it_needs_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "half_installed.py").write_text(f"import {MISSING}\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match=MISSING):
        Extra(name="lance", module="half_installed").load()


def test_looking_for_a_module_does_not_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "slow_to_import.py").write_text("raise AssertionError\n")
    monkeypatch.syspath_prepend(tmp_path)

    Extra(name="lance", module="slow_to_import").check(where="exports: lance")

    assert "slow_to_import" not in sys.modules


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if format_.extra])
def test_a_dataset_whose_export_needs_a_missing_extra_is_refused_when_it_is_declared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    extra = FORMATS[name].extra
    monkeypatch.setitem(sys.modules, extra.module, None)

    with pytest.raises(ConfigError) as caught:
        declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["bin", name])

    assert (caught.value.where, caught.value.found) == ("test: exports[1]", "none")
