"""Attributes of the component as they stand in a YAML, with templates, and their schema."""

import json
from typing import Any

import pydantic

from tokflow.build.dataset import Dataset
from tokflow.build.declarations.several import OF_SOURCES

TEMPLATE = {"type": "string", "pattern": r"\{[{%]"}
"""Schema of what may stand for a number or a choice."""


class Attributes(pydantic.RootModel[dict[str, Any]]):
    """The attributes as they stand in the YAML, with templates; the schema is that of a dataset, or
    of several with their defaults."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of one dataset or several, in which a template may stand for a number
        or choice."""
        return _or_several(_with_templates(Dataset.model_json_schema(*args, **kwargs)))


def _or_several(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataset, a mixture among them, or of `datasets` of which each is a
    part of one, as `defaults` is."""
    text = json.dumps(schema).replace("#/$defs/", "#/$defs/PartOf")
    part = json.loads(text)
    models = {f"PartOf{name}": model for name, model in part.pop("$defs").items()}
    models["PartOfDataset"] = part
    for model in models.values():
        model.pop("required", None)
        fields = model.get("properties", {})
        fields.update({name: _or_null(field) for name, field in fields.items()})
    del part["properties"]["name"]
    part_of_dataset = {"$ref": "#/$defs/PartOfDataset"}
    each = {"anyOf": [part_of_dataset, {"type": "null"}]}
    several = {
        "defaults": {**part_of_dataset, "description": "What the datasets share."},
        "datasets": {
            "type": "object",
            "description": "Several datasets by their names; what one says replaces a default.",
            "additionalProperties": each,
            "minProperties": 1,
        },
    }
    return {
        **{key: schema[key] for key in schema if key != "required"},
        "$defs": schema["$defs"] | models,
        "properties": schema["properties"] | several,
        # No anyOf: dg names what is missing, and takes a sample of an anyOf from its first choice.
        "if": {"required": ["datasets"]},
        "else": {
            "required": [of for of in schema["required"] if of not in OF_SOURCES],
            "if": {"required": ["mixture"]},
            "else": {"required": [of for of in schema["required"] if of in OF_SOURCES]},
        },
    }


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that null may stand for, as what takes a default back."""
    said: dict[str, Any] = {key: field[key] for key in ("title", "description") if key in field}
    return {**said, "anyOf": [field, {"type": "null"}]}


def _with_templates(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which a template may stand for each number and choice, at any depth."""
    found = dict(schema)
    for key in {"$defs", "properties"} & schema.keys():
        of_each = schema[key].items()
        found[key] = {name: _with_template(_with_templates(of)) for name, of in of_each}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _with_template(_with_templates(schema[key]))
    if "anyOf" in schema:
        found["anyOf"] = [_with_templates(of) for of in schema["anyOf"]]
    return found


def _with_template(field: dict[str, Any]) -> dict[str, Any]:
    choices = field.get("anyOf", [field])
    kinds = {of.get("type") for of in choices}
    is_choice = any("enum" in of for of in choices)
    is_text = "string" in kinds and not is_choice
    if is_text or not (is_choice or kinds & {"integer", "number", "boolean"}):
        return field
    said: dict[str, Any] = {
        key: field[key] for key in ("title", "description", "default") if key in field
    }
    bare = [{key: value for key, value in of.items() if key not in said} for of in choices]
    return {**said, "anyOf": [*bare, TEMPLATE]}
