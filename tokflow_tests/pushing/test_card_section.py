import re
from pathlib import Path

import pytest
import yaml

from tokflow import open_export
from tokflow.exports import FORMATS
from tokflow.hub.card_section import card_config, card_section
from tokflow.hub.target import read_target
from tokflow_tests.tiny import TEXTS, build, declare

TARGET = read_target("hf://datasets/team/texts/rows")
LOADED = {"parquet", "jsonl", "arrow", "hf_dataset", "webdataset"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the exports of a dataset whose raw files do not begin alike."""
    dataset = declare(tmp_path_factory.mktemp("made"), TEXTS, exports=[*FORMATS])
    build(dataset)
    return dataset.folder / "exports"


def recipes(section: str) -> dict[str, dict[str, object]]:
    [block] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    return yaml.safe_load(block)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_has_lines_that_load_it(format_: str, made: Path):
    export = open_export(made / format_)

    section = card_section(export, TARGET)

    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        compile(block, "README.md", "exec")
    assert ("load_dataset" in section) == (format_ in LOADED)
    assert ("open_rows" in section) == export.is_read
    splits = [of["split"] for of in card_config(export, TARGET)["data_files"]]
    assert splits == (["train"] if format_ in LOADED else ["index"])


def test_the_recipe_goes_down_to_the_tokenizer(made: Path):
    section = card_section(open_export(made / "parquet"), TARGET)

    found = recipes(section)
    assert [*found] == ["export", "sequences", "split", "tokens", "tokenizer"]
    assert found["tokenizer"] == {"version": 2, "kind": "bytes"}
    assert "| train | 52 | 13 |" in section


def test_without_its_store_an_export_has_its_own_recipe(made: Path, tmp_path: Path):
    export = open_export(made / "bin")
    copy = export.folder.rename(tmp_path / export.folder.name)
    try:
        section = card_section(open_export(copy), TARGET)
    finally:
        copy.rename(export.folder)

    assert [*recipes(section)] == ["export"]
