"""The pages of docs: code, tables and links. `make docs` checks the site that they become."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tokflow.cli.app import COMMANDS
from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.sequences.packing import PACKERS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def datasets_of(page: str, folder: Path) -> list[Dataset]:
    """Return the datasets that the YAML of a page declares."""
    [block] = blocks(text_of(page), "yaml")
    (folder / "my.yaml").write_text(block, encoding="utf-8")
    return load_datasets(folder / "my.yaml")


def test_the_yaml_of_your_data_declares_a_dataset(tmp_path: Path):
    [dataset] = datasets_of("data.md", tmp_path)

    assert dataset.name == "stack_c"
    assert dataset.split.parts["train"].characters == 100_000_000
    assert dataset.packing.sequence_length == 1536
    assert [export.name for export in dataset.exports] == ["bin", "pickle", "parquet"]
    assert dataset.exports[1].options.shard_size == 500_000_000


def test_the_yaml_of_packing_declares_a_dataset(tmp_path: Path):
    [dataset] = datasets_of("packing.md", tmp_path)

    assert dataset.packing.strategy == "best_fit"
    assert dataset.packing.of_part("validation").sequence_length == 512
    assert [export.name for export in dataset.exports] == ["parquet", "short"]


def test_the_site_has_every_page_of_docs():
    named = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.name for page in ROOT.glob("docs/*.md")} <= named
    linked = set(links(ROOT / "docs/index.md")) | {"index.md", "tutorial.md"}
    assert {page.name for page in ROOT.glob("docs/*.md")} <= linked


def test_the_yaml_of_mixtures_declares_three_datasets(tmp_path: Path):
    datasets = datasets_of("mixtures.md", tmp_path)

    assert [dataset.name for dataset in datasets] == ["code", "prose", "mixed"]
    assert [source.name for source in datasets[2].sources] == ["code", "prose"]


def test_each_dataset_of_chats_is_one_for_the_trainer_under_whose_name_it_stands(tmp_path: Path):
    sections = re.split(r"^## ", text_of("chats.md"), flags=re.MULTILINE)[1:5]
    found = {}
    for section in sections:
        block, *_ = blocks(section, "yaml")
        (tmp_path / "my.yaml").write_text(block, encoding="utf-8")
        [export] = load_dataset(tmp_path / "my.yaml").exports
        found[section.splitlines()[0].lower()] = export.name

    assert found == {name: name for name in ("trl", "axolotl", "torchtitan", "megatron-bridge")}


def first_cells(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the table under a heading."""
    section = text_of(page).split(f"# {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_the_formats_table_has_a_row_for_each_format():
    assert sorted(first_cells("formats.md", "Formats")) == sorted(FORMATS)


def test_the_packing_table_has_a_row_for_each_strategy():
    assert sorted(first_cells("packing.md", "Strategies")) == sorted(PACKERS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_can_be_read(page: Path):
    text = page.read_text(encoding="utf-8")

    for block in blocks(text, "python"):
        compile(block, page.name, "exec")
    for block in blocks(text, "yaml"):
        yaml.safe_load(block)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def links(page: Path) -> Iterator[str]:
    """Yield the links of a page into the repository, and its pictures."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if "://" not in target:
            yield target


def anchors(page: Path) -> set[str]:
    """Return what links may name in a page, as web sites of repositories and mkdocs write it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_command_that_is_told_of_is_there():
    known = {*COMMANDS}

    told = re.findall(r"^\| `tokflow ([\w-]+)", text_of("running.md"), re.MULTILINE)

    assert {*told} <= known
    assert {"run", "plan", "verify", "schema"} <= {*told}


def test_the_code_page_names_files_that_exist_for_each_thing_to_add():
    rows = re.findall(r"^\| (an? [^|]+) \| ([^|]*`[^|]+) \|$", text_of("code.md"), re.MULTILINE)

    places = {thing: re.findall(r"`(tokflow/[\w/.]+)`", where) for thing, where in rows}

    assert [*places] == [
        "a raw source",
        "a split rule",
        "a stage",
        "a store on another cloud",
        "a number of the closing table",
    ]
    assert all(places.values())
    assert [path for of in places.values() for path in of if not (ROOT / path).is_file()] == []
