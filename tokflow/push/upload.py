"""Push an export to a dataset repository of the Hugging Face hub and check that it arrived."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from tokflow.errors import ConfigError
from tokflow.exports import Export
from tokflow.exports.reading import open_export
from tokflow.formatting import counted, size
from tokflow.push import repository as hub
from tokflow.push.contents import HeldThere, card_config, card_section, find_held, merged_card
from tokflow.raw.hub_repository import CARD, HubFile, card_of, read_small
from tokflow.raw.remote_version import Retries, TransientError
from tokflow.record.export_card import read_card
from tokflow.store.integrity import check_files
from tokflow.store.listed_files import CROISSANT_NAME
from tokflow.store.manifest import MANIFEST_NAME, OWN_FOLDER, has_its_digest, is_inside, plain_json

OF_REPOSITORY = (CARD, ".gitattributes")
"""Files of the whole repository: never deleted, whatever a manifest there names."""

UNFINISHED = f"{OWN_FOLDER}/unfinished_push"
"""Folder of the manifests of pushes that are not finished: from the first of several commits to the
last, so that another push knows what it may replace and delete."""

COMMIT_FILES = 250
"""Files of one commit, as in huggingface_hub: the hub can time out on larger commits."""
TEXT_BYTES = 10_000_000
COMMIT_TEXT_BYTES = 100_000_000
"""Bytes of files in the commit itself, which is made in memory: the hub keeps larger files, and
those with the suffixes of `KEPT_APART`, in its large-file storage."""
KEPT_APART = (".parquet", ".arrow", ".bin", ".npy", ".npz", ".tar", ".gz", ".zst", ".lz4")

Sent = set[tuple[str, str]]
"""Paths in the repository, and the sha256 of their content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """An export on the hub."""

    name: str
    """`org/name`."""
    revision: str
    """The branch, or `refs/pr/1`."""
    commit: str
    """The head of it, at which every file was found with the digest of the manifest."""
    url: str
    """A page of the hub: of the pull request, or of the files."""
    is_private: bool
    num_files: int
    num_bytes: int
    """Bytes of the whole export; `num_sent` and `num_sent_bytes` count what was not there yet."""
    num_sent: int
    num_sent_bytes: int
    held: tuple[HeldThere, ...] = ()
    """Builds that were there before, with documents that are excluded now."""


def push_export(
    export: str | Path,
    to: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    pull_request: bool = False,
    allow_pickle: bool = False,
    say: Callable[[str], None] = lambda line: None,
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
    somebody else, and for a token that may not write; PushError where the hub does not take it.
    """
    target, opened = hub.read_target(to, revision=revision), open_export(export)
    pickles = [name for name in opened.manifest.files if name.endswith((".pkl", ".pickle"))]
    if pickles and not allow_pickle:
        raise ConfigError(
            where=opened.stored.shown,
            expected="files that can be loaded without running code",
            found=f"{opened.format_name}: {pickles[0]}",
            remedy="push another format, or allow it by --allow-pickle",
        )
    if pull_request and target.revision != hub.MAIN:
        raise ConfigError(
            where=target.url,
            expected="no revision with a pull request, which is one to main",
            found=target.revision,
            remedy="leave one of them out; to go on with one, push to its revision refs/pr/N",
        )
    return _Push(opened, hub.Repository(target), private, say, is_pull_request=pull_request).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Changes:
    """Changes to a branch: files of the export; card and manifest; files to be deleted."""

    files: list[hub.File]
    last: list[hub.File]
    deleted: set[str]

    @property
    def paths(self) -> set[str]:
        return {file.path for file in (*self.files, *self.last)} | self.deleted


@dataclass
class _Push:
    """One push: looks at the branch, sends what differs, and looks again, until nothing does."""

    export: Export
    repository: hub.Repository
    private: bool | None
    say: Callable[[str], None]
    is_pull_request: bool = False
    sent: dict[str, int] = field(default_factory=dict)
    """Sizes of what was committed, by path."""
    held: tuple[HeldThere, ...] | None = None

    @property
    def target(self) -> hub.Target:
        return self.repository.target

    @property
    def _about(self) -> str:
        """Name of the export, equal in all its builds, whose files are replaced."""
        return f"{self.export.manifest.dataset}, as {self.export.format_name}"

    @cached_property
    def files(self) -> list[hub.File]:
        """The files of the export, without its manifest."""
        return [
            hub.File(self.target.folder + name, self.export.folder / name, of.num_bytes, of.sha256)
            for name, of in self.export.manifest.files.items()
        ]

    @cached_property
    def manifest(self) -> hub.File:
        content = (self.export.folder / MANIFEST_NAME).read_bytes()
        return hub.file_of(self.target.folder + MANIFEST_NAME, content)

    @cached_property
    def _of_card(self) -> tuple[dict[str, object], str, dict[str, object]]:
        fields = card_of(read_card(self.export.stored), where=self.export.stored.shown)
        config = card_config(self.export, self.target)
        return config, card_section(self.export, self.target), fields

    @cached_property
    def croissant(self) -> list[hub.File]:
        """The Croissant description, where it is beside the export."""
        data = self.export.store.read_beside(self.export.folder, CROISSANT_NAME)
        return [hub.file_of(self.target.folder + CROISSANT_NAME, data)] if data else []

    def run(self) -> Pushed:
        retries = Retries(self.target.url, partial(hub.not_taken, self.target))
        while True:
            num_sent = len(self.sent)
            try:
                look = self.repository.look(make_private=self.private is not False)
                if self.private is not None and look.is_private != self.private:
                    kinds = {True: "a private repository", False: "a public repository"}
                    raise ConfigError(
                        where=self.target.url,
                        expected=kinds[self.private],
                        found=kinds[look.is_private],
                        remedy="change it in its settings on the hub, or leave the option out",
                    )
                changes = self._changes(look.files)
                if self.held is None:
                    self.held = tuple(find_held(self.export.stored, look.files, self.target))
                    for held in self.held:
                        self.say(f"warning: {held}")
                if not changes.paths:
                    return self._pushed(look)
                self._refuse_again(changes)
                if self.is_pull_request:
                    title = f"{self._about}: {self.export.manifest.recipe.fingerprint[:16]}"
                    self.repository = self.repository.with_pull_request(title)
                    self.is_pull_request = False
                    self.say(f"pull request: {self.repository.web_url('')}")
                else:
                    self._send(changes, look.commit)
            except TransientError as error:
                retries.wait(error, has_advanced=len(self.sent) > num_sent)

    def _changes(self, there: Mapping[str, HubFile]) -> _Changes:
        """Return what is to be sent and deleted; nothing that somebody else wrote is.

        Raises: ConfigError where that is in the way.
        """
        unfinished = {path for path in there if path.startswith(self.target.folder + UNFINISHED)}
        begun = Sent().union(*(self._named(there[path]) for path in sorted(unfinished)))
        finished = there.get(self.manifest.path)
        named = self._named(finished) if finished else Sent()
        files = [of for of in self.files if not self._is_same(of, there.get(of.path))]
        replaced = {file.path for file in files} & there.keys() - self.sent.keys()
        kept = {*OF_REPOSITORY, self.manifest.path, *(file.path for file in self.files)}
        gone = {path for path, _ in begun | named} & there.keys() - kept
        foreign = {path for path in replaced | gone if not self._is_own(there[path], begun | named)}
        if refused := sorted(foreign & (replaced | {path for path, _ in named})):
            raise self._refusal(f"{refused[0]}, with content that no push of it has sent")
        before = read_small(there[CARD]) if CARD in there else b""
        text = before.decode(errors="surrogateescape")
        merged = merged_card(text, self.target, *self._of_card)
        card = hub.file_of(CARD, merged.encode(errors="surrogateescape"))
        last = [self.manifest, *self.croissant, card]
        return _Changes(
            files=files,
            last=[file for file in last if not self._is_same(file, there.get(file.path))],
            deleted=gone - foreign | unfinished,
        )

    def _named(self, there: HubFile) -> Sent:
        """Return what a manifest there names.

        Raises: ConfigError where it is of no push of this export.
        """
        is_sent = there.path in self.sent or self._is_same(self.manifest, there)
        data = self.manifest.read() if is_sent else read_small(there)
        found, sent = f"a {there.path} that is not of tokflow", {}
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            fields = plain_json(data) if has_its_digest(data) else {}
            sent = {str(name): str(of["sha256"]) for name, of in fields["files"].items()}
            if all(map(is_inside, sent)):
                found = f"{fields['dataset']}, as {fields['details']['format']}"
        if found != self._about:
            raise self._refusal(found)
        return {(self.target.folder + name, digest) for name, digest in sent.items()}

    def _is_own(self, there: HubFile, own: Sent) -> bool:
        """Return whether a file has content that a push has sent to its path."""
        digest = there.sha256
        if digest is None and any(path == there.path for path, _ in own):
            digest = hashlib.sha256(read_small(there)).hexdigest()
        return (there.path, digest) in own

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
            raise hub.PushError(
                where=f"{self.target.url}: {again[0]}",
                expected="the content that was sent",
                found="other content, or none",
                remedy="see who else writes to it, or whether a .gitignore there leaves it out, "
                "and push again",
            )

    def _send(self, changes: _Changes, parent: str) -> None:
        check_files(self.export, only=self._names(changes.files), fetches=False)
        batches = [*_batches(changes.files, self.export.store.most_bytes // 2)]
        fingerprint, list_ = self.export.manifest.recipe.fingerprint, list[hub.File]()
        if len(batches) > 1:
            name = f"{self.target.folder}{UNFINISHED}/{fingerprint[:16]}.json"
            list_ = [hub.file_of(name, self.manifest.read())]
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            files = [*batch, *changes.last] if is_last else batch
            gone = {*changes.deleted, *(of.path for of in list_)} if is_last else set()
            check_files(self.export, only=self._names(batch))
            parent = self.repository.commit(
                [*files, *(list_ if number == 1 else ())],
                sorted(gone),
                message=self._about,
                parent=parent,
            )
            self.sent |= {file.path: file.num_bytes for file in files} | dict.fromkeys(gone, 0)
            of = f" ({number} of {len(batches)})" if len(batches) > 1 else ""
            num_bytes = sum(file.num_bytes for file in files)
            self.say(f"commit {parent[:7]}{of}: {counted(len(files), 'file')}, {size(num_bytes)}")

    def _names(self, files: Sequence[hub.File]) -> set[str]:
        return {file.path.removeprefix(self.target.folder) for file in files}

    def _is_same(self, file: hub.File, there: HubFile | None) -> bool:
        """Return whether the hub has the content of a file, by size and digest; of a small one
        git's, for which it is read."""
        if there is None or there.num_bytes != file.num_bytes:
            return False
        if there.sha256 is not None:
            return there.sha256 == file.sha256
        if isinstance(file.source, Path):
            self.export.stored.fetch(self._names([file]))
        content = file.read()
        git_name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        return git_name.hexdigest() == there.content_id

    def _pushed(self, look: hub.Look) -> Pushed:
        export = [*self.files, self.manifest]
        sent = {path: size for path, size in self.sent.items() if UNFINISHED not in path}
        return Pushed(
            name=self.target.name,
            revision=self.target.revision,
            commit=look.commit,
            url=self.repository.web_url(look.commit),
            is_private=look.is_private,
            num_files=len(export),
            num_bytes=sum(file.num_bytes for file in export),
            num_sent=len(sent),
            num_sent_bytes=sum(sent.values()),
            held=self.held or (),
        )


def _batches(files: Sequence[hub.File], most_bytes: int) -> Iterator[list[hub.File]]:
    """Yield the files of each commit, in order; one without any where there are none."""
    batch: list[hub.File] = []
    num_bytes = num_text_bytes = 0
    for file in files:
        is_text = file.num_bytes <= TEXT_BYTES and not file.path.endswith(KEPT_APART)
        num_bytes += file.num_bytes
        num_text_bytes += file.num_bytes * is_text
        is_full = num_bytes > most_bytes or num_text_bytes > COMMIT_TEXT_BYTES
        if batch and (is_full or len(batch) == COMMIT_FILES):
            yield batch
            batch, num_bytes, num_text_bytes = [], file.num_bytes, file.num_bytes * is_text
        batch.append(file)
    yield batch
