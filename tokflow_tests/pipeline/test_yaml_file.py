"""Several datasets in one YAML, and the templates in it."""

from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import yaml

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.suggestion import UNSEEN, Suggestion
from tokflow.pipeline.yaml_file import as_template, attributes_of, each_dataset, resolve_templates
from tokflow.pipeline.yaml_schema import yaml_schema
from tokflow.pipeline.yaml_writer import dataset_yaml

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


ROOT = Path(__file__).parents[2]
YAMLS = [*sorted(ROOT.glob("examples/**/*.yaml")), ROOT / "tokflow/defs/demo/defs.yaml"]
UNNAMED: dict[str, Any] = {"raw": {"files": "a.txt"}, "tokenizer": {"kind": "bytes"}}
SMALL = {"name": "small", **UNNAMED}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    schema = yaml_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def component(attributes: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tokflow.components.TextDataset", "attributes": attributes}


def read(document: dict[str, Any]) -> None:
    for where, attributes in each_dataset(attributes_of(document, where="a"), where="a"):
        Dataset.read(attributes, where=where)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.parent.name)
def test_the_yamls_of_the_repository_are_taken(schema: jsonschema.Draft7Validator, path: Path):
    for document in yaml.safe_load_all(path.read_text()):
        schema.validate(document)


@pytest.mark.parametrize("documents", [{"text": "body"}, {"document_per": "line"}])
def test_what_init_writes_is_taken(schema: jsonschema.Draft7Validator, documents: dict[str, str]):
    found = Suggestion(documents=documents, split=UNSEEN.split)

    written = dataset_yaml("new", ["a.jsonl"], found, in_project=True)

    schema.validate(yaml.safe_load(written))


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_taken_with_its_own_options_alone(
    schema: jsonschema.Draft7Validator, format_: str
):
    for export in (format_, {"format": format_}):
        schema.validate(SMALL | {"exports": [export]})
    assert not schema.is_valid(SMALL | {"exports": [{"format": format_, "sise": 1}]})


@pytest.mark.parametrize(
    "attributes",
    [
        SMALL | {"packing": {"sequence_length": "{{ env.LENGTH }}"}},
        {"defaults": UNNAMED | {"shuffle": {"seed": 1}}, "datasets": {"a": None, "b": {}}},
        {"datasets": {"a": UNNAMED, "b": UNNAMED | {"documents": {"text": None}}}},
        SMALL | {"tokenizer": "gpt2", "split": {"train": 0.9, "validation": 0.1, "seed": 1}},
        SMALL | {"split": {"parts": {"train": 0.9}, "scope": "dataset"}},
        SMALL | {"exports": [{"format": "parquet", "shard_size": "500MB"}]},
        SMALL | {"exports": [{"format": "parquet", "shards": 4}]},
        {"name": "mixed", "mixture": {"sources": {"small": {"weight": 1}}}},
    ],
)
def test_templates_defaults_and_mixtures_are_taken(
    schema: jsonschema.Draft7Validator, attributes: dict[str, Any]
):
    schema.validate(component(attributes))
    schema.validate(attributes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"raw": {"file": "a.txt"}},
        {"raw": {}},
        {"tokenizer": {"kind": "bites"}},
        {"packing": {"sequence_length": 0}},
        {"packing": {"sequence_length": "long"}},
        {"packing": {"strategy": "best"}},
        {"split": {"parts": {"train": {"frction": 0.5}}}},
        {"exports": ["parket"]},
        {"exports": [{"format": "bin", "shards": 1}]},
        {"documents": {"limit": {"characters": "many"}}},
        {"sequence_length": 1024},
    ],
    ids=str,
)
def test_what_the_loader_refuses_is_refused(
    schema: jsonschema.Draft7Validator, wrong: dict[str, Any]
):
    attributes = SMALL | wrong

    assert not schema.is_valid(component(attributes))
    assert not schema.is_valid(attributes)
    with pytest.raises(ConfigError):
        Dataset.read(attributes, where="test")
    if wrong != {"raw": {}}:  # of several datasets the defaults may say the rest
        assert not schema.is_valid({"datasets": {"a": UNNAMED | wrong}})


@pytest.mark.parametrize(
    "document",
    [
        {"type": "tokflow.TextDataset", "attributes": SMALL},
        component(SMALL) | {"attribute": {}},
        {"type": "tokflow.components.TextDataset"},
        component({"datasets": {"a": SMALL}}),
        component({"defaults": {}}),
        component({"datasets": {}}),
        component({key: SMALL[key] for key in ("name", "raw")}),
        component({key: SMALL[key] for key in ("raw", "tokenizer")}),
    ],
    ids=str,
)
def test_a_document_that_declares_nothing_whole_is_refused(
    schema: jsonschema.Draft7Validator, document: dict[str, Any]
):
    assert not schema.is_valid(document)
    with pytest.raises(ConfigError):
        read(document)


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
