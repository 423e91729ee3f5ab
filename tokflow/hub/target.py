"""The place of an export on the hub: a repository, a revision, a folder."""

import re
from dataclasses import dataclass

from tokflow.errors import ConfigError
from tokflow.shown import redact
from tokflow.store.urls import hub_url

MAIN = "main"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Of a folder: what no pattern of a card, shell or web server takes for anything else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A folder of a dataset repository, at a branch."""

    name: str
    """`org/name`."""
    revision: str = MAIN
    """A branch, or `refs/pr/1` of a pull request."""
    folder: str = ""
    """With a `/` at its end; empty for the root of the repository."""

    @property
    def config(self) -> str:
        """The name of its config in the card, by which `load_dataset` finds it."""
        return self.folder.strip("/").replace("/", "-") or "default"

    @property
    def url(self) -> str:
        """What messages call it."""
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return f"hf://datasets/{self.name}{revision}/{self.folder}".rstrip("/")


def read_target(url: str, *, revision: str | None = None) -> Target:
    """Return the target that a URL names: `hf://datasets/org/name[@revision][/folder]`.

    Raises: ConfigError for any other URL, for two revisions, and for a commit, which cannot be
    added to.
    """
    if (found := hub_url(url)) is None:
        expected = "hf://datasets/org/name[@revision][/folder]"
        raise _wrong(url, expected, redact(url), "name a dataset repository; it is made if needed")
    name, written, folder = found
    branch = revision or written or MAIN
    if written and branch != written:
        raise _wrong(url, "one revision", f"{written!r} and {revision!r}", "keep one of them")
    if _COMMIT.fullmatch(branch):
        raise _wrong(url, "a branch", f"the commit {branch}", "name a branch, or leave it out")
    for part in folder.split("/") if folder else ():
        if not _NAME.fullmatch(part):
            expected = "a folder whose names have letters, digits, `_`, `-` and `.` alone"
            raise _wrong(url, expected, repr(folder), "name another folder")
    return Target(name=name, revision=branch, folder=f"{folder}/" if folder else "")


def _wrong(url: str, expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where=redact(url), expected=expected, found=found, remedy=remedy)
