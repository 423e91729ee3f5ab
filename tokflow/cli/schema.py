"""`tokflow schema`: the JSON schema of a dataset's YAML, for editors."""

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from tokflow.cli.options import Json
from tokflow.cli.terminal import print_json, shown_path
from tokflow.errors import ConfigError
from tokflow.pipeline.yaml_schema import TITLE, yaml_schema
from tokflow.shown import size
from tokflow.store.atomic import new_file


def main(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, in place of what an earlier tokflow wrote there; by default the "
            "schema is printed.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the schema or, given a file, write it and print the comment that points an editor to
    it.

    Raises: ConfigError where the file is there and is no schema of tokflow's.
    """
    if output is None:
        print_json(yaml_schema())
        return
    _check_free(output)
    text = json_.dumps(yaml_schema()).encode()
    with new_file(output) as temporary:
        temporary.write_bytes(text)
    line = f"# yaml-language-server: $schema={shown_path(output)}"
    if json:
        print_json({"path": str(output.absolute()), "num_bytes": len(text), "line": line})
        return
    print(f"wrote {shown_path(output)}, {size(len(text))}")
    print(f"\nas the first line of a YAML, with the path from its folder:\n  {line}")


def _check_free(output: Path) -> None:
    """Refuse a path with another file, such as a YAML that was meant to be checked."""
    try:
        found = json_.loads(output.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or found.get("title") != TITLE:
        raise ConfigError(
            where=output,
            expected="a path where nothing is yet, or an older schema of tokflow's",
            found="a folder" if output.is_dir() else "another file",
            remedy="name another by --output",
        )
