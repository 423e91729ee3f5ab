"""Partition keys: paths that are safe as folders of the store and as text everywhere."""

import sys
import unicodedata

from tokflow.errors import ConfigError
from tokflow.store.latest import LATEST
from tokflow.store.manifest import is_output_name


def check_key(key: str) -> None:
    """Raise ConfigError unless `key` can name a partition, in this locale.

    A key is a path with `/` below a stage's folder, and its outputs are in
    `<stage>/<key>/<16 hexadecimal digits>/` beside a link `latest`; so no part of a key may lead
    out of the stage's folder or look like something that tokflow puts beside an output.
    """
    if not key.isascii() and (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise ConfigError(
            where=f"partition key {key!r}",
            expected="a locale of UTF-8, in which names of files have one form everywhere",
            found=f"one of {encoding}",
            remedy="set LC_ALL=C.UTF-8, or PYTHONUTF8=1",
        )
    problem = _problem_of_text(key)
    for component in key.split("/"):
        problem = problem or _problem_of_component(component)
    if problem is not None:
        raise ConfigError(
            where=f"partition key {key!r}",
            expected="a path relative to the raw folder, in printable UTF-8",
            found=problem,
            remedy="rename the file or its folder",
        )


def _problem_of_text(key: str) -> str | None:
    try:
        key.encode()
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    for character in "" if key.isprintable() else key:
        if unicodedata.category(character) in {"Cc", "Zl", "Zp"}:  # controls, line separators
            return f"the control character {character!r}"
    if "\\" in key:
        return "a backslash"
    if key.startswith("/"):
        return "an absolute path"
    if "..." in key:
        return "'...', which separates the ends of a range of partitions"
    return None


def _problem_of_component(component: str) -> str | None:
    if component == "":
        return "an empty name"
    if component in {".", ".."}:
        return f"the name {component!r}"
    if len(component.encode()) > 255:
        return f"a name of {len(component.encode())} bytes, where file systems allow 255"
    if component.lower() == LATEST:
        return f"the name {component!r}, which tokflow gives the link to the newest output"
    if is_output_name(component.lower()):
        return f"the name {component!r}, 16 hexadecimal digits as of an output's folder"
    if component.startswith((".blocks-", ".source.json", ".lock")) or (
        component.startswith(".") and component.endswith(".tmp")
    ):
        return f"the name {component!r}, which tokflow gives its own temporary files"
    return None
