"""Push: an export into a dataset repository of the hub, until it is there."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tokflow.errors import ConfigError
from tokflow.exports import Export
from tokflow.exports.reading import open_export
from tokflow.hub.batches import COMMIT_BYTES, batches_of
from tokflow.hub.card import merged_card
from tokflow.hub.card_section import card_section
from tokflow.hub.dataset_repository import File, Look, PushError, Repository, file_of
from tokflow.hub.part_files import card_config
from tokflow.hub.target import MAIN, Target, read_target
from tokflow.hub.unfinished import UNFINISHED_NAME, Sent, list_of, read_list
from tokflow.raw.hub_repository import HubFile
from tokflow.raw.remote import Retries, TransientError
from tokflow.raw.source_splits import CARD
from tokflow.shown import counted, size
from tokflow.store.integrity import check_files
from tokflow.store.manifest import MANIFEST_NAME, is_inside
from tokflow.store.sealed import has_its_digest, plain_json

Say = Callable[[str], None]

OF_REPOSITORY = (CARD, ".gitattributes")
"""Files of the whole repository: never deleted, whatever a manifest or list there names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """An export on the hub."""

    name: str
    """`org/name`."""
    revision: str
    """The branch, or `refs/pr/1`."""
    commit: str
    """The head of it, at which every file was found as the manifest says."""
    url: str
    """A page of the hub: of the pull request, or of the files."""
    is_private: bool
    num_files: int
    num_bytes: int
    """Of the whole export; `num_sent` and `num_sent_bytes`: of what was not there."""
    num_sent: int
    num_sent_bytes: int


def push_export(
    export: str | Path,
    to: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    pull_request: bool = False,
    allow_pickle: bool = False,
    say: Say = lambda line: None,
) -> Pushed:
    """Put an export, with its manifest and a card, into a dataset repository of the hub.

    `to`: `hf://datasets/org/name[@revision][/folder]`. A repository that is not there is made,
    private unless `private` is False; one that is there must be as `private` says, if it is given.
    A branch that is not there is made. `pull_request`: into one, in place of main.

    All that is to be sent is compared with the manifest first; of an export at a URL that of each
    commit, as it is fetched. Files that the hub has with equal size and digest are not sent again.
    One commit has all files, where they are few and small enough; else card and manifest come with
    the last. Files of earlier pushes of the same export into the same folder, finished or not, that
    it has no more, are deleted then. When this returns, the hub has listed every file with the
    digest in the manifest.

    Raises: MissingOutputError, CorruptOutputError as `open_export`, for damaged files too;
    ConfigError for a wrong URL, for pickle files without `allow_pickle`, for a folder or config of
    others, and for a token that may not write; PushError where the hub does not take it.
    """
    target, opened = read_target(to, revision=revision), open_export(export)
    _check_format(opened, is_allowed=allow_pickle)
    _check_online(target)
    if pull_request and target.revision != MAIN:
        raise ConfigError(
            where=target.url,
            expected="no revision with a pull request, which is one to main",
            found=target.revision,
            remedy="leave one of them out; to go on with one, push to its revision refs/pr/N",
        )
    return _Push(opened, Repository(target), private, say, is_pull_request=pull_request).run()


def _check_format(export: Export, *, is_allowed: bool) -> None:
    pickles = [name for name in export.manifest.files if name.endswith((".pkl", ".pickle"))]
    if pickles and not is_allowed:
        raise ConfigError(
            where=export.stored.shown,
            expected="files that can be loaded without running code",
            found=f"{export.format_name}: {pickles[0]}",
            remedy="push another format, or allow it by --allow-pickle",
        )


def _check_online(target: Target) -> None:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        raise ConfigError(
            where=target.url,
            expected="a hub that may be asked",
            found="HF_HUB_OFFLINE",
            remedy="unset it",
        )


@dataclass(slots=True)
class _Changes:
    """What lacks in a branch: files of the export; card and manifest; files to be deleted."""

    files: list[File] = field(default_factory=list)
    last: list[File] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    begun: Sent = field(default_factory=set)
    """Files sent by earlier pushes that did not finish."""

    @property
    def paths(self) -> set[str]:
        return {file.path for file in (*self.files, *self.last)} | {*self.deleted}

    def unfinished(self, folder: str, of: str) -> File:
        """Return the list of all that may be there before the last commit."""
        sent = {(file.path.removeprefix(folder), file.sha256) for file in self.files}
        return file_of(folder + UNFINISHED_NAME, list_of(of, self.begun | sent))


@dataclass
class _Push:
    """One push: looks at the branch, sends what differs, and looks again, until nothing does."""

    export: Export
    repository: Repository
    private: bool | None
    say: Say
    is_pull_request: bool = False
    sent: dict[str, int] = field(default_factory=dict)
    """Sizes of what was committed, by path."""
    is_checked: bool = False

    @property
    def target(self) -> Target:
        return self.repository.target

    @property
    def _about(self) -> str:
        """Name of the export, equal in all its builds, whose files are replaced."""
        return f"{self.export.manifest.dataset}, as {self.export.format_name}"

    @cached_property
    def files(self) -> list[File]:
        """The files of the export, without its manifest."""
        return [
            File(
                path=self.target.folder + name,
                source=self.export.folder / name,
                num_bytes=entry.num_bytes,
                sha256=entry.sha256,
            )
            for name, entry in self.export.manifest.files.items()
        ]

    @cached_property
    def manifest(self) -> File:
        path = self.export.folder / MANIFEST_NAME
        return file_of(self.target.folder + MANIFEST_NAME, path.read_bytes())

    @property
    def unfinished(self) -> str:
        return self.target.folder + UNFINISHED_NAME

    def run(self) -> Pushed:
        retries = Retries(self.target.url, self._give_up)
        while True:
            num_sent = len(self.sent)
            try:
                look = self._look()
                changes = self._changes(look)
                if not changes.paths:
                    return self._pushed(look)
                self._refuse_again(changes)
                if self._is_moved_to_pull_request():
                    continue
                self._check(changes)
                self._send(changes, look.commit)
            except TransientError as error:
                retries.wait(error, has_advanced=len(self.sent) > num_sent)

    def _look(self) -> Look:
        paths = [CARD, self.manifest.path, self.unfinished, *(file.path for file in self.files)]
        look = self.repository.look(paths)
        if look is None:
            self.repository.create(is_private=self.private is not False)
            look = self.repository.look(paths)
        if look is None:
            raise ConfigError(
                where=self.target.url,
                expected="a repository that the token may read and write",
                found="one that it may not",
                remedy="set HF_TOKEN (`hf auth login`) to another, or name another repository",
            )
        if self.private is not None and look.is_private != self.private:
            kinds = {True: "a private repository", False: "a public repository"}
            raise ConfigError(
                where=self.target.url,
                expected=kinds[self.private],
                found=kinds[look.is_private],
                remedy="change it in its settings on the hub, or leave the option out",
            )
        return look

    def _changes(self, look: Look) -> _Changes:
        changes, named = _Changes(begun=self._begun(look)), self._named(look)
        own = {(self.target.folder + name, digest) for name, digest in changes.begun | named}
        kept = {*OF_REPOSITORY, self.manifest.path, *(file.path for file in self.files)}
        gone = {path for path, _ in own} - kept
        found = self.repository.look(gone) if gone else None
        left = found.files if found else {}
        changes.files = [f for f in self.files if not self._is_same(f, look.files.get(f.path))]
        replaced = {f.path for f in changes.files} & look.files.keys() - self.sent.keys()
        there = [*left.values(), *(look.files[path] for path in replaced)]
        foreign = {file.path for file in there if not self._is_own(file, own)}
        must_be_own = replaced | {self.target.folder + name for name, _ in named}
        if refused := sorted(foreign & must_be_own):
            raise self._refusal(f"{refused[0]}, with content that no push of it has sent")
        changes.deleted = sorted(left.keys() - foreign | {self.unfinished} & look.files.keys())
        card = look.files.get(CARD)
        text = "" if card is None else self.repository.read(card).decode(errors="surrogateescape")
        merged = merged_card(text, self.target, self._config, self._section)
        last = [self.manifest, file_of(CARD, merged.encode(errors="surrogateescape"))]
        changes.last = [file for file in last if not self._is_same(file, look.files.get(file.path))]
        return changes

    def _named(self, look: Look) -> Sent:
        """Return what the manifest there names, of this export or an earlier build."""
        if (there := look.files.get(self.manifest.path)) is None:
            return set()
        if self.manifest.path in self.sent or self._is_same(self.manifest, there):
            return {(name, file.sha256) for name, file in self.export.manifest.files.items()}
        return self._earlier(self.repository.read(there))

    def _begun(self, look: Look) -> Sent:
        """Return what pushes that were broken off have sent."""
        if (there := look.files.get(self.unfinished)) is None:
            return set()
        if (sent := read_list(self.repository.read(there), self._about)) is None:
            raise self._refusal(f"{self.unfinished}, which no push of it has written")
        return sent

    def _is_own(self, there: HubFile, own: Sent) -> bool:
        """Return whether a file has content that a push has sent to its path."""
        digest = there.sha256
        if digest is None and any(path == there.path for path, _ in own):
            digest = hashlib.sha256(self.repository.read(there)).hexdigest()
        return (there.path, digest) in own

    @cached_property
    def _config(self) -> dict[str, object]:
        return card_config(self.export, self.target)

    @cached_property
    def _section(self) -> str:
        return card_section(self.export, self.target)

    def _earlier(self, manifest: bytes) -> Sent:
        """Return what was pushed here before.

        Raises: ConfigError where it is no earlier build of the same export.
        """
        foreign = f"a {MANIFEST_NAME} that is not of tokflow"
        try:
            theirs = plain_json(manifest) if has_its_digest(manifest) else {}
            about = f"{theirs['dataset']}, as {theirs['details']['format']}"
            sent = {(name, str(of["sha256"])) for name, of in theirs["files"].items()}
            found = about if all(is_inside(name) for name, _ in sent) else foreign
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            found, sent = foreign, set()
        if found != self._about:
            raise self._refusal(found)
        return sent

    def _refusal(self, found: str) -> ConfigError:
        return ConfigError(
            where=self.target.url,
            expected=f"nothing, or {self._about}",
            found=found,
            remedy=f"name a folder of its own, hf://datasets/{self.target.name}/FOLDER, or delete "
            "what is there",
        )

    def _refuse_again(self, changes: _Changes) -> None:
        """Stop where the hub lists something else than it has taken."""
        if again := sorted(changes.paths & self.sent.keys()):
            raise PushError(
                where=f"{self.target.url}: {again[0]}",
                expected="the content that was sent",
                found="other content, or none",
                remedy="see who else writes to it, or whether a .gitignore there leaves it out, "
                "and push again",
            )

    def _is_moved_to_pull_request(self) -> bool:
        if not self.is_pull_request:
            return False
        title = f"{self._about}: {self.export.manifest.fingerprint[:16]}"
        self.repository = self.repository.with_pull_request(title)
        self.is_pull_request = False
        self.say(f"pull request: {self.repository.web_url('')}")
        return True

    def _check(self, changes: _Changes) -> None:
        """Compare what is to be sent with the manifest; what is elsewhere is, when it is fetched
        for its commit."""
        if not (self.is_checked or self.export.store.is_cached):
            check_files(self.export, only=self._names(changes.files))
        self.is_checked = True

    def _names(self, files: list[File]) -> set[str]:
        return {file.path.removeprefix(self.target.folder) for file in files}

    def _send(self, changes: _Changes, parent: str) -> None:
        batches = [*batches_of(changes.files, self._most_bytes())]
        names = [changes.unfinished(self.target.folder, self._about)] if len(batches) > 1 else []
        for number, batch in enumerate(batches):
            is_last = number == len(batches) - 1
            files = [*batch, *(changes.last if is_last else ())]
            deleted = {*changes.deleted, *(of.path for of in names)} if is_last else set()
            self.export.store.bring(of.source for of in batch if isinstance(of.source, Path))
            check_files(self.export, only=self._names(batch))
            try:
                parent = self.repository.commit(
                    [*files, *(names if number == 0 else ())],
                    sorted(deleted),
                    message=self._about,
                    parent=parent,
                )
            except Exception:
                self._refuse_gone(batch)
                raise
            self.sent |= {file.path: file.num_bytes for file in files} | dict.fromkeys(deleted, 0)
            of = f" ({number + 1} of {len(batches)})" if len(batches) > 1 else ""
            num_bytes = sum(file.num_bytes for file in files)
            self.say(f"commit {parent[:7]}{of}: {counted(len(files), 'file')}, {size(num_bytes)}")

    def _most_bytes(self) -> int:
        """Return how many a commit has: of what is fetched at most half of the cache's limit."""
        return min(COMMIT_BYTES, self.export.store.most_bytes // 2)

    def _refuse_gone(self, batch: list[File]) -> None:
        """Have the files of a commit fetched again if another process let one go from the cache."""
        for file in batch:
            if isinstance(file.source, Path) and not file.source.exists():
                raise TransientError(
                    f"{self.export.store.shown(file.source)} went from the cache"
                ) from None

    def _is_same(self, file: File, there: HubFile | None) -> bool:
        """Return whether the hub has the content of a file, by size and digest; of a small one
        git's, for which it is read."""
        if there is None or there.num_bytes != file.num_bytes:
            return False
        if there.sha256 is not None:
            return there.sha256 == file.sha256
        content = file.source
        if isinstance(content, Path):
            self.export.store.bring([content])
            content = content.read_bytes()
        git_name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        return git_name.hexdigest() == there.content_id

    def _pushed(self, look: Look) -> Pushed:
        export = [*self.files, self.manifest]
        return Pushed(
            name=self.target.name,
            revision=self.target.revision,
            commit=look.commit,
            url=self.repository.web_url(look.commit),
            is_private=look.is_private,
            num_files=len(export),
            num_bytes=sum(file.num_bytes for file in export),
            num_sent=len(self.sent.keys() - {self.unfinished}),
            num_sent_bytes=sum(self.sent.values()),
        )

    def _give_up(self, found: str) -> PushError:
        return PushError(
            where=self.target.url,
            expected="a hub that takes it",
            found=found,
            remedy="push again when it answers: what arrived is not sent again",
        )
