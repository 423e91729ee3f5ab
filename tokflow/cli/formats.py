"""`tokflow formats` and `tokflow schema`: what can be exported, and what a YAML can say."""

import sys
import textwrap
from typing import Annotated, Any

import typer

from tokflow.cli.options import Json
from tokflow.cli.terminal import print_json, print_styled, print_table
from tokflow.exports import FORMATS, check_format

LINE_LENGTH = 90


def main(
    name: Annotated[
        str | None, typer.Argument(metavar="[FORMAT]", help="One format, with its options.")
    ] = None,
    json: Json = False,
) -> None:
    """Print all formats in a table, or one with its files and options."""
    if name is not None:
        check_format(name, where="FORMAT")
    names = [name] if name is not None else sorted(FORMATS)
    if json:
        print_json({"formats": [*map(_document, names)]})
    elif name is None:
        rows = [(each, _made_of(each), FORMATS[each].description) for each in names]
        print_table(("format", "made of", "for"), rows)
        print("\n`tokflow formats FORMAT` shows its files and options")
    else:
        document = _document(name)
        print(document["files"])
        if options := document["options"]:
            print()
            print_styled(("options", "bold"))
        for option in options:
            default = "" if option["default"] is None else f" = {option['default']!r}"
            print(f"  {option['name']}{default}")
            print(textwrap.indent(textwrap.fill(option["description"], LINE_LENGTH), " " * 6))


def _document(name: str) -> dict[str, Any]:
    of, options = FORMATS[name], FORMATS[name].options
    return {
        "name": name,
        "description": of.description,
        "made_of": _made_of(name),
        "is_read": of.is_read,
        "options": [
            {
                "name": option,
                "default": field.get_default(call_default_factory=True),
                "description": " ".join(options.descriptions()[option].split()),
            }
            for option, field in options.model_fields.items()
        ],
        "files": str(sys.modules[options.__module__].__doc__).strip(),
    }


def _made_of(name: str) -> str:
    return FORMATS[name].layout(FORMATS[name].options()).made_of


def schema(json: Json = False) -> None:
    """Print the schema of a YAML, with or without `--json`."""
    from tokflow.pipeline.yaml_schema import yaml_schema  # late: it imports every stage

    print_json(yaml_schema())
