import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.suggestion import UNSEEN, Suggestion
from tokflow.pipeline.yaml_file import resolve_templates
from tokflow.pipeline.yaml_writer import dataset_yaml

DEMO = Path(__file__).parents[2] / "tokflow/defs/demo/defs.yaml"


def attributes(text: str) -> dict[str, Any]:
    declared = yaml.safe_load(text)
    assert declared.pop("type") == "tokflow.components.TextDataset"
    return declared["attributes"]


def comments(text: str) -> dict[str, list[str]]:
    """Return the words of the comment above each section, and of those in its lines."""
    blocks = (block.splitlines() for block in text.split("\n\n"))
    found = {}
    for lines in blocks:
        above = list(itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines))
        section = lines[len(above)].split(":")[0].strip()
        beside = [line.partition(" # ")[2] for line in lines[len(above) :]]
        found[section] = [*" ".join(line.strip("# ") for line in above).split(), *beside]
    return found


def test_a_dataset_whose_files_are_not_there_yet_passes_the_checks():
    text = dataset_yaml("new", ["data/raw/new/*"], UNSEEN, in_project=True)

    dataset = Dataset.read(attributes(text), where="text")
    assert dataset.raw.files == ("data/raw/new/*",)
    assert "start at the project's folder" in " ".join(text.split("#")).replace("\n", "")


@pytest.mark.parametrize(
    "word",
    [
        *("on", "7", "{x}", "ü", "'", '"', "null", "*.t", "&a", "a: b", "a #b", " a", "x " * 9),
        *("a\nb", "a\x7fb", "a\x85b", "a\u2028b", "\ufeffa", "😀\x07"),
        *("a{{b}}.jsonl", "a{%b", "{{", "{{1}}", "{{'\"\\😀\x7f", "'{{'", "a{{}}b\n"),
    ],
)
def test_any_name_of_a_file_or_column_is_read_back(word: str):
    found = Suggestion(documents={"text": word}, split=UNSEEN.split, others=(word,), chats=(word,))

    text = dataset_yaml("words", [word, f"{word}2"], found, in_project=False)

    read = resolve_templates(attributes(text), where="text")
    assert read["documents"] == {"text": word}
    assert read["raw"]["files"] == [word, f"{word}2"]


def test_a_name_that_could_be_a_template_is_written_as_one():
    found = Suggestion(documents={"text": "text"}, split=UNSEEN.split)

    text = dataset_yaml("words", ["a{{b}}.jsonl"], found, in_project=False)

    assert """files: "{{ 'a{{b}}.jsonl' }}"\n""" in text


@pytest.mark.parametrize("name", ["2024", "2024-01-01", "null", "true", "off", "1_000", "0x1F"])
def test_any_name_of_a_dataset_is_read_back(name: str):
    text = dataset_yaml(name, ["a.txt"], UNSEEN, in_project=True)

    assert attributes(text)["name"] == name


def test_large_numbers_are_read_back():
    split = {"scope": "dataset", "parts": {"train": {"start": 0, "characters": 13_500_000}}}
    found = Suggestion(documents={"document_per": "file"}, split=split, max_characters=200_000)

    text = dataset_yaml("large", ["a.txt"], found, in_project=False)

    assert attributes(text)["split"] == split
    assert attributes(text)["tokenizer"]["max_characters"] == 200_000
    assert "characters: 13_500_000" in text


def test_its_comments_are_no_wider_than_the_code():
    parts = {"train": {"start": 0, "characters": 10**12}, "validation": {"start": 10**12}}
    found = Suggestion(
        documents={"document_per": "separator", "separator": "<|endoftext|>\n"},
        split={"scope": "dataset", "boundary": "character", "parts": parts},
        max_characters=10**9,
    )

    for suggested in (UNSEEN, found):
        text = dataset_yaml("small", ["data/raw/small/*"], suggested, in_project=True)
        assert max(map(len, text.splitlines())) <= 100
    assert r'separator: "<|endoftext|>\n"' in text  # on its line, as a person would write it


def test_its_comments_are_those_those_of_the_demo():
    text = dataset_yaml("demo", ["data/raw/demo/*.parquet"], UNSEEN, in_project=True)

    ours, demos = comments(text), comments(DEMO.read_text())
    assert ours["type"][-1] == demos["type"][-1]  # of the name
    for name in ("raw", "documents", "packing", "store"):
        assert ours[name] == demos[name], name
    assert [word.replace("dataset", "demo") for word in ours["tokenizer"]] == demos["tokenizer"]
    assert set(ours["exports"]) <= set(demos["exports"])
