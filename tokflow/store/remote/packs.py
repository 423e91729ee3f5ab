"""Packs: many manifests in one object, for machines that have none of them yet.

    <dataset>/packs/<first>-<last>-<digest[:8]>.zst     a list of (key, modified_ns, bytes)

The times are those of the first and the last object in it, in nanoseconds, as listings tell them.
A pack is a copy that spares requests: what is in none, or is another now, is asked for by itself.
"""

import hashlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokflow.store.failures import RemoteStoreError
from tokflow.store.remote.objects import Entry, for_each
from tokflow.store.remote.places import PACKS, Place
from tokflow.store.sealed import has_its_digest
from tokflow.store.zstd import zstd

MANY = 1_000
"""So many manifests that are in no pack are put into one."""

LARGEST = 10_000
"""Manifests of one pack: 20 MB, and 3 MB as it is stored."""

WORTH_A_PACK = 20
"""Whoever wants fewer manifests of a pack asks for each."""

SETTLED_NS = 2 * 10**9
"""Younger objects wait for the next pack: one that is older may not have been listed yet."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One pack, as a listing tells of it."""

    key: str
    first_ns: int
    last_ns: int


Packed = tuple[str, int, bytes]
"""Key, time and bytes of a manifest."""


def packs_of(place: Place, dataset: str) -> list[Pack]:
    """Return the packs of a dataset, in the order of their first objects: one request."""
    packs = []
    for entry in place.objects.listed(f"{dataset}/{PACKS}"):
        with suppress(ValueError):
            first, last, _ = entry.key.rpartition("/")[2].split("-")
            packs.append(Pack(entry.key, int(first), int(last)))
    return packs


def unpacked(place: Place, packs: Iterable[Pack], wanted: Mapping[str, Entry]) -> Iterator[Packed]:
    """Yield the manifests among those wanted, by their keys, that are in packs as they are now."""
    times = sorted(entry.modified_ns for entry in wanted.values())
    read = [pack for pack in packs if _num_between(times, pack) >= WORTH_A_PACK]
    for data in for_each(lambda pack: place.objects.read(pack.key), read):
        for key, modified_ns, manifest in _entries(data):
            entry = wanted.get(key)
            is_now = entry is not None and entry.modified_ns == modified_ns
            if is_now and has_its_digest(manifest):
                yield key, modified_ns, manifest


def unread(packs: Iterable[Pack], times: list[int]) -> Iterator[Pack]:
    """Yield the packs that nobody will read, since too few manifests that are there now have times
    between theirs; `times`, sorted, are those of all."""
    return (pack for pack in packs if _num_between(times, pack) < WORTH_A_PACK)


def packed_until(place: Place, dataset: str) -> int:
    """Return the time of the last object of a dataset that is in a pack; 0 where none is."""
    return max((pack.last_ns for pack in packs_of(place, dataset)), default=0)


def write_packs(place: Place, dataset: str, paths: Mapping[str, Path]) -> None:
    """Put manifests that are in no pack into new ones if they are many: of a dataset, by their
    keys, which are on this disk as a listing has just found them.

    Nothing depends on it: who may not write leaves it.
    """
    settled_ns = time.time_ns() - SETTLED_NS
    found = ((path.stat().st_mtime_ns, key) for key, path in paths.items())
    new = sorted((time_ns, key) for time_ns, key in found if time_ns <= settled_ns)
    if len(new) < MANY:
        return
    for start in range(0, len(new), LARGEST):
        some = new[start : start + LARGEST]
        entries = [(key, time_ns, paths[key].read_bytes()) for time_ns, key in some]
        data = zstd.compress(msgspec.msgpack.encode(entries), 3)
        name = f"{some[0][0]}-{some[-1][0]}-{hashlib.sha256(data).hexdigest()[:8]}.zst"
        with suppress(RemoteStoreError):
            place.objects.put(f"{dataset}/{PACKS}/{name}", data)


def _num_between(times: list[int], pack: Pack) -> int:
    return bisect_right(times, pack.last_ns) - bisect_left(times, pack.first_ns)


def _entries(data: bytes | None) -> list[Packed]:
    """Return what is in a pack; nothing where it is damaged."""
    try:
        return msgspec.msgpack.decode(zstd.decompress(data or b""), type=list[Packed])
    except (zstd.ZstdError, msgspec.MsgspecError, EOFError):
        return []
