import re
from pathlib import Path

from tokflow.exports import FORMATS
from tokflow_tests.tiny import load_dataset

README = Path(__file__).parent.parent / "README.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_six_lines_of_the_readme_declare_a_dataset(tmp_path: Path):
    [block] = code_blocks("yaml")
    (tmp_path / "mine.yaml").write_text(block, encoding="utf-8")

    dataset = load_dataset(tmp_path / "mine.yaml")

    assert len(block.splitlines()) == 6
    assert dataset.name == "mine"
    assert [export.name for export in dataset.exports] == ["bin", "parquet"]
    assert len(FORMATS) == 19  # "any of nineteen formats"


def test_the_readme_is_one_screen_for_each_of_its_first_two_questions():
    sections = README.read_text(encoding="utf-8").split("\n## ")

    assert all(len(section.splitlines()) <= 40 for section in sections)
    assert len(README.read_text(encoding="utf-8")) < 6_000
