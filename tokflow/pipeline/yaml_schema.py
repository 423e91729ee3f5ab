"""JSON schemas of the YAML that declares datasets, for Dagster and for editors."""

import json
from typing import Any

from tokflow.pipeline.dataset import dataset_type
from tokflow.pipeline.stages import STAGES
from tokflow.pipeline.yaml_file import COMPONENT_KEYS, COMPONENT_TYPE, KEYS, OF_SOURCES
from tokflow.stage import Stage

TITLE = "tokflow datasets"

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The dialect of JSON schema that all editors know."""

TEMPLATE = {"type": "string", "pattern": r"\{[{%]"}
"""Schema of what may stand for a number or a choice."""

WITH_UNDERSCORES = {"type": "string", "pattern": "^[0-9]+(_[0-9]+)+$"}
"""Schema of 1_000 as editors read it: as text, for YAML 1.2 has no such numbers."""

_OF_COMPONENT = {
    "type": "The component that a document declares.",
    "attributes": "The dataset, or several.",
    "template_vars_module": "A module of Dagster's own templates, which a dataset does not know.",
    "requirements": "What Dagster is to check, for Dagster alone.",
    "post_processing": "What Dagster adds to the assets, for Dagster alone.",
}


def yaml_schema(stages: tuple[Stage, ...] = STAGES) -> dict[str, Any]:
    """Return the schema of a document of a YAML file: a component, or its attributes alone.

    It knows each key and the types, choices and bounds of values; the form of a name or of a cron
    string, what sections must not say together, and what depends on files, is found when the YAML
    is loaded. `stages`: those of a dataset, whose sections it has.
    """
    attributes = _for_editors(attributes_schema("#/definitions/{model}", stages))
    definitions = attributes.pop("$defs") | {"Attributes": attributes}
    attributes_alone = {"$ref": "#/definitions/Attributes"}
    fields = {key: {"description": _OF_COMPONENT[key]} for key in COMPONENT_KEYS}
    fields["type"]["const"] = COMPONENT_TYPE
    component = {
        "type": "object",
        "properties": {**fields, "attributes": attributes_alone},
        "required": ["type", "attributes"],
        "additionalProperties": False,
    }
    return {
        "$schema": DRAFT,
        "title": TITLE,
        "definitions": definitions,
        "if": {"anyOf": [{"required": [key]} for key in ("name", *KEYS)]},
        "then": attributes_alone,
        "else": component,
    }


def attributes_schema(
    ref_template: str = "#/$defs/{model}", stages: tuple[Stage, ...] = STAGES
) -> dict[str, Any]:
    """Return the schema of one dataset, which may be a mixture, or of `datasets` of which each is a
    part of one, as `defaults` is. A template may stand for a number or a choice; `ref_template` is
    how it refers to the models in its `$defs`."""
    schema = dataset_type(stages).model_json_schema(ref_template=ref_template)
    schema = _with_templates(schema)
    whole, part_of = (ref_template.format(model=name) for name in ("", "PartOf"))
    text = json.dumps(schema).replace(f'"{whole}', f'"{part_of}')
    part = json.loads(text)
    models = {f"PartOf{name}": model for name, model in part.pop("$defs").items()}
    models["PartOfDataset"] = part
    for model in models.values():
        model.pop("required", None)
        fields = model.get("properties", {})
        for name, field in fields.items():  # null takes a default back
            said = {key: field[key] for key in ("title", "description") if key in field}
            fields[name] = {**said, "anyOf": [field, {"type": "null"}]}
    del part["properties"]["name"]
    part_of_dataset = {"$ref": ref_template.format(model="PartOfDataset")}
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


def _for_editors(schema: Any) -> Any:
    """Return a schema in which each number for which a template may stand may have underscores, and
    each description is one line, since editors show the end of a line as that of a paragraph."""
    if isinstance(schema, list):
        return [_for_editors(of) for of in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _for_editors(of) for key, of in schema.items()}
    choices = found.get("anyOf", [])
    if TEMPLATE in choices and any(of.get("type") in ("integer", "number") for of in choices):
        found["anyOf"] = [*choices, WITH_UNDERSCORES]
    if isinstance(said := found.get("description"), str):
        found["description"] = " ".join(said.split())
    return found
