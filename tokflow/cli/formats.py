"""`tokflow formats`: what can be exported, and what can be set."""

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
        print_json({"formats": [_document(each) for each in names]})
    elif name is None:
        rows = [(each, _made_of(each), FORMATS[each].description) for each in names]
        print_table(("format", "made of", "for"), rows)
        print("\n`tokflow formats FORMAT` shows its files and options")
    else:
        _print_format(name)


def _print_format(name: str) -> None:
    print(_module_docs(name))
    documented = _options(name)
    if not documented:
        return
    print()
    print_styled(("options", "bold"))
    for option in documented:
        default = "" if option["default"] is None else f" = {option['default']!r}"
        print(f"  {option['name']}{default}")
        print(textwrap.indent(textwrap.fill(option["description"], LINE_LENGTH), " " * 6))


def _document(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": FORMATS[name].description,
        "made_of": _made_of(name),
        "is_read": FORMATS[name].is_read,
        "options": _options(name),
        "files": _module_docs(name),
    }


def _made_of(name: str) -> str:
    format_ = FORMATS[name]
    return format_.layout(format_.options()).made_of


def _options(name: str) -> list[dict[str, Any]]:
    options = FORMATS[name].options
    return [
        {
            "name": option,
            "default": field.get_default(call_default_factory=True),
            "description": " ".join(options.descriptions()[option].split()),
        }
        for option, field in options.model_fields.items()
    ]


def _module_docs(name: str) -> str:
    return str(sys.modules[FORMATS[name].options.__module__].__doc__).strip()
