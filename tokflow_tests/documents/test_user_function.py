"""Functions that a YAML names: found without running, run as they were found."""

import pickle
import sys
from pathlib import Path

import pytest

from tokflow.documents.user_function import UserFunction, find_function
from tokflow.errors import ConfigError


def find(folder: Path, text: str) -> UserFunction:
    return find_function(text, folder, where="a.yaml: documents.transform")


def write(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def test_a_module_is_found_without_being_run(tmp_path: Path):
    write(tmp_path / "unrun/__init__.py", "raise ValueError('run')\ndef f(text): ...\n")
    path = write(tmp_path / "unrun/mod.py", "raise ValueError('run')\ndef f(text): ...\n")

    assert find(tmp_path, "unrun.mod:f").path == path
    assert find(tmp_path, "unrun:f").path == tmp_path / "unrun/__init__.py"
    assert not [name for name in sys.modules if name.startswith("unrun")]


def test_the_folder_of_the_yaml_comes_before_where_python_looks(tmp_path: Path, monkeypatch):
    write(tmp_path / "site/clean_a.py", "def f(text): return 'site'")
    write(tmp_path / "site/clean_b.py", "def f(text): return 'site'")
    write(tmp_path / "here/clean_a.py", "def f(text): return 'here'")
    monkeypatch.syspath_prepend(tmp_path / "site")

    assert find(tmp_path / "here", "clean_a:f").load()("x") == "here"
    assert find(tmp_path / "here", "clean_b:f").load()("x") == "site"


def test_what_runs_is_what_was_found_and_not_what_the_file_holds_later(tmp_path: Path):
    path = write(tmp_path / "edited.py", "def f(text): return 1")
    first = find(tmp_path, "edited:f")
    path.write_text("def f(text): return 2")
    second = find(tmp_path, "edited:f")

    assert second.load()("x") == 2
    assert pickle.loads(pickle.dumps(first)).load()("x") == 1
    assert first.sha256 != second.sha256
    assert "edited" not in sys.modules


def test_a_module_may_import_its_neighbours_and_define_dataclasses(tmp_path: Path):
    write(tmp_path / "neighbour_x.py", "SUFFIX = '!'")
    write(tmp_path / "pack_x/__init__.py", "")
    write(tmp_path / "pack_x/sibling.py", "SUFFIX = '?'")
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from neighbour_x import SUFFIX\nfrom .sibling import SUFFIX as OTHER\n"
        "@dataclass\nclass Rule:\n    end: str\n"
        "def f(text):\n    return text + Rule(SUFFIX).end + OTHER\n"
    )
    write(tmp_path / "pack_x/mod.py", source)
    write(tmp_path / "pack_y/__init__.py", source.replace(".sibling", "pack_x.sibling"))

    assert find(tmp_path, "pack_x.mod:f").load()("x") == "x!?"
    assert find(tmp_path, "pack_y:f").load()("x") == "x!?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere:f", "expected a module nowhere, that is nowhere.py in"),
        ("broken:f", "broken.py, line 2: expected Python source, found SyntaxError"),
        ("fine:stripp", "found none of that name; did you mean 'strip'?"),
    ],
)
def test_what_cannot_be_found_is_an_error_before_anything_runs(
    text: str, said: str, tmp_path: Path
):
    write(tmp_path / "broken.py", "\ndef f(:\n")
    write(tmp_path / "fine.py", "def strip(text): ...")

    with pytest.raises(ConfigError, match=r"a\.yaml: documents\.transform") as error:
        find(tmp_path, text)

    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_package\nf = 1", "found ModuleNotFoundError: No module named"),
        ("def g(): raise SystemExit(2)\ng()\nf = 1", "found SystemExit: 2 (in line 1 of bad.py)"),
        ("f = 1", "found a int of that name"),
        ("f = 1\ndel f", "found a NoneType of that name"),
    ],
)
def test_what_cannot_be_run_is_an_error_of_the_config(source: str, said: str, tmp_path: Path):
    write(tmp_path / "bad.py", source)

    with pytest.raises(ConfigError) as error:
        find(tmp_path, "bad:f").load()

    assert said in str(error.value)
    assert not [name for name in sys.modules if name.startswith("bad@")] or "of that name" in said
