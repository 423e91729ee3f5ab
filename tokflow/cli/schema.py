"""`tokflow schema`: the JSON schema of a dataset's YAML, for editors."""

from tokflow.cli.options import Json
from tokflow.cli.terminal import print_json
from tokflow.pipeline.yaml_schema import yaml_schema


def main(json: Json = False) -> None:
    """Print the schema, with or without `--json`."""
    print_json(yaml_schema())
