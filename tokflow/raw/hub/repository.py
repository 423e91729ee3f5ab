"""Datasets of the Hugging Face hub: the files of a repository at one commit, and each of them.

The hub is asked once which commit a revision is of, and for the files of a commit that is not
known yet; `hub.json` in the dataset's folder keeps both. A file is known by what the hub calls its
content, so a new commit changes only what is different in it.
"""

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tokflow.errors import ConfigError, FetchError, RawFileError
from tokflow.raw.hub.client import authorization, endpoint, without_token
from tokflow.raw.hub.source_splits import CARD, card_of
from tokflow.raw.remote import Body, TransientError, Validator
from tokflow.raw.retries import Retries
from tokflow.raw.web import TIMEOUT_SECONDS, WebFile
from tokflow.store.atomic import new_file
from tokflow.store.urls import safe_text

_T = TypeVar("_T")

MEMORY_NAME = "hub.json"

_COMMIT = re.compile(r"[0-9a-f]{40}")

_READABLE = "a dataset of the hub that can be read"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository at a commit."""

    repository: str
    """`org/name`."""
    commit: str
    path: str
    """In the repository."""
    num_bytes: int
    content_id: str
    """Its sha256, or of a small file git's name of it: equal for equal content, at any commit."""

    @property
    def sha256(self) -> str | None:
        """The sha256 of the content, as the hub has it; None of a small file."""
        return self.content_id if len(self.content_id) == 64 else None

    @property
    def origin(self) -> dict[str, str]:
        """What a manifest says of its source."""
        return {"hub_id": self.repository, "commit": self.commit, "path": self.path}

    def probe(self) -> Validator:
        """Return which version it is, without asking: that of its commit."""
        return Validator(etag=self.content_id, num_bytes=self.num_bytes)

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Open it for reading once from `offset`; at a commit there is one version of it."""
        try:
            with self.web_file().open_at(offset, stop) as body:
                yield replace(body, validator=replace(self.probe(), num_bytes=body.num_bytes))
        except RawFileError as error:
            if error.found.startswith(("HTTP status 401", "HTTP status 403")):
                raise _forbidden(self.repository) from None
            raise

    def web_file(self) -> WebFile:
        """Return it as the file of a web server, with the credentials of the environment.

        Raises: FetchError if HF_HUB_OFFLINE says that nothing may be asked for.
        """
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE:
            raise _unreachable(
                f"{self.repository}: {self.path}", "HF_HUB_OFFLINE, which forbids it"
            )
        commit, path = (urllib.parse.quote(text) for text in (self.commit, self.path))
        url = f"{endpoint()}/datasets/{self.repository}/resolve/{commit}/{path}"
        return WebFile(url, authorization=authorization())


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRepository:
    """The files of a repository at one commit."""

    name: str
    """`org/name`."""
    revision: str
    """As it was asked for: a branch, a tag or a commit."""
    commit: str
    files: dict[str, HubFile] = field(repr=False)
    """By path."""
    card: dict[str, Any] = field(repr=False)
    """What its README.md says of its configs."""


def list_repository(name: str, revision: str, *, store: Path | None) -> HubRepository:
    """Return the files of a repository as they are now, or as they are at a commit.

    A commit that `store` remembers is not asked for again. With HF_HUB_OFFLINE the remembered
    files of the revision are taken, whatever the hub has by now.

    Raises: ConfigError for a repository or revision that is not there, or that HF_TOKEN may not
    read; FetchError if the hub does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    memory = _Memory(store)
    known = memory.find(name, revision)
    if known is not None and (HF_HUB_OFFLINE or _COMMIT.fullmatch(revision)):
        return known
    if HF_HUB_OFFLINE:
        found = "HF_HUB_OFFLINE, and no list of its files from an earlier run"
        raise _unreachable(f"raw.files 'hf://datasets/{name}'", found)
    api = HfApi(endpoint=endpoint(), library_name="tokflow")
    asked = partial(_asked, name=name, revision=revision, is_known=known is not None)
    about = partial(api.dataset_info, name, revision=revision, timeout=TIMEOUT_SECONDS)
    commit = str(asked(lambda: about(expand=["sha"])).sha)
    if known is None or known.commit != commit:
        files = {file.path: file for file in asked(lambda: list(_files(api, name, commit)))}
        text = (
            asked(lambda: read_small(files[CARD])).decode(errors="replace") if CARD in files else ""
        )
        card = {"configs": card_of(text, where=f"hf://datasets/{name}").get("configs")}
        known = HubRepository(name=name, revision=revision, commit=commit, files=files, card=card)
        memory.keep(known)
    return known


def _files(api: Any, name: str, commit: str) -> Iterator[HubFile]:
    from huggingface_hub.hf_api import RepoFile

    for entry in api.list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset"):
        if isinstance(entry, RepoFile):
            content_id = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
            yield HubFile(name, commit, entry.path, entry.size, content_id)


def read_small(file: HubFile) -> bytes:
    """Return the content of a small file. Raises: as `HubFile.open_at`, TransientError."""
    content = bytearray()
    with file.open_at(0) as body:
        while block := body.read(2**20):
            content += block
    if len(content) != file.num_bytes:
        raise TransientError(f"{len(content):,} of {file.num_bytes:,} bytes of {file.path}")
    return bytes(content)


def _asked(ask: Callable[[], _T], name: str, revision: str, *, is_known: bool) -> _T:
    """Return what the hub answers, asked again where it may answer later."""
    where = f"hf://datasets/{name}"
    retries = Retries(where, partial(_unreachable, f"raw.files '{where}'", is_known=is_known))
    while True:
        try:
            return ask()
        except Exception as error:
            problem = _problem(error, name, revision)
        if not isinstance(problem, FetchError):
            raise problem from None
        retries.wait(TransientError(problem.found), has_advanced=False)


def _problem(error: Exception, name: str, revision: str) -> Exception:
    """Return the error that tells what the hub, or the library that asks it, raised."""
    from huggingface_hub import errors

    if isinstance(error, ConfigError | RawFileError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return _forbidden(name)
    where, expected = f"raw.files 'hf://datasets/{name}'", _READABLE
    if isinstance(error, errors.RepositoryNotFoundError):
        found = "none of that name, or one that is private"
        remedy = "correct the name, or set HF_TOKEN (`hf auth login`) to a token that may read it"
    elif isinstance(error, errors.RevisionNotFoundError):
        expected = f"a branch, a tag or a commit of {name}"
        found, remedy = repr(revision), "correct raw.revision; the default is main"
    elif isinstance(error, ValueError) and not isinstance(error, OSError):
        found, remedy = safe_text(error, "hf://datasets"), "write hf://datasets/org/name"
    else:
        return _unreachable(where, without_token(error))
    return ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def _forbidden(name: str) -> ConfigError:
    return ConfigError(
        where=f"raw.files 'hf://datasets/{name}'",
        expected=_READABLE,
        found="one whose authors decide who may read it",
        remedy=f"accept its terms at {endpoint()}/datasets/{name} and set HF_TOKEN",
    )


def _unreachable(where: str, found: str, *, is_known: bool = False) -> FetchError:
    """Return the error that tells of no answer; `is_known`: an earlier run had what was asked."""
    offline = ", or set HF_HUB_OFFLINE=1 to take the files as the last run found them"
    return FetchError(
        where=where,
        expected=f"an answer of {endpoint()}",
        found=found,
        remedy=f"run again when it answers{offline * is_known}; HF_ENDPOINT names another hub",
    )


class _Memory:
    """The files of repositories as the hub listed them, in the dataset's folder.

    Without it, or where it cannot be read or written, the hub is asked again.
    """

    def __init__(self, store: Path | None) -> None:
        self._path = store / MEMORY_NAME if store is not None else None
        self._known: dict[str, dict[str, Any]] = {}
        if self._path is not None:
            with suppress(OSError, ValueError, TypeError, RecursionError):
                self._known = dict(json.loads(self._path.read_text(encoding="utf-8")))

    def find(self, name: str, revision: str) -> HubRepository | None:
        try:
            fields = self._known[f"{name}@{revision}"]
            commit = str(fields["commit"])
            files = {file[0]: HubFile(name, commit, *file) for file in fields["files"]}
            return HubRepository(
                name=name, revision=revision, commit=commit, files=files, card=fields["card"]
            )
        except (LookupError, TypeError):
            return None

    def keep(self, found: HubRepository) -> None:
        if self._path is None:
            return
        files = [[file.path, file.num_bytes, file.content_id] for file in found.files.values()]
        fields = {"commit": found.commit, "card": found.card, "files": files}
        self._known[f"{found.name}@{found.revision}"] = fields
        with suppress(OSError, TypeError):  # JSON has no keys that are dates
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(self._path) as temporary:
                temporary.write_text(json.dumps(self._known, default=str), encoding="utf-8")
