"""The compose file of deploy/, as Docker Compose would read it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"

VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:[-?])([^{}]*))?\}")

SECRETS = {
    "TOKFLOW_POSTGRES_PASSWORD": "0f1e2d3c",
    "TOKFLOW_USER": "mai",
    # `caddy hash-password --plaintext letmein`
    "TOKFLOW_PASSWORD_HASH": "$2a$14$GBwDOMn2tINadBlRUOgoqOLy5tBVci2/GF2v8b4mT7Mx8B7K5QauC",
}


def read_compose(variables: Mapping[str, str]) -> Any:
    """Return compose.yaml with its variables filled in.

    Raises: KeyError for one that is missing and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        if name is None:
            return "$"
        return variables[name] if kind != ":-" or variables.get(name) else default

    return yaml.safe_load(VARIABLE.sub(value, (DEPLOY / "compose.yaml").read_text()))
