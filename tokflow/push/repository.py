"""A dataset repository of the Hugging Face hub: where an export goes, its files, commits to it."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokflow.errors import ConfigError, TokflowError
from tokflow.formatting import redact
from tokflow.raw import hub_repository
from tokflow.raw.remote_version import TransientError
from tokflow.store.urls import hub_url

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names of folders that are literal in patterns of cards, in shells and on web servers."""
PASSING = {408, 409, 412, 429, 500, 502, 503, 504}
"""Statuses of a busy hub, and of a commit whose parent is no longer the head of the branch."""


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
        """The URL, for messages."""
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
    if hub_repository.COMMIT.fullmatch(branch):
        raise _wrong(url, "a branch", f"the commit {branch}", "name a branch, or leave it out")
    for part in folder.split("/") if folder else ():
        if not _NAME.fullmatch(part):
            expected = "a folder whose names have letters, digits, `_`, `-` and `.` alone"
            raise _wrong(url, expected, repr(folder), "name another folder")
    return Target(name=name, revision=branch, folder=f"{folder}/" if folder else "")


def _wrong(url: str, expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where=redact(url), expected=expected, found=found, remedy=remedy)


class PushError(TokflowError, OSError):
    """The hub does not keep what it was sent; what arrived stays, and is not sent again."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to be, and its content."""

    path: str
    """In the repository."""
    source: Path | bytes = field(repr=False)
    num_bytes: int
    sha256: str

    def read(self) -> bytes:
        """Return the content of a small file."""
        return self.source.read_bytes() if isinstance(self.source, Path) else self.source


def file_of(path: str, content: bytes) -> File:
    """Return a file that is not on this disk."""
    return File(path, content, len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A branch at one moment."""

    commit: str
    is_private: bool
    files: Mapping[str, hub_repository.HubFile]
    """The files by path."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One branch of a repository. Methods raise TransientError where the hub may do it later, or
    the branch has moved; ConfigError for what the user can correct; PushError."""

    target: Target

    def look(self, *, make_private: bool) -> Look:
        """Return the head of the branch; a repository or a branch that does not exist is made."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        api, name, revision = self._api(), self.target.name, self.target.revision
        with self._problems():
            for _ in range(3):  # none, no branch, both
                try:
                    about = api.dataset_info(name, revision=revision, expand=["sha", "private"])
                    commit = str(about.sha)
                    files = {file.path: file for file in hub_repository.files_at(api, name, commit)}
                    return Look(commit=commit, is_private=bool(about.private), files=files)
                except RepositoryNotFoundError:
                    api.create_repo(name, repo_type="dataset", private=make_private, exist_ok=True)
                except RevisionNotFoundError:
                    if revision.startswith("refs/"):
                        raise
                    api.create_branch(name, branch=revision, repo_type="dataset", exist_ok=True)
        raise ConfigError(
            where=self.target.url,
            expected="a repository that the token may read and write",
            found="one without the permission",
            remedy="set HF_TOKEN (`hf auth login`) to another, or name another repository",
        )

    def commit(
        self, files: Sequence[File], deleted: Sequence[str], *, message: str, parent: str
    ) -> str:
        """Add files and delete others in one commit on `parent`; return the new commit.

        Content that the hub has is not sent again, in a commit or not. (`upload_folder`, at
        huggingface_hub 2.4.0, names a parent for the first of several commits alone, so the others
        overwrite what somebody else wrote since; it deletes with the first, and needs all files of
        a folder on this disk at once.)
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._problems():
            # Which hash what they read: so the digests that the hub lists are of what was sent.
            additions = [CommitOperationAdd(file.path, file.source) for file in files]
            deletions = [CommitOperationDelete(path, is_folder=False) for path in deleted]
            made = self._api().create_commit(
                self.target.name,
                [*additions, *deletions],
                commit_message=message,
                repo_type="dataset",
                revision=self.target.revision,
                parent_commit=parent,
            )
        return str(made.oid)

    def with_pull_request(self, title: str) -> "Repository":
        """Return the branch of the pull request of this title that the user has open, or a new
        one, to be merged into main."""
        api, name = self._api(), self.target.name
        with self._problems():
            user = api.whoami()["name"]
            mine = (
                of.num
                for of in api.get_repo_discussions(name, author=user, repo_type="dataset")
                if of.is_pull_request and of.title == title and of.status in ("open", "draft")
            )
            number = next(mine, None)
            if number is None:
                number = api.create_pull_request(name, title, repo_type="dataset").num
        return Repository(replace(self.target, revision=f"refs/pr/{number}"))

    def web_url(self, commit: str) -> str:
        """Return the page of the pull request, or of the repository at a commit."""
        page = f"{hub_repository.endpoint()}/datasets/{self.target.name}"
        revision, folder = self.target.revision, self.target.folder
        if revision.startswith("refs/pr/"):
            return f"{page}/discussions/{revision.removeprefix('refs/pr/')}"
        at = revision if revision == MAIN else commit
        return f"{page}/tree/{at}/{folder}".removesuffix("/").removesuffix(f"/tree/{MAIN}")

    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        hub_repository.hide_signatures()
        return HfApi(endpoint=hub_repository.endpoint(), library_name="tokflow")

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Turn what HfApi raises into an error that says what to do; a mistake in other code would
        be reported as the hub's."""
        try:
            yield
        except Exception as error:
            raise _problem(error, self.target) from None


def _problem(error: Exception, target: Target) -> Exception:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return ConfigError(
            where=target.url,
            expected="a hub that may be asked",
            found="HF_HUB_OFFLINE",
            remedy="unset it",
        )
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "response", None) is None:
        cause = cause.__cause__  # huggingface_hub wraps what went wrong with a file
    status = getattr(getattr(cause, "response", None), "status_code", None)
    # ValueError and those after it: of HfApi, where a server answers other JSON than the hub's.
    lasting = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
    is_lasting = isinstance(error, lasting)
    is_page = isinstance(error, json.JSONDecodeError)  # of a server before the hub
    if status in PASSING or (status is None and (is_page or not is_lasting)):
        return TransientError(hub_repository.without_token(cause or error))
    if status in (401, 403):
        return ConfigError(
            where=target.url,
            expected="a token that may write to it",
            found=f"one that may not (HTTP {status})" if hub_repository.authorization() else "none",
            remedy="set HF_TOKEN (`hf auth login`) to a token with the right to write",
        )
    return not_taken(target, hub_repository.without_token(cause or error))


def not_taken(target: Target, found: str) -> PushError:
    """Return the error of a hub that refuses, or does not answer."""
    return PushError(
        where=target.url,
        expected="a hub that takes it",
        found=found,
        remedy="fix what it names, and push again: what arrived is not sent again",
    )
