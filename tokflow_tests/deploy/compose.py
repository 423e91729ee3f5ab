"""The compose files of deploy/, as Docker Compose would read them."""

import re
from collections.abc import Mapping
from functools import reduce
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


FILES = ("compose.yaml", "compose.runs.yaml")
"""The second goes on top of the first, and gives each run a container."""


def read_compose(variables: Mapping[str, str], *files: str) -> Any:
    """Return compose.yaml, or those files as one, with their variables filled in.

    Raises: KeyError for one that is missing and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        if name is None:
            return "$"
        return variables[name] if kind != ":-" or variables.get(name) else default

    texts = [(DEPLOY / file).read_text() for file in files or FILES[:1]]
    return reduce(_merged, [yaml.safe_load(VARIABLE.sub(value, text)) for text in texts])


def _merged(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        both = {name: _merged(under[name], over[name]) for name in under.keys() & over.keys()}
        return {**under, **over, **both}
    return [*under, *over] if isinstance(under, list) else over
