"""Fields of a dataset that say how Dagster names, shows and runs it; none decides what is built."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from tokflow.errors import ConfigError
from tokflow.store.atomic import check_name
from tokflow.store.config import Listed

_MAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


def dagster_name(name: str) -> str:
    """Return the name of a dataset in those that Dagster allows no hyphen in: of jobs, sensors and
    groups."""
    return name.replace("-", "_")


def key_part(name: str) -> str:
    """Return the name, if it can be part of an asset key.

    Raises: ConfigError.
    """
    check_name(name, where="", becomes="a folder and an asset key", marks="-_")
    if "__" in dagster_name(name):
        raise ConfigError(
            where="",
            expected="no two of - and _ in a row, by which Dagster joins the parts of an asset key",
            found=repr(name),
            remedy="rename it",
        )
    return name


def _owner(owner: str) -> str:
    if not _MAIL.fullmatch(owner) and not re.match("team:.", owner):
        raise ConfigError(
            where="",
            expected="team:name or a mail address",
            found=repr(owner),
            remedy=f"write team:{owner}",
        )
    return owner


def _tags(tags: dict[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        for text, form in ((key, _TAG_KEY), (value, _TAG_VALUE)):
            if not form.fullmatch(text):
                raise ConfigError(
                    where="",
                    expected="letters, digits, `_`, `-` and `.`, 63 at most; one `/` in a key",
                    found=repr(text),
                    remedy="rename it",
                )
    return tags


def _pool(pool: str) -> str:
    if not re.fullmatch(r"\S+", pool):
        raise ConfigError(
            where="", expected="a name without blanks", found=repr(pool), remedy="rename it"
        )
    return pool


def _as_parts(prefix: object) -> object:
    return prefix.split("/") if isinstance(prefix, str) else prefix


Name = Annotated[str, AfterValidator(key_part)]
Owners = Listed[Annotated[str, AfterValidator(_owner)]]
Tags = Annotated[dict[str, str], AfterValidator(_tags)]
KeyPrefix = Annotated[
    Listed[Annotated[str, AfterValidator(key_part)]],
    BeforeValidator(_as_parts, json_schema_input_type=str | list[str]),
]
PoolName = Annotated[str, AfterValidator(_pool)]
