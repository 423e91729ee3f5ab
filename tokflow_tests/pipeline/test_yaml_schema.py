"""The schema of a YAML takes what tokflow takes, and refuses what it refuses."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.suggestion import UNSEEN, Suggestion
from tokflow.pipeline.yaml_file import attributes_of, each_dataset
from tokflow.pipeline.yaml_schema import yaml_schema
from tokflow.pipeline.yaml_writer import dataset_yaml

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
