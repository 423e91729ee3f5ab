from typing import Any

import pytest
import yaml

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.suggestion import UNSEEN, Suggestion
from tokflow.pipeline.yaml_file import resolve_templates
from tokflow.pipeline.yaml_writer import dataset_yaml


def attributes(text: str) -> dict[str, Any]:
    declared = yaml.safe_load(text)
    assert declared.pop("type") == "tokflow.components.TextDataset"
    return declared["attributes"]


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
