"""Files of an export that hold whole raw files, and how those of the last export are found again.

With `shards: by_file` each has what decides it in the manifest: so does what is made of the tails
of all raw files, which is written anew whenever one is.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tokflow.errors import CorruptOutputError
from tokflow.exports.config import ExportConfig
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import KeptOfDocuments
from tokflow.exports.options import files_together
from tokflow.exports.part import Part
from tokflow.exports.token_files import sizes_by_documents
from tokflow.store.integrity import check_files
from tokflow.store.manifest import FileEntry, Recipe
from tokflow.store.store import StoredOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class FileShard:
    """The raw files, or sequences of one, that are written together: into one file of a format, or
    several of a stream that has a large raw file, with those beside them."""

    part: Part
    """The part, of which only these are written."""
    names: Sequence[Sequence[str]]
    """The names that each file can have, and those beside it."""
    num_sequences: int
    """0 of a stream."""
    fingerprint: str
    """Hash of what decides its bytes: the outputs of its raw files, format and options."""

    def described(self, taken: Mapping[str, int]) -> dict[str, Any]:
        """Return its entry in the manifest; `taken`: counts, as `Part.taken` has them."""
        own = {"fingerprint": self.fingerprint, "taken": dict(sorted(taken.items()))}
        return {"num_files": len(self.names), "num_sequences": self.num_sequences, **own}


def shards_of(part: Part, config: ExportConfig, recipe: Recipe) -> list[FileShard]:
    """Return what is written together of a part of an export with this recipe, in order; nothing
    where its files are not of whole raw files."""
    format_, options = FORMATS[config.format], config.options
    if format_.shard_names is None or not options.is_by_file or part.shuffled is not None:
        return []
    if config.layout.is_packed:
        shards = _of_sequences(part, config) if part.packed.is_by_file else []
    else:
        shards = _of_stream(part, config)
    numbers = [*accumulate((num for *_, num in shards), initial=0)]
    of_part = {
        "part": [part.name, part.file_name],
        "has_loss_mask": part.has_loss_mask,
        "kept": KeptOfDocuments(part.splits).names,
    }
    found = []
    for first, (own, keys, place, num_files) in zip(numbers, shards, strict=False):
        decided = {**of_part, **place}
        parents = recipe.parents if keys is None else {key: recipe.parents[key] for key in keys}
        of_shard = replace(recipe, config={**recipe.config, "shard": decided}, parents=parents)
        shard = FileShard(
            part=replace(own, first_number=first),
            names=[
                format_.shard_names(part, number, numbers[-1], options)
                for number in range(first, first + num_files)
            ],
            num_sequences=place.get("num", 0),
            fingerprint=of_shard.fingerprint,
        )
        found.append(shard)
    return found


Written = tuple[Part, Sequence[str] | None, dict[str, Any], int]
"""What is written of a part; the keys of its raw files, None: of all; what else decides it; the
number of files."""


def _of_sequences(part: Part, config: ExportConfig) -> list[Written]:
    options, packed = config.options, part.packed
    files, sizes = packed.of_files, FORMATS[config.format].sizes(part.rows, options) or ()
    edges = [*accumulate(sizes, initial=0)]
    firsts = [*accumulate((num for _, num in files), initial=0)]
    longest = packed.longest if getattr(options, "padding", "max") == "longest" else None
    found: list[Written] = []
    number = 0
    for start, stop in pairwise(edges):
        while firsts[number + 1] <= start:
            number += 1
        place = {"start": start - firsts[number], "num": stop - start, "longest": longest}
        of_shard = files[number : bisect_left(firsts, stop)]
        keys = [key for key, _ in of_shard] if number < len(packed.files) else None
        own = replace(part, within=range(start, stop), shard_sizes=sizes)
        found.append((own, keys, place, 1))
    return found


def _of_stream(part: Part, config: ExportConfig) -> list[Written]:
    most = max(1, config.options.file_bytes // part.dtype.itemsize)
    num_tokens = [split.manifest.counts[f"{part.name}.num_tokens"] for split in part.splits]
    keys = [str(split.manifest.partition) for split in part.splits]
    found: list[Written] = []
    for of in files_together([*zip(keys, num_tokens, strict=True), ("", 0)], most):
        if of.start < len(keys):
            own, num_files = replace(part, splits=part.splits[of]), 1
            if sum(num_tokens[of]) > most:
                lengths = replace(own, taken=None).document_lengths()
                num_files = len(sizes_by_documents(lengths, most)[0])
            if sum(num_tokens[of]):
                found.append((own, keys[of], {}, num_files))
    return found


class LastExport:
    """The files of the export that was made last, by what decides them."""

    def __init__(self, stored: StoredOutput) -> None:
        self._stored = stored
        self._found: dict[str, tuple[dict[str, Any], int, int]] = {}
        """Entries by their fingerprints, with the number of the first file, and that of all."""
        of_parts = stored.manifest.details.get("shards", {})
        for shards in of_parts.values():
            firsts = [*accumulate((of["num_files"] for of in shards), initial=0)]
            for first, of in zip(firsts, shards, strict=False):
                self._found[of["fingerprint"]] = of, first, firsts[-1]

    def has(self, shard: FileShard) -> bool:
        """Return whether it has the files."""
        return shard.fingerprint in self._found

    def link(
        self, shard: FileShard, config: ExportConfig, folder: Path
    ) -> tuple[dict[str, FileEntry], dict[str, int]] | None:
        """Make links to files below `folder`; return their sizes and checksums, and the counts of
        what is in them. None where it has no such files on this disk, or a damaged one."""
        names_of = FORMATS[config.format].shard_names
        if names_of is None or not self.has(shard):
            return None
        entry, first, num = self._found[shard.fingerprint]
        files, names = self._stored.manifest.files, dict[str, str]()
        for number, new in enumerate(shard.names, first):
            names |= zip(names_of(shard.part, number, num, config.options), new, strict=True)
        names = {name: new for name, new in names.items() if name in files}
        if not all((self._stored.folder / name).exists() for name in names):
            return None
        try:
            check_files(self._stored, only=names, fetches=False)
        except CorruptOutputError:
            return None
        for name, new in names.items():
            (folder / new).parent.mkdir(parents=True, exist_ok=True)
            self._stored.link(name, folder / new)
        return {new: files[name] for name, new in names.items()}, entry["taken"]
