"""Several datasets in one YAML, and the templates in it."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from tokflow.errors import ConfigError
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.yaml_file import as_template, resolve_templates

DEFAULTS: dict[str, Any] = {
    "tokenizer": {"kind": "bytes", "eos": "none"},
    "documents": {"text": "body", "limit": {"documents": 5}},
    "packing": {"sequence_length": 8},
    "exports": ["bin"],
}


def write(folder: Path, datasets: Any, **more: Any) -> Path:
    path = folder / "several.yaml"
    fields = {"defaults": DEFAULTS, "datasets": datasets, **more}
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_datasets(path)
    return str(raised.value).removeprefix(f"{path}: ")


def test_a_dataset_says_what_differs_from_the_defaults_field_by_field(tmp_path: Path):
    datasets = {
        "code": {"raw": {"files": "*.c"}, "documents": {"text": "content"}},
        "prose": {"raw": {"files": "*.txt"}, "documents": None, "packing": {"strategy": "greedy"}},
        "chars": {
            "raw": {"files": "*.txt"},
            "documents": {"limit": {"characters": 9}},
            "tokenizer": {"eos": None},
            "exports": ["parquet", "jsonl"],
        },
    }

    code, prose, chars = load_datasets(write(tmp_path, datasets))

    assert [of.name for of in (code, prose, chars)] == ["code", "prose", "chars"]
    assert (code.documents.text, code.documents.limit.documents) == ("content", 5)
    assert (prose.documents.text, prose.documents.limit.documents) == ("text", None)
    assert (prose.packing.strategy, prose.packing.sequence_length) == ("greedy", 8)
    limit = chars.documents.limit  # a field is replaced whole
    assert (chars.documents.text, limit.documents, limit.characters) == ("body", None, 9)
    assert (code.tokenizer.eos, chars.tokenizer.eos) == ("none", "last")
    assert [of.name for of in chars.exports] == ["parquet", "jsonl"]


def test_short_forms_are_defaults_as_what_they_stand_for(tmp_path: Path):
    defaults = {"tokenizer": "gpt2", "split": {"train": 0.9, "validation": 0.1}}
    datasets = {
        "a": {"raw": {"files": "*.txt"}, "tokenizer": {"eos": "none"}, "split": {"seed": 3}},
        "b": {"raw": {"files": "*.txt"}, "tokenizer": "bytes", "split": {"train": 0.5}},
    }

    a, b = load_datasets(write(tmp_path, datasets, defaults=defaults))

    assert (a.tokenizer.name, a.tokenizer.eos, b.tokenizer.kind) == ("gpt2", "none", "bytes")
    assert ([*a.split.parts], a.split.seed) == (["train", "validation"], 3)
    assert {name: part.fraction for name, part in b.split.parts.items()} == {"train": 0.5}


@pytest.mark.parametrize(
    ("datasets", "more", "message"),
    [
        ({}, {}, "datasets: expected datasets by their names, for there are defaults, found none"),
        (["a"], {}, "datasets: expected a mapping, found list"),
        ({"a": "b"}, {}, "datasets.a: expected a mapping, found str"),
        ({"a": {"name": "b"}}, {}, "datasets.a.name: expected none, for a dataset has the name"),
        ({"a": {}}, {"store": "x"}, "expected one of the keys defaults, datasets, found 'store'"),
        (
            {"a": {"raw": {"files": "x"}, "packing": {"size": 1}}},
            {},
            "datasets.a: packing: expected one of the keys",
        ),
        ({"a": None}, {}, "datasets.a: expected `raw:`, found none"),
        ({"a/b": {"raw": {"files": "x"}}}, {}, "datasets.a/b: name: expected"),
    ],
)
def test_what_is_wrong_says_of_which_dataset(
    datasets: Any, more: dict[str, Any], message: str, tmp_path: Path
):
    assert error_of(write(tmp_path, datasets, **more)).startswith(message)


def test_null_and_a_mixture_of_the_defaults_mean_what_they_say(tmp_path: Path):
    raw = {"raw": {"files": "*.txt"}, "documents": None}
    datasets = {
        "plain": {**raw, "mixture": None},
        "mixed": {},
        "nulls": {"mixture": {"tokens": 9}, "documents": None, "tokenizer": None, "owners": None},
    }
    sources = {"plain": {"weight": 1}}
    path = write(tmp_path, datasets, defaults={**DEFAULTS, "mixture": {"sources": sources}})

    plain, mixed, nulls = load_datasets(path)

    assert (plain.mixture, plain.tokenizer.kind) == (None, "bytes")
    assert [of.name for of in (*mixed.sources, *nulls.sources)] == ["plain", "plain"]
    assert (mixed.mixture.tokens, nulls.mixture.tokens) == (None, 9)
    datasets["nulls"]["documents"] = {"text": "body"}
    assert "nulls: documents: expected none, for a mixture has it from its sources" in error_of(
        write(tmp_path, datasets, defaults={**DEFAULTS, "mixture": {"sources": sources}})
    )


VARIABLES = {"COUNT": "8192", "NAME": "abc", "ZERO": "0123", "LIST": "['a', 'b']", "YEAR": "24"}


@pytest.fixture
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def resolved(text: str) -> Any:
    return resolve_templates({"raw": {"files": [text]}}, where="a.yaml")["raw"]["files"][0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ env.COUNT }}", 8192),
        ("{{env.NAME}}", "abc"),
        ("{{ env.ZERO }}", "0123"),
        ("{{ env.LIST }}", ["a", "b"]),
        ("data/{{ env.COUNT }}", "data/8192"),
        ("20{{ env.YEAR }}", 2024),
        ("{{ env.NAME }}-{{ env('NONE', \"de'f\") }}", "abc-de'f"),
        ("{{ env('NONE', 5) }}", 5),
        ("{{ env('NAME', 'default') }}", "abc"),
        ("{{ '{{' }}", "{{"),
        ("plain", "plain"),
        ("data/{a,b}/[0-9]*.txt", "data/{a,b}/[0-9]*.txt"),
    ],
)
@pytest.mark.usefixtures("_variables")
def test_a_template_names_variables_and_means_what_it_means_to_dagster(text: str, value: object):
    assert resolved(text) == value
    assert dg.ResolutionContext.default().resolve_value(text) == value


@pytest.mark.parametrize("text", ["a{{b}}", "a{%b", "{{1}}", "'{{'", "{{'\"\\\n😀"])
def test_any_text_can_be_written_as_a_template(text: str):
    assert resolved(as_template(text)) == text


@pytest.mark.usefixtures("_variables")
def test_keys_chat_templates_and_text_without_a_template_are_left_alone():
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    attributes = {"documents": {"chat_template": template}, "{{ env.NAME }}": "8192"}

    assert resolve_templates(attributes, where="a.yaml") == attributes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{ env.NONE }}/a", "none"),
        ("{{ env('NONE') }}", "none"),
        *((text, repr(text)) for text in ("{{ env.COUNT", "{{ env['COUNT'] }}", "{% if a %}b")),
        *((text, repr(text)) for text in ("{{ context.project_root }}", "{{ env.COUNT | int }}")),
    ],
)
def test_any_other_template_is_an_error_with_file_and_field(text: str, found: str):
    with pytest.raises(ConfigError) as raised:
        resolved(text)

    assert (raised.value.where, raised.value.found) == ("a.yaml: raw.files[0]", found)
