"""One branch of a dataset repository, looked at and committed to by huggingface_hub."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokflow.errors import ConfigError, TokflowError
from tokflow.hub.target import MAIN, Target
from tokflow.raw.hub_repository import (
    HubFile,
    authorization,
    endpoint,
    hide_signatures,
    read_small,
    without_token,
)
from tokflow.raw.remote import TransientError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PATHS_AT_ONCE = 500
"""Paths of one request; the hub takes a thousand."""

BUSY = {408, 429, 500, 502, 503, 504}
MOVED = {409, 412}
"""Statuses of a commit whose parent is no longer the head of the branch."""


NO_ANSWERS = (TypeError, AttributeError, LookupError, RecursionError)
"""Errors of HfApi where a server answers other JSON than the hub's."""


class PushError(TokflowError, OSError):
    """The hub does not keep what it was sent; what arrived stays, and is not sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file to be, and its content."""

    path: str
    """In the repository."""
    source: Path | bytes = field(repr=False)
    num_bytes: int
    sha256: str


def file_of(path: str, content: bytes) -> File:
    """Return a file that is not on this disk."""
    digest = hashlib.sha256(content).hexdigest()
    return File(path=path, source=content, num_bytes=len(content), sha256=digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A branch at one moment."""

    commit: str
    is_private: bool
    files: Mapping[str, HubFile]
    """By path, those that were asked for and are there."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One branch of a repository. Methods raise TransientError where the hub may do it later, or
    the branch has moved; ConfigError for what the user can put right; PushError."""

    target: Target

    def look(self, paths: Iterable[str]) -> Look | None:
        """Return the head of the branch; None where there is no such repository, or none that the
        token may read."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        api, name, revision = self._api(), self.target.name, self.target.revision
        with self._problems():
            try:
                about = api.dataset_info(name, revision=revision, expand=["sha", "private"])
            except RepositoryNotFoundError:
                return None
            except RevisionNotFoundError:
                if revision.startswith("refs/"):
                    raise
                api.create_branch(name, branch=revision, repo_type="dataset", exist_ok=True)
                about = None
        if about is None:
            return self.look(paths)
        commit = str(about.sha)
        return Look(
            commit=commit,
            is_private=bool(about.private),
            files={file.path: file for file in self._files(api, commit, paths)},
        )

    def _files(self, api: "HfApi", commit: str, paths: Iterable[str]) -> Iterator[HubFile]:
        from huggingface_hub.hf_api import RepoFile

        for some in _batched(paths, PATHS_AT_ONCE):
            with self._problems():
                entries = api.get_paths_info(
                    self.target.name, some, revision=commit, repo_type="dataset"
                )
            for entry in entries:
                if isinstance(entry, RepoFile):
                    content_id = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
                    yield HubFile(self.target.name, commit, entry.path, entry.size, content_id)

    def read(self, file: HubFile) -> bytes:
        """Return the content of a small file."""
        try:
            return read_small(file)
        except ConfigError as error:  # which is told of raw files
            where = f"{self.target.url}: {file.path}"
            raise ConfigError(**{**error.fields(), "where": where}) from None

    def create(self, *, is_private: bool) -> None:
        """Make the repository; one that is there stays as it is."""
        api = self._api()
        with self._problems():
            api.create_repo(
                self.target.name, repo_type="dataset", private=is_private, exist_ok=True
            )

    def commit(
        self, files: Sequence[File], deleted: Sequence[str], *, message: str, parent: str
    ) -> str:
        """Add files and delete others in one commit on `parent`; return the new commit.

        Content that the hub has is not sent again, in a commit or not.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        # Which hash what they read: so the digests that the hub lists are of what was sent.
        additions = [CommitOperationAdd(file.path, file.source) for file in files]
        deletions = [CommitOperationDelete(path, is_folder=False) for path in deleted]
        api = self._api()
        with self._problems():
            made = api.create_commit(
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
        page = f"{endpoint()}/datasets/{self.target.name}"
        revision, folder = self.target.revision, self.target.folder.rstrip("/")
        if revision.startswith("refs/pr/"):
            return f"{page}/discussions/{revision.removeprefix('refs/pr/')}"
        at = revision if revision == MAIN else commit
        return f"{page}/tree/{at}/{folder}".rstrip("/") if folder or at != MAIN else page

    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        hide_signatures()
        return HfApi(endpoint=endpoint(), library_name="tokflow")

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Turn what a call of HfApi raises into an error that says what to do.

        It wraps such calls alone: a mistake in other code would be told as the hub's.
        """
        try:
            yield
        except (TokflowError, TransientError):
            raise
        except Exception as error:
            problem = _problem(error, self.target)
            if problem is None:
                raise
            raise problem from None


def _batched(paths: Iterable[str], number: int) -> Iterator[list[str]]:
    listed = list(paths)
    return (listed[at : at + number] for at in range(0, len(listed), number))


def _problem(error: BaseException, target: Target) -> Exception | None:
    """Return the error that tells of one; None where it is a mistake of a program."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "response", None) is None:
        cause = cause.__cause__  # huggingface_hub wraps what went wrong with a file
    status = getattr(getattr(cause, "response", None), "status_code", None)
    text = without_token(cause or error)
    if status in MOVED | BUSY or (status is None and _is_of_network(error)):
        return TransientError(text)
    if status in (401, 403):
        return ConfigError(
            where=target.url,
            expected="a token that may write to it",
            found=f"one that may not (HTTP {status})" if authorization() else "none",
            remedy="set HF_TOKEN (`hf auth login`) to a token with the right to write",
        )
    if status is None and not isinstance(error, (ValueError, *NO_ANSWERS)):
        return None
    return PushError(
        where=target.url,
        expected="a hub that takes it",
        found=text,
        remedy="put right what it says, and push again: what arrived is not sent again",
    )


def _is_of_network(error: BaseException) -> bool:
    """Return whether an error is of a connection, or of the library that sends large files, whose
    errors are plain."""
    cause: BaseException | None = error
    while cause is not None:
        library = type(cause).__module__.partition(".")[0]
        is_of_disk = isinstance(cause, OSError) and cause.filename is not None
        if library in ("httpx", "httpx2", "requests", "hf_xet"):
            return True
        if isinstance(cause, ConnectionError | TimeoutError) and not is_of_disk:
            return True
        if isinstance(cause, json.JSONDecodeError):  # the page of a server before the hub
            return True
        if type(cause) is RuntimeError and cause.__cause__ is None:  # of hf_xet
            return True
        cause = cause.__cause__
    return False
