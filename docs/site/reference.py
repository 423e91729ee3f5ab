"""Write the reference pages that code knows: the command line, the YAML and the formats.

python docs/site/reference.py FOLDER
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}


def main(folder: Path) -> None:
    """Write the pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("command_line", command_line()),
        ("yaml", yaml_fields()),
        ("formats", formats()),
        ("python", python()),
    ):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def command_line() -> Iterator[str]:
    """Yield the lines of the page of all commands."""
    from tokflow.cli.app import COMMANDS, load_command

    yield "# Command line\n"
    yield "`tokflow COMMAND --help` shows the same. Every command takes `--json`.\n"
    for name in sorted(COMMANDS):
        command = load_command(name)
        options = [of for of in command.params if of.param_type_name == "option"]
        arguments = [of for of in command.params if of.param_type_name == "argument"]
        metavars = [of.metavar or of.name.upper() for of in arguments]
        yield f"## tokflow {name}\n"
        yield f"{escaped(plain(command.help))}\n"
        yield f"    tokflow {' '.join([name, '[OPTIONS]', *metavars])}\n"
        for parameter in (*arguments, *options):
            yield from _parameter(parameter)


def _parameter(parameter: Any) -> Iterator[str]:
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or parameter.name.upper()
    else:
        names = [*reversed(parameter.opts), *parameter.secondary_opts]
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        shown = f"{', '.join(names)}{value}"
    said = [escaped(plain(parameter.help))] if parameter.help else []
    if isinstance(parameter.default, int | str) and not parameter.is_flag:
        said.append(f"Default: `{parameter.default}`.")
    if parameter.envvar:
        said.append(f"The variable `{parameter.envvar}` says the same.")
    yield f"`{shown}`\n:   {' '.join(said)}\n"


def yaml_fields(stages: Sequence[Any] | None = None) -> Iterator[str]:
    """Yield the lines of the page of all fields of a YAML, of a dataset with these stages."""
    from tokflow.pipeline.stages import STAGES
    from tokflow.pipeline.yaml_schema import yaml_schema

    models = yaml_schema(tuple(stages or STAGES))["definitions"]
    places = places_of(models)
    yield "# YAML\n"
    yield "Every field that a dataset may have, made from the schema that `tokflow schema` prints."
    yield "A template such as `{{ env.NAME }}` may stand for any number, choice or text.\n"
    for model, place in places.items():
        yield f"## {f'`{place}`' if place else 'A dataset'} {{ #{place or 'dataset'} }}\n"
        if model == "ExportConfig":
            yield "A list of [formats](formats.md) by name, or of mappings such as"
            yield "`{format: parquet, name: short}` with the options of the format and:\n"
            yield from _fields(place, _of_every_format(models[model]), places)
        else:
            yield from _fields(place, models[model], places)


def places_of(models: Mapping[str, Any]) -> dict[str, str]:
    """Return where the fields of each model stand in a YAML, those of a dataset first."""
    places = {"Attributes": ""}
    for model, place in iter(waiting := [("Attributes", "")]):
        for name, field in models[model].get("properties", {}).items():
            for found, below in _models_in(field):
                at = ".".join(filter(None, [place, name, below]))
                if found not in places and not found.startswith("PartOf"):
                    places[found] = at
                    waiting.append((found, at))
    order = [*models["Attributes"]["properties"]]
    return dict(sorted(places.items(), key=lambda of: _order_of(of[1], order)))


def _order_of(place: str, order: Sequence[str]) -> tuple[int, str]:
    first = place.partition(".")[0]
    return (order.index(first) if first else -1), place


def _models_in(field: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the models that a field can be, each with what stands between: NAME of a mapping."""
    if "$ref" in field:
        yield str(field["$ref"]).rpartition("/")[2], ""
    for choice in field.get("anyOf", ()):
        yield from _models_in(choice)
    if isinstance(each := field.get("items"), dict):
        yield from _models_in(each)
    if isinstance(each := field.get("additionalProperties"), dict):
        yield from ((model, "NAME") for model, _ in _models_in(each))


def _of_every_format(exports: Mapping[str, Any]) -> dict[str, Any]:
    one = next(of for of in exports["anyOf"] if "properties" in of)
    fields = {name: one["properties"][name] for name in ("format", "name", "packing")}
    fields["format"] = {"type": "string", "description": "The format."}
    fields["packing"] = {**fields["packing"], "properties": {}}
    return {"properties": fields, "required": ["format"]}


def _fields(place: str, model: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[str]:
    required = _required(model)
    for name, field in model["properties"].items():
        key = f"{place}.{name}" if place else name
        facts = [_values(field, places)]
        if name in required:
            facts.append("required")
        elif isinstance(field.get("default"), str | int | float):
            default = field["default"]
            facts.append(
                f"default `{default if isinstance(default, str) else json.dumps(default)}`"
            )
        anchor = key if key not in places.values() else f"{key}-field"
        yield f"### `{name}` {{ #{anchor} }}\n"
        yield f"{' · '.join(facts)}\n{{: .field }}\n"
        yield f"{escaped(field.get('description', ''))}\n"


def _required(model: Mapping[str, Any]) -> set[str]:
    """Return the fields that a model must have, those of its conditions too."""
    otherwise = model.get("else", {})
    return {*model.get("required", ()), *(_required(otherwise) if otherwise else ())}


def _values(field: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Return the values that a field takes, in words, without null and templates."""
    choices = [of for of in field.get("anyOf", [field]) if "pattern" not in of]
    words = [_value(of, places) for of in choices if of.get("type") != "null"]
    return " or ".join(dict.fromkeys(words))


def _value(choice: Mapping[str, Any], places: Mapping[str, str]) -> str:
    if "$ref" in choice or ("anyOf" in choice and "type" not in choice):
        return _reference(choice, places)
    if "enum" in choice:
        return ", ".join(f"`{value}`" for value in choice["enum"])
    if "const" in choice:
        return f"`{choice['const']}`"
    if choice.get("type") == "array":
        return f"list of {_values(choice['items'], places)}" if choice.get("items") else "list"
    if choice.get("type") == "object":
        each = choice.get("additionalProperties")
        return (
            f"mapping of names to {_values(each, places)}" if isinstance(each, dict) else "mapping"
        )
    bounds = {
        "minimum": "from {:,}",
        "exclusiveMinimum": "above {:,}",
        "maximum": "to {:,}",
        "exclusiveMaximum": "below {:,}",
    }
    said = [text.format(choice[key]) for key, text in bounds.items() if key in choice]
    return " ".join([NAMES[choice["type"]], *said])


def _reference(choice: Mapping[str, Any], places: Mapping[str, str]) -> str:
    model = str(choice.get("$ref", "")).rpartition("/")[2].removeprefix("PartOf")
    if model == "Dataset":
        return "what a [dataset](#dataset) has, without `name`"
    if model in places:
        return f"[{places[model]}](#{places[model]})"
    return _values(choice, places)


def formats() -> Iterator[str]:
    """Yield the lines of the page of all formats, their files and options."""
    from tokflow.exports import FORMATS

    yield "# Formats\n"
    yield "The files of each format byte by byte, and its options, as `tokflow formats NAME` shows"
    yield "them.\n"
    for name in sorted(FORMATS):
        yield f"## {name}\n"
        module = sys.modules[FORMATS[name].options.__module__]
        yield f"```text\n{str(module.__doc__).strip()}\n```\n"
        for option, field in FORMATS[name].options.model_fields.items():
            default = field.get_default(call_default_factory=True)
            said = "" if default is None else f" = {default!r}"
            yield f"`{option}{said}`\n:   {escaped(' '.join(str(field.description).split()))}\n"


def python() -> Iterator[str]:
    """Yield the lines of the page of all public functions, which mkdocstrings fills."""
    import tokflow
    import tokflow.loaders

    yield "# Python\n"
    for module in (tokflow, tokflow.loaders):
        yield f"## {module.__name__} {{ #{module.__name__.replace('.', '-')} }}\n"
        yield from (f"::: {module.__name__}.{name}\n" for name in module.__all__)
    yield "## Errors\n"
    yield "::: tokflow.errors\n    options:"
    yield "      {show_root_heading: false, show_root_toc_entry: false, filters: [Error$]}\n"


def plain(text: str | None) -> str:
    """Return help without what rich reads as marks."""
    return (text or "").replace("\\[", "[").strip()


def escaped(text: str) -> str:
    """Return text as Markdown in which only its code is marked."""
    pieces = text.split("`")
    for index in range(0, len(pieces), 2):
        for mark in "\\<*_[]{":
            pieces[index] = pieces[index].replace(mark, f"\\{mark}")
    return "`".join(pieces)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
