"""Raw files that cannot be read, which `raw.on_bad_file: skip` leaves out.

    <store>/<dataset>/bad_files.json

A build finds them, and makes everything as if they were not there. They are kept, so that plans
know of them, until the file or the config changes.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from tokflow.documents import deciding_fields
from tokflow.errors import TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.raw import BadFile, LeftOut, Listing, RawFile, RawSource
from tokflow.shown import redact
from tokflow.store.atomic import new_file
from tokflow.store.manifest import joined_digest
from tokflow.tokens.shard import TOKENS_VERSION

T = TypeVar("T")

BAD_FILES_NAME = "bad_files.json"

Known: TypeAlias = Mapping[str, RawFile]
"""Raw files as they are now, by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBadFile:
    """A file as it was when it could not be read."""

    digest: str
    """Digest of its content and of all that decides how it is read."""
    reason: str


def file_of(error: Exception, sources: Iterable[RawSource], known: Known) -> str | None:
    """Return the key of the raw file that an error names; None where it names none of them."""
    named = str(getattr(error, "path", "") or getattr(error, "where", ""))
    found = {redact(of.url): of.key for of in sources}
    found |= {str(known[key].path): key for key in found.values() if key in known}
    ends = [len(named), *(at for at, letter in enumerate(named) if letter in ",:")]
    return next((found[named[:end]] for end in sorted(ends)[::-1] if named[:end] in found), None)


def without(listing: Listing, bad: Mapping[str, BadFile]) -> Listing:
    """Return a listing in which some of the files are left out."""
    added = [
        LeftOut(path=redact(of.source.url), found=f"a bad file: {of.reason}") for of in bad.values()
    ]
    return replace(
        listing,
        sources={key: of for key, of in listing.sources.items() if key not in bad},
        left_out=tuple(sorted([*listing.left_out, *added], key=lambda of: of.path)),
        bad={**listing.bad, **bad},
    )


def without_known(
    listing: Listing, dataset: Dataset, identify: Callable[[list[RawSource]], Known]
) -> Listing:
    """Return a listing without the files that a build could not read, and that are as they were;
    the whole of it where these are all, or more than the config allows."""
    known = read_kept(dataset.folder / BAD_FILES_NAME, KnownBadFile)
    sources = [listing.sources[key] for key in known if key in listing.sources]
    if not sources:
        return listing
    with suppress(TokflowError, OSError):
        files = identify(sources)
        bad = {
            of.key: BadFile(source=of, reason=known[of.key].reason)
            for of in sources
            if of.key in files and _digest(files[of.key], dataset) == known[of.key].digest
        }
        if len(bad) <= dataset.raw.max_bad_files and bad.keys() < listing.sources.keys():
            return without(listing, bad)
    return listing


def note_bad_files(dataset: Dataset, bad: Mapping[str, BadFile], known: Known) -> None:
    """Keep the bad files of a build that has just ended; nothing is raised. `known`: files that it
    has looked at."""
    before = read_kept(path := dataset.folder / BAD_FILES_NAME, KnownBadFile)
    now: dict[str, KnownBadFile] = {}
    for key, of in sorted(bad.items()):
        if key in before and key not in known:
            now[key] = before[key]
        elif key in known:
            with suppress(TokflowError, OSError):
                now[key] = KnownBadFile(digest=_digest(known[key], dataset), reason=of.reason)
    if now != before:
        keep(path, now)


def read_kept(path: Path, kind: type[T]) -> dict[str, T]:
    """Return what was kept for the next build by keys; nothing where that cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
    return {}


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Keep something for the next build, or remove the file where there is nothing."""
    with suppress(OSError, UnicodeEncodeError):  # a name may be no UTF-8
        if not found:
            path.unlink(missing_ok=True)
            return
        with new_file(path) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


def _digest(raw: RawFile, dataset: Dataset) -> str:
    documents = dataset.documents
    read_by = [documents.model_dump(), deciding_fields(documents, {}), dataset.tokenizer]
    decides = [raw.sha256, *map(str, read_by), str(TOKENS_VERSION), pa.__version__]
    return joined_digest(decides)
