"""Files of a part, written or linked: those that hold whole raw files are found again in the last
export, by what decides them.

What is made of the tails of all raw files is decided by all of them, and written anew whenever one
of them is.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from tokflow.errors import CorruptOutputError
from tokflow.exports.config import ExportConfig
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import KeptOfDocuments
from tokflow.exports.options import files_together
from tokflow.exports.part import FileFacts, LastTokens, Part
from tokflow.store.integrity import check_files
from tokflow.store.manifest import FileEntry, Recipe
from tokflow.store.store import StoredOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class FileShard:
    """The raw files, or sequences of one, that are written together: into one file of a format, or
    several of a stream that has a large raw file, with those beside them."""

    part: Part
    """The part, of which only these are written."""
    num: int
    """The files of the part; 0 of a stream, which has as many as it takes."""
    fingerprint: str
    """Hash of what decides its bytes: the outputs of its raw files, format and options."""


class WrittenShard(TypedDict):
    """Files that were written together, as a manifest has them."""

    num_files: int
    num_sequences: int
    """0 of a stream, and of files that are not of whole raw files."""
    fingerprint: str
    """That of the shard; empty of files that are not of whole raw files."""
    taken: Mapping[str, int]
    """Counts, as `Part.taken` has them."""
    files: NotRequired[Sequence[FileFacts]]
    """The facts of each, where there are some."""


def facts_of(written: WrittenShard) -> Sequence[FileFacts]:
    """Return the facts of each file, which may be none."""
    return written.get("files") or [{}] * written["num_files"]


def _written(
    files: Sequence[FileFacts], taken: Mapping[str, int], num_sequences: int = 0, decided: str = ""
) -> WrittenShard:
    written = WrittenShard(
        num_files=len(files),
        num_sequences=num_sequences,
        fingerprint=decided,
        taken=dict(sorted(taken.items())),
    )
    if any(files):
        written["files"] = files
    return written


def shards_of(part: Part, config: ExportConfig, recipe: Recipe) -> list[FileShard]:
    """Return what is written together of a part of an export with this recipe, in order; nothing
    where its files are not of whole raw files."""
    if not getattr(config.options, "is_by_file", False) or part.shuffled is not None:
        return []
    shards: list[Decided] = []
    if not config.layout.is_packed:
        token_bytes = FORMATS[config.format].token_bytes or part.dtype.itemsize
        most = max(1, config.options.bytes_together(part.num_tokens * token_bytes) // token_bytes)
        num_tokens = [split.manifest.counts[f"{part.name}.num_tokens"] for split in part.splits]
        of_parts = [str(split.manifest.partition) for split in part.splits]
        files = [*zip(of_parts, num_tokens, strict=True), ("", 0)]
        some = (of for of in files_together(files, most) if sum(num_tokens[of]))
        shards = [(replace(part, splits=part.splits[of]), of_parts[of], {}) for of in some]
    elif part.packed.is_by_file:
        shards = _of_sequences(part, config)
    of_part = {
        "part": [part.name, part.file_name],
        "has_loss_mask": part.has_loss_mask,
        "kept": KeptOfDocuments(part.splits).names,
    }
    found = []
    for own, keys, place in shards:
        parents = recipe.parents if "" in keys else {key: recipe.parents[key] for key in keys}
        own_config = {**_config_of(recipe), "shard": {**of_part, **place}}
        decided = replace(recipe, config=own_config, parents=parents).fingerprint
        num = len(shards) if config.layout.is_packed else 0
        found.append(FileShard(part=own, num=num, fingerprint=decided))
    return found


def _config_of(recipe: Recipe) -> dict[str, Any]:
    """Return what the config decides of files: not the names of bad files, which are in none."""
    return {name: of for name, of in recipe.config.items() if name != "bad_files"}


Decided = tuple[Part, Sequence[str], dict[str, Any]]
"""What is written of a part; the keys of its raw files, "" where they are all; what else decides
it."""


def _of_sequences(part: Part, config: ExportConfig) -> list[Decided]:
    options, packed = config.options, part.packed
    files, sizes = packed.of_files, FORMATS[config.format].sizes(part.rows, options) or ()
    edges = [*accumulate(sizes, initial=0)]
    firsts = [*accumulate((num for _, num in files), initial=0)]
    longest = packed.longest if getattr(options, "padding", "max") == "longest" else None
    found: list[Decided] = []
    number = 0
    for start, stop in pairwise(edges):
        while firsts[number + 1] <= start:
            number += 1
        place = {"start": start - firsts[number], "num": stop - start, "longest": longest}
        keys = [key for key, _ in files[number : bisect_left(firsts, stop)]]
        found.append((replace(part, within=range(start, stop), shard_sizes=sizes), keys, place))
    return found


def write_files(
    part: Part, config: ExportConfig, recipe: Recipe, folder: Path, *, last: "LastExport | None"
) -> tuple[list[WrittenShard], dict[str, FileEntry]]:
    """Write the files of a part, or of its sequences `within`, or link to those of the last export;
    return what they are, and the sizes and checksums of links."""
    format_, found, linked = FORMATS[config.format], list[WrittenShard](), dict[str, FileEntry]()
    shards = shards_of(part, config, recipe)
    if not shards:
        own = replace(part, last=last.tokens_of(part, recipe) if last else None)
        files = [*format_.write(own, config.options, folder)]
        return [_written(files, part.taken or {})], {}
    within, number = part.within or range(part.num_sequences), 0
    for shard in shards:
        if shard.part.within is not None and shard.part.within.start not in within:
            number += 1
            continue
        if link := last.link(shard, number, config, folder) if last else None:
            written, links = link
        else:
            counted, links = Counter[str](), {}
            own = replace(shard.part, first_number=number, taken=counted)
            files = [*format_.write(own, config.options, folder)]
            written = _written(files, counted, len(shard.part.within or ()), shard.fingerprint)
        number += written["num_files"]
        found.append(written)
        linked |= links
        if part.taken is not None:
            part.taken.update(written["taken"])
    return found, linked


class LastExport:
    """The files of the export that was made last, by what decides them."""

    def __init__(self, stored: StoredOutput) -> None:
        self._stored = stored
        self._found: dict[str, tuple[WrittenShard, int, int]] = {}
        """Shards by their fingerprints, with the number of the first file, and that of all."""
        for shards in stored.manifest.details.get("shards", {}).values():
            firsts = [*accumulate((of["num_files"] for of in shards), initial=0)]
            for first, of in zip(firsts, shards, strict=False):
                self._found[of["fingerprint"]] = of, first, firsts[-1]

    def has(self, shard: FileShard, config: ExportConfig) -> bool:
        """Return whether it has the files, on this disk."""
        names = self._names(shard, 0, config)
        return bool(names) and all((self._stored.folder / name).exists() for name in names)

    def link(
        self, shard: FileShard, number: int, config: ExportConfig, folder: Path
    ) -> tuple[WrittenShard, dict[str, FileEntry]] | None:
        """Make links to files below `folder`, of which the first gets a number; return what they
        are, and their sizes and checksums. None where it has no such files on this disk, or a
        damaged one."""
        if not self.has(shard, config):
            return None
        names = self._names(shard, number, config)
        try:
            check_files(self._stored, only=names, fetches=False)
        except CorruptOutputError:
            return None
        for name, new in names.items():
            (folder / new).parent.mkdir(parents=True, exist_ok=True)
            self._stored.link(name, folder / new)
        files, (written, *_) = self._stored.manifest.files, self._found[shard.fingerprint]
        return written, {new: files[name] for name, new in names.items()}

    def _names(self, shard: FileShard, number: int, config: ExportConfig) -> dict[str, str]:
        """Return the names of the files, by those that they have there; none where it has not the
        shard."""
        format_, found = FORMATS[config.format], self._found.get(shard.fingerprint)
        if found is None:
            return {}
        (written, first, num), names = found, dict[str, str]()
        dataset = self._stored.manifest.dataset
        for ordinal in range(written["num_files"]):
            there, here = (
                format_.name(shard.part.file_name, at + ordinal, config.options, num_of, dataset)
                for at, num_of in ((first, num), (number, shard.num))
            )
            beside = zip(format_.beside(there), format_.beside(here), strict=True)
            names |= {there: here, **dict(beside)}
        return {name: new for name, new in names.items() if name in self._stored.manifest.files}

    def tokens_of(self, part: Part, recipe: Recipe) -> LastTokens | None:
        """Return where the tokens of the first raw files of a part are, if it is made of these and
        no others, in the same way."""
        then = self._stored.manifest.recipe
        keys = [str(split.manifest.partition) for split in part.splits[: len(then.parents)]]
        is_alike = (then.version, _config_of(then)) == (recipe.version, _config_of(recipe))
        is_first = then.parents == {key: recipe.parents.get(key) for key in keys}
        if part.shuffled is not None or not is_alike or not is_first:
            return None
        return LastTokens(self._stored.folder, self._stored.manifest.files, len(keys))
