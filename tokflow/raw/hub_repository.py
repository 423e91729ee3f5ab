"""Datasets of the Hugging Face hub: the files of a repository at one commit, and each of them.

The hub, which HF_ENDPOINT names, is asked once which commit a revision is of, and for the files of
a commit that is not known yet; `hub.json` in the dataset's folder keeps both. A file is known by
what the hub calls its content, so a new commit changes only what is different in it. No message
shows credentials.
"""

import json
import logging
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from tokflow.errors import ConfigError, FetchError, RawFileError, TokflowError
from tokflow.raw.config import RawConfig
from tokflow.raw.globs import FILE, FOLDER, Matches, select
from tokflow.raw.remote_version import Body, Retries, TransientError, Validator
from tokflow.store.atomic import new_file
from tokflow.store.urls import hub_url, safe_text

_T = TypeVar("_T")

CARD = "README.md"
"""The file that may list, between two lines of `---`, the configs of a dataset."""

DEFAULT_REVISION = "main"
MEMORY_NAME = "hub.json"

MAX_LETTERS = 2**22
"""Letters in a card at most: beyond any that there is, and little to keep in memory and a store."""

COMMIT = re.compile(r"[0-9a-f]{40}")

_READABLE = "a dataset of the hub that can be read"


def endpoint() -> str:
    """Return the URL of the hub, without a `/` at its end."""
    from huggingface_hub.constants import ENDPOINT

    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def authorization() -> str | None:
    """Return the header of HF_TOKEN, or of who is logged in on this machine."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return dict(build_hf_headers()).get("authorization")


def hide_signatures() -> None:
    """Keep the queries of URLs, which may sign them, out of the log lines of huggingface_hub."""
    from tokflow.raw.web import without_queries

    logging.getLogger("huggingface_hub.utils._http").addFilter(without_queries)


def without_token(error: BaseException) -> str:
    """Return type and text of an error, the type alone if the token is in the text."""
    token = (authorization() or "").rpartition(" ")[2]
    text = re.sub(r" For more information check: \S+", "", safe_text(error, "hf://datasets"))
    return type(error).__name__ if token and token in text else text


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
        """Repository, commit and path, for a manifest."""
        return {"hub_id": self.repository, "commit": self.commit, "path": self.path}

    def probe(self) -> Validator:
        """Return which version it is, without asking: that of its commit."""
        return Validator(etag=self.content_id, num_bytes=self.num_bytes)

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Open it for reading once from `offset`; at a commit there is one version of it."""
        from huggingface_hub.constants import HF_HUB_OFFLINE

        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        where = f"{self.repository}: {self.path}"
        if HF_HUB_OFFLINE:
            raise _unreachable(where, "HF_HUB_OFFLINE, which forbids it")
        commit, path = (urllib.parse.quote(text) for text in (self.commit, self.path))
        url = f"{endpoint()}/datasets/{self.repository}/resolve/{commit}/{path}"
        try:
            with WebFile(url, authorization=authorization()).open_at(offset, stop) as body:
                yield replace(body, validator=replace(self.probe(), num_bytes=body.num_bytes))
        except RawFileError as error:
            if error.found.startswith(("HTTP status 401", "HTTP status 403")):
                raise _forbidden(self.repository, f"hf://datasets/{where}") from None
            raise


@dataclass(frozen=True, slots=True)
class HubRepository:
    """The files of a repository at one commit."""

    name: str
    """`org/name`."""
    commit: str
    files: dict[str, HubFile] = field(repr=False)
    """The files by path."""
    card: dict[str, Any] = field(repr=False)
    """The header of its README.md, as far as it is about configs."""


def list_repositories(
    urls: Sequence[str], config: RawConfig, store: Path | None
) -> dict[str, HubRepository]:
    """Return the repository that each URL of the hub names, at the revision of the URL or the
    config; each is asked for once, so that all files of one are of one commit.

    Raises: ConfigError for two revisions, or one that is not there; FetchError if the hub does not
    answer.
    """
    revisions: dict[str, str] = {}
    names: dict[str, str] = {}
    for url in urls:
        name, written, _ = hub_url(url) or (url, None, "")
        revision = written or config.revision or DEFAULT_REVISION
        for other in (config.revision or revision, revisions.setdefault(name, revision)):
            if revision != other:
                expected = f"one revision of {name}"
                found = f"{revision!r} and {other!r}"
                remedy = "keep one of them; two are two datasets"
                raise ConfigError(where="raw.files", expected=expected, found=found, remedy=remedy)
        names[url] = name
    listed = {
        name: list_repository(name, revision, store=store) for name, revision in revisions.items()
    }
    return {url: listed[name] for url, name in names.items()}


def list_repository(name: str, revision: str, *, store: Path | None) -> HubRepository:
    """Return the files of a repository as they are now, or as they are at a commit.

    A commit that `store` remembers is not asked for again. With HF_HUB_OFFLINE the remembered
    files of the revision are taken, whatever the hub has by now.

    Raises: ConfigError for a repository or revision that is not there, or that HF_TOKEN may not
    read; FetchError if the hub does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    from tokflow.raw.web import TIMEOUT_SECONDS

    memory = store / MEMORY_NAME if store is not None else None
    remembered: dict[str, Any] = {}
    known = None
    with suppress(OSError, ValueError, TypeError, RecursionError, LookupError):
        remembered = dict(json.loads(memory.read_text(encoding="utf-8"))) if memory else {}
        fields = remembered[f"{name}@{revision}"]
        of_commit = partial(HubFile, name, str(fields["commit"]))
        by_path = {file[0]: of_commit(*file) for file in fields["files"]}
        known = HubRepository(name, str(fields["commit"]), by_path, fields["card"])
    if known is not None and (HF_HUB_OFFLINE or COMMIT.fullmatch(revision)):
        return known
    if HF_HUB_OFFLINE:
        found = "HF_HUB_OFFLINE, and no list of its files from an earlier run"
        raise _unreachable(f"raw.files 'hf://datasets/{name}'", found)
    api = HfApi(endpoint=endpoint(), library_name="tokflow")
    asked = partial(_asked, name=name, revision=revision, is_known=known is not None)
    about = partial(
        api.dataset_info, name, revision=revision, timeout=TIMEOUT_SECONDS, expand=["sha"]
    )
    commit = str(asked(about).sha)
    if known is not None and known.commit == commit:
        return known
    files = {file.path: file for file in asked(lambda: list(files_at(api, name, commit)))}
    text = asked(lambda: read_small(files[CARD])).decode(errors="replace") if CARD in files else ""
    card = {"configs": card_of(text, where=f"hf://datasets/{name}").get("configs")}
    if memory is not None:
        of_files = [[file.path, file.num_bytes, file.content_id] for file in files.values()]
        remembered[f"{name}@{revision}"] = {"commit": commit, "card": card, "files": of_files}
        with suppress(OSError, TypeError), new_file(memory) as temporary:
            # JSON has no keys that are dates.
            temporary.write_text(json.dumps(remembered, default=str), encoding="utf-8")
    return HubRepository(name, commit, files, card)


def files_at(api: Any, name: str, commit: str) -> Iterator[HubFile]:
    """Yield the files of a repository at a commit, a thousand by each request of an HfApi."""
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

    def once() -> _T:
        try:
            return ask()
        except Exception as error:
            problem = _problem(error, name, revision)
        raise TransientError(problem.found) if isinstance(problem, FetchError) else problem

    return Retries(where, partial(_unreachable, f"raw.files '{where}'", is_known=is_known))(once)


def _problem(error: Exception, name: str, revision: str) -> TokflowError:
    """Return the error for an exception of huggingface_hub."""
    from huggingface_hub import errors

    if isinstance(error, ConfigError | RawFileError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return _forbidden(name, f"raw.files 'hf://datasets/{name}'")
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


def _forbidden(name: str, where: str) -> ConfigError:
    found = "one whose authors decide who may read it"
    remedy = f"accept its terms at {endpoint()}/datasets/{name} and set HF_TOKEN"
    return ConfigError(where=where, expected=_READABLE, found=found, remedy=remedy)


def _unreachable(where: str, found: str, *, is_known: bool = False) -> FetchError:
    """Return the error of a hub that does not answer; `is_known`: an earlier run had the answer."""
    offline = ", or set HF_HUB_OFFLINE=1 to take the files as the last run found them"
    expected = f"an answer of {endpoint()}"
    remedy = f"run again when it answers{offline * is_known}; HF_ENDPOINT names another hub"
    return FetchError(where=where, expected=expected, found=found, remedy=remedy)


def find_in_repository(repository: HubRepository, folder: str, below: Sequence[str]) -> Matches:
    """Return the files and folders of a repository that match below `/org/name/folder`."""
    files = dict.fromkeys((f"/{repository.name}/{path}" for path in repository.files), FILE)
    above = {os.fspath(each) for path in files for each in PurePosixPath(path).parents}
    found = dict.fromkeys(above, FOLDER) | files
    start = f"{folder.rstrip('/')}/"
    relative = {path[len(start) :]: of for path, of in found.items() if path.startswith(start)}
    return {start + path: kind for path, kind in select(relative, below).items()}


def divided(card: str) -> tuple[str, str]:
    """Return the lines between the first two of `---`, and what follows them; all of a card without
    these is what follows."""
    text = card.removeprefix("\ufeff")
    # With their ends; str.splitlines takes a form feed for one.
    lines = re.findall(r".*?(?:\r\n|\r|\n)|.+", text, re.DOTALL)
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    if len(ends) < 2 or ends[0] > 0:
        return "", card
    return "".join(lines[1 : ends[1]]), "".join(lines[ends[1] + 1 :])


def card_of(text: str, *, where: str) -> dict[str, Any]:
    """Return the fields of a card, between its first two lines of `---`; none where it has none.

    Raises: ConfigError for what is no YAML, and where nested aliases make it larger than
    MAX_LETTERS.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(divided(text)[0])
        node = loader.get_single_node()
        if node is not None and _num_letters(node, {}) > MAX_LETTERS:
            raise yaml.YAMLError(f"aliases that stand for more than {MAX_LETTERS:,} letters")
        fields = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            where=f"{where}: {CARD}",
            expected="YAML between its first two lines of `---`",
            found=" ".join(str(error).split()),
            remedy="name another revision, or the files by a pattern",
        ) from None
    return fields if isinstance(fields, dict) else {}


def _num_letters(node: Any, known: dict[int, int]) -> int:
    """Return how many letters and values a node of YAML stands for, with each alias written out."""
    if id(node) not in known:
        known[id(node)] = MAX_LETTERS + 1  # of an alias within what it stands for
        if isinstance(node.value, str):
            known[id(node)] = 1 + len(node.value)
        else:
            pairs = (each if isinstance(each, tuple) else (each,) for each in node.value)
            known[id(node)] = 1 + sum(_num_letters(of, known) for pair in pairs for of in pair)
    return known[id(node)]
