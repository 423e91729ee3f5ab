"""Where declared datasets are."""

from pathlib import Path

import pytest

import tokflow
from tokflow.datasets import list_declared, load_declared, project_root
from tokflow.errors import ConfigError

DECLARATION = """\
type: tokflow.components.TextDataset
attributes:
  name: {name}
  raw: {{files: data/*.txt}}
  tokenizer: {{kind: bytes}}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package somewhere; the current folder is another one."""
    package = tmp_path / "place" / "tokflow"
    (tmp_path / "elsewhere").mkdir()
    declare(package, "demo")
    monkeypatch.setattr(tokflow, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return package


def declare(package: Path, folder: str, name: str | None = None) -> Path:
    path = package / "defs" / folder / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(DECLARATION.format(name=name or folder))
    return path


def test_in_a_checkout_paths_start_at_its_root_from_wherever(package: Path):
    (package.parent / "pyproject.toml").touch()

    dataset = load_declared("demo")

    assert project_root() == package.parent
    assert dataset.base == package.parent
    assert dataset.store == package.parent / "data/store"


def test_without_a_checkout_paths_start_at_the_current_folder(package: Path):
    own = declare(Path.cwd() / "tokflow", "own")

    assert project_root() == Path.cwd()
    assert list_declared() == {"demo": package / "defs" / "demo" / "defs.yaml", "own": own}
    assert load_declared("own").store == Path.cwd() / "data/store"


def test_a_store_can_be_another(package: Path, tmp_path: Path):
    assert load_declared("demo", store=tmp_path / "store").store == tmp_path / "store"


def test_an_unknown_name_lists_those_that_there_are(package: Path):
    with pytest.raises(ConfigError, match="dataset 'dema': expected one of demo, found none"):
        load_declared("dema")


def test_a_dataset_has_the_name_of_its_folder(package: Path):
    declare(package, "one", name="two")

    with pytest.raises(ConfigError, match="expected the name of its folder, 'one', found 'two'"):
        load_declared("one")


def test_a_broken_file_breaks_no_other_dataset(package: Path):
    declare(package, "bad").write_text("{")

    assert list(list_declared()) == ["bad", "demo"]
    assert load_declared("demo").name == "demo"
