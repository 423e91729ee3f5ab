import re
from pathlib import Path

import pytest

from tokflow.build.dataset import load_dataset
from tokflow.exports import FORMATS
from tokflow.sequences.packing import PACKERS

README = Path(__file__).parent.parent / "README.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_yaml_in_the_readme_declares_a_dataset(tmp_path: Path):
    (block,) = code_blocks("yaml")
    (tmp_path / "my.yaml").write_text(block, encoding="utf-8")

    dataset = load_dataset(tmp_path / "my.yaml")

    assert dataset.name == "stack_c"
    assert dataset.split.parts["train"].characters == 100_000_000
    assert dataset.packing.sequence_length == 1536
    assert [export.name for export in dataset.exports] == ["bin", "pickle", "parquet"]
    assert dataset.exports[1].options.sequences_per_file == 10_000


def first_cells(heading: str) -> list[str]:
    """Return the names in the first column of the table under a heading."""
    section = README.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_the_formats_table_has_a_row_for_each_format():
    assert sorted(first_cells("Formats")) == sorted(FORMATS)


def test_the_packing_table_has_a_row_for_each_strategy():
    assert sorted(first_cells("Packing")) == sorted(PACKERS)


@pytest.mark.parametrize("block", code_blocks("python"))
def test_the_python_in_the_readme_compiles(block: str):
    compile(block, "README.md", "exec")
