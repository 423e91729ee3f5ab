"""Files of an export that hold whole raw files, and how those of the last export are found again.

With `shards: by_file` each has what decides it in the manifest: so does what is made of the tails
of all raw files, which is written anew whenever one is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tokflow.errors import CorruptOutputError
from tokflow.exports.config import ExportConfig
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import KeptOfDocuments
from tokflow.exports.part import Part
from tokflow.store.integrity import check_files
from tokflow.store.manifest import FileEntry, Recipe
from tokflow.store.store import StoredOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class FileShard:
    """A file of a part, with those of the same name in other folders."""

    name: str
    within: range
    """Its sequences, as ordinals of the part."""
    fingerprint: str
    """Hash of what decides its bytes: the sequences of its raw files, format and options."""

    def described(self, taken: Mapping[str, int]) -> dict[str, Any]:
        """Return its entry in the manifest; `taken`: counts, as `Part.taken` has them."""
        own = {"fingerprint": self.fingerprint, "taken": dict(sorted(taken.items()))}
        return {"name": self.name, "num_sequences": len(self.within), **own}


def shards_of(part: Part, config: ExportConfig, recipe: Recipe) -> list[FileShard]:
    """Return the files of a part of an export with this recipe; none where they are not of whole
    raw files."""
    format_, options, packed = FORMATS[config.format], config.options, part.packed
    if format_.shard_name is None or not options.is_by_file or not packed.is_by_file:
        return []
    edges = [*accumulate(format_.sizes(part.rows, options) or (), initial=0)]
    firsts = [*accumulate((num for _, num in packed.of_files), initial=0)]
    decided = {
        "part": part.name,
        "kept": KeptOfDocuments(part.splits).names,
        "has_loss_mask": part.has_loss_mask,
        "longest": packed.longest if getattr(options, "padding", "max") == "longest" else None,
    }
    found: list[FileShard] = []
    number = 0
    for start, stop in pairwise(edges):
        while firsts[number + 1] <= start:
            number += 1
        place: dict[str, Any] = {**decided, "start": start - firsts[number], "num": stop - start}
        parents = recipe.parents
        if number < len(packed.files):
            keys = [key for key, _ in packed.of_files[number:-1]]
            ends = firsts[number:-2]
            parents = {
                key: parents[key] for key, first in zip(keys, ends, strict=True) if first < stop
            }
        own = replace(recipe, config={**recipe.config, "shard": place}, parents=parents)
        name = format_.shard_name(part.file_name, len(found), len(edges) - 1, options)
        shard = FileShard(name=name, within=range(start, stop), fingerprint=own.fingerprint)
        found.append(shard)
    return found


class LastExport:
    """The files of the export that was made last, by what decides them."""

    def __init__(self, stored: StoredOutput | None) -> None:
        self._stored = stored
        of_parts = stored.manifest.details.get("shards", {}) if stored else {}
        self._entries = {of["fingerprint"]: of for part in of_parts.values() for of in part}

    def has(self, shard: FileShard) -> bool:
        """Return whether it has a file."""
        return shard.fingerprint in self._entries

    def link(
        self, shard: FileShard, folder: Path
    ) -> tuple[dict[str, FileEntry], dict[str, int]] | None:
        """Make links to a file, and those of its name in other folders, below `folder`; return
        their sizes and checksums, and the counts of what is in them. None where it has no such
        file, or a damaged one."""
        if self._stored is None or not self.has(shard):
            return None
        entry, linked = self._entries[shard.fingerprint], {}
        files = self._stored.manifest.files
        names = [name for name in files if f"/{name}".endswith(f"/{entry['name']}")]
        try:
            check_files(self._stored, only=names, fetches=False)
        except CorruptOutputError:
            return None
        for name in names:
            new = name.removesuffix(entry["name"]) + shard.name
            (folder / new).parent.mkdir(parents=True, exist_ok=True)
            self._stored.link(name, folder / new)
            linked[new] = files[name]
        return linked, entry["taken"]
