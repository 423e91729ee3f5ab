"""One export written: the files of its format, its index, its manifest; whole, or by segments.

    exports/<name>/.<fingerprint[:16]>.segments/00003/   one segment: files of one part, or its
                                                         index, made alone, until all are there
    exports/<name>/<fingerprint[:16]>/                   the export, with the files of all segments

By segments only where the files of a format do not depend on each other: `Format.sizes`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokflow.errors import CorruptOutputError
from tokflow.exports.columns import num_written_padding
from tokflow.exports.config import ExportConfig, export_named
from tokflow.exports.format import Layout
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_NAME, KeptOfDocuments, write_index
from tokflow.exports.options import Padding
from tokflow.exports.part import Part
from tokflow.exports.shards import LastExport, shards_of
from tokflow.exports.token_files import take_hashed
from tokflow.pools.pool import Advance
from tokflow.sequences.config import Side, one_or_each
from tokflow.stage import Writer
from tokflow.store.manifest import FileEntry, Manifest, Recipe, checksum, checksums, write_manifest
from tokflow.store.store import InStore, StoredOutput

SEGMENT_TOKENS = 2**25
"""Tokens of the sequences that one task writes, padding included, and at least one file: a second
of work of the fastest format, in proportion to the 10 ms of one output more."""


Shards = dict[str, list[dict[str, Any]]]
"""Files of whole raw files, by their parts, as the manifest has them."""


@dataclass(frozen=True, slots=True)
class ExportSegment:
    """A share of an export that is made alone, and kept beside it until all are there."""

    number: int
    export: Recipe
    """The recipe of the export."""
    part: str | None = None
    """The part whose files it has; None: it is the index."""
    within: range = range(0)
    """The sequences of the part that are in its files."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the segment: its share, of the export as a whole, whose own parents are as
        many as there are files."""
        own = {"segment": [self.number, self.part, self.within.start, self.within.stop]}
        return replace(
            self.export,
            config={**self.export.config, **own},
            parents={"whole": self.export.fingerprint},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportWriter(Writer):
    """The writer of an export and of its segments, with what both are given; goes to another
    process as it is."""

    parts: Sequence[Part]
    config: ExportConfig
    dataset: str
    recipe: Recipe
    details: Mapping[str, Any]
    """The tokens, as the manifest has them."""
    last: StoredOutput | None = None
    """The export that was made last: files of it that are still right are linked."""

    def write(self, share: ExportSegment | None, folder: Path, progress: Advance) -> None:
        """Write a segment of the export, or all of it with its index, into an empty folder,
        manifest last.

        Raises: CorruptOutputError where a file that the parts are read from is damaged; ConfigError
        where the format cannot hold them.
        """
        started = time.perf_counter()
        own = [part for part in self.parts if share is not None and part.name == share.part]
        inputs, store = self.inputs(), self.parts[0].splits[0].store
        if share is not None and own:  # what is made of tails comes when it is read
            inputs = own[0].packed.inputs_within(share.within)
        fetching = store.fetching(inputs, has_numbers=share is None or bool(own))
        with export_named(self.config), fetching:
            counts, shards, linked = self._write_files(folder, share)
        files = checksums(folder, known={**take_hashed(folder), **linked})
        recipe = self.recipe if share is None else share.recipe
        seconds = time.perf_counter() - started
        self._write_manifest(folder, recipe, counts, files, seconds, shards)

    def inputs(self) -> Sequence[InStore]:
        """Return the outputs that the parts are read from."""
        return self.parts[0].packed.inputs_within()  # all parts are of the same files

    def shares(self) -> list[ExportSegment]:
        """Return the segments that the export is made of; none where it is made as a whole.

        They depend on the sequences and the config alone; there are none either where files of the
        last export are linked, and few are written.

        Raises: as `integrity.Reading`, of the tables that tell how many sequences there are.
        """
        if sum(part.num_tokens for part in self.parts) <= SEGMENT_TOKENS:
            return []
        shares: list[tuple[str, range]] = []
        inputs = self.inputs()
        last = LastExport(self.last) if self.last else None
        with export_named(self.config), inputs[0].store.fetching(inputs, has_numbers=False):
            for part in self.parts:
                sizes = FORMATS[self.config.format].sizes(part.rows, self.config.options)
                if sizes is None:
                    return []
                largest = max(sizes, default=1) * part.sequence_length
                edges = [0, *accumulate(sizes)]
                shards = shards_of(part, self.config, self.recipe)
                if last and any(map(last.has, shards)):
                    return []
                step = 1 if shards else max(1, SEGMENT_TOKENS // largest)
                edges = [*edges[:-1:step], edges[-1]]
                shares += [(part.name, range(*share)) for share in pairwise(edges)]
        if len(shares) < 2:
            return []
        found = [ExportSegment(number, self.recipe, *of) for number, of in enumerate(shares)]
        return [*found, ExportSegment(len(found), self.recipe)]

    def join(self, shares: Sequence[StoredOutput], folder: Path) -> None:
        """Make the export of its segments in the empty `folder`, manifest last. No file is copied
        where the file system has hard links.

        Raises: CorruptOutputError where a file of them is damaged.
        """
        having: dict[str, list[StoredOutput]] = {}
        taken = {part.name: Counter[str]() for part in self.parts}
        for segment in shares:
            for name in segment.manifest.files:
                having.setdefault(name, []).append(segment)
            for name, num in segment.manifest.counts.items():
                part_name, _, what = name.partition(".")
                taken[part_name][what] += num
        files: dict[str, FileEntry] = {}
        for name, of in having.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if len(of) == 1:
                of[0].link(name, path)
                files[name] = of[0].manifest.files[name]
            else:
                found = [one.file(name).read_bytes() for one in of]
                path.write_bytes(FORMATS[self.config.format].merge(found))
                files[name] = checksum(path)
        with export_named(self.config):
            counted = [replace(part, taken=taken[part.name]) for part in self.parts]
            counts = _counts_of(counted, self.config)
            segments, shards = iter(shares), Shards()
            for part in self.parts:
                for shard in shards_of(part, self.config, self.recipe):
                    counts_then = next(segments).manifest.counts.items()
                    own = {name.removeprefix(f"{part.name}."): num for name, num in counts_then}
                    shards.setdefault(part.name, []).append(shard.described(own))
        seconds = sum(segment.run().get("seconds", 0) for segment in shares)
        self._write_manifest(folder, self.recipe, counts, files, seconds, shards)

    def _write_files(
        self, folder: Path, segment: ExportSegment | None
    ) -> tuple[dict[str, int], Shards, dict[str, FileEntry]]:
        """Write the files of an export, or of a segment; return the counts of its manifest, its
        shards of raw files, and those that are links."""
        format_, options = FORMATS[self.config.format], self.config.options
        layout = self.config.layout
        names = format_.file_names(options, [part.name for part in self.parts])
        parts = [replace(of, file_name=names[of.name], taken=Counter()) for of in self.parts]
        made = parts if segment is None else [of for of in parts if of.name == segment.part]
        if segment is not None:
            made = [replace(part, within=segment.within) for part in made]
        # A part without tokens, or sequences, has no file.
        made = [of for of in made if (of.num_sequences if layout.is_packed else of.num_tokens)]
        last = LastExport(self.last) if self.last and not segment else None
        shards, linked = Shards(), dict[str, FileEntry]()
        for part in made:
            own = [] if segment else shards_of(part, self.config, self.recipe)
            if not own:
                format_.write(part, options, folder)
            for shard in own:
                counted = Counter[str]()
                if last and (found := last.link(shard, self.config, folder)):
                    linked |= found[0]
                    counted.update(found[1])
                else:
                    format_.write(replace(shard.part, taken=counted), options, folder)
                if part.taken is not None:
                    part.taken.update(counted)
                shards.setdefault(part.name, []).append(shard.described(counted))
        if made:
            format_.finish(made, options, folder)
        if segment is not None and segment.part is not None:
            taken = ((of.name, *each) for of in made for each in (of.taken or {}).items())
            return {f"{part}.{name}": num for part, name, num in taken}, {}, {}
        kept = KeptOfDocuments(parts[0].splits).names
        write_index(folder / INDEX_NAME, (index_of(part, layout) for part in parts), kept)
        return {} if segment else _counts_of(parts, self.config), shards, linked

    def _write_manifest(
        self,
        folder: Path,
        recipe: Recipe,
        counts: Mapping[str, int],
        files: Mapping[str, FileEntry],
        seconds: float,
        shards: Shards,
    ) -> None:
        """Write the manifest, with what a reader must know of the files."""
        parts, layout = self.parts, self.config.layout
        details = {
            **self.details,
            "format": self.config.format,
            "parts": [part.name for part in parts],
            "keeps": list(layout.keeps),
        }
        if shards:
            details["shards"] = shards
        if "loss_mask" not in layout.keeps and any(part.has_loss_mask for part in parts):
            details["lost"] = ["loss_mask"]
        if layout.is_packed:
            sides: dict[str, Side] = {part.name: part.packed.packing.padding_side for part in parts}
            lengths = {part.name: part.sequence_length for part in parts}
            details["sequence_length"] = one_or_each(lengths)
            details["pad_id"] = one_or_each({part.name: part.packed.pad_id for part in parts})
            if "left" in sides.values():
                details["padding_side"] = one_or_each(sides)
        manifest = Manifest(
            recipe=recipe,
            dataset=self.dataset,
            partition=None,
            counts=counts,
            details=details,
            files=files,
        )
        write_manifest(folder, manifest, run={"seconds": round(seconds, 3)})


def _counts_of(parts: Sequence[Part], config: ExportConfig) -> dict[str, int]:
    """Return how much of each part was written, and what was left out.

    num_tokens: padding not counted. num_dropped_tokens. Of sequences num_sequences, num_padding
    (as much as the files have of it), num_repeated_tokens (in another sequence too) and the fields
    of PackingCounts; of chats the turns that were cut or dropped, and num_unsupervised_sequences,
    the ones written without a supervised token. Of chats, where the format keeps the loss mask,
    num_loss_tokens; where it keeps offsets, num_documents.

    Raises: CorruptOutputError where a token was neither written nor dropped as the config says.
    """
    layout, found = config.layout, dict[str, int]()
    for part in parts:
        taken = part.taken or Counter()
        counts = {"num_tokens": taken["num_tokens"], "num_dropped_tokens": 0}
        if layout.is_packed:
            padding: Padding = getattr(config.options, "padding", "max")
            counts |= {
                "num_sequences": part.num_sequences,
                "num_padding": num_written_padding(part, padding, taken["num_tokens"]),
                **part.packed.packing_counts,
            }
        if "offsets" in layout.keeps:
            num_empty = taken["num_empty_documents"] if layout.leaves_out_empty else 0
            counts["num_documents"] = taken["num_documents"] - num_empty
        if part.has_loss_mask and "loss_mask" in layout.keeps:
            counts["num_loss_tokens"] = taken["num_loss_tokens"]
        if part.has_loss_mask and layout.is_packed:
            counts["num_unsupervised_sequences"] = taken["num_unsupervised_sequences"]
        once = counts["num_tokens"] - counts.get("num_repeated_tokens", 0)
        dropped = counts["num_dropped_tokens"]
        if once + dropped != part.num_tokens or dropped < 0:
            raise CorruptOutputError(
                where=f"export {config.name}: {part.name}",
                expected=f"{part.num_tokens:,} tokens, as in the split",
                found=f"{once:,} written and {dropped:,} dropped",
                remedy="run `tokflow verify` on the dataset, and delete what is damaged",
            )
        found |= {f"{part.name}.{name}": num for name, num in counts.items()}
    return found


def index_of(part: Part, layout: Layout) -> Iterator[pa.Table]:
    """Yield the index of a part in the order of the files' tokens, with the columns that are kept
    of each document."""
    is_packed, eos_first = layout.is_packed, layout.eos_first
    tables = part.packed.index() if is_packed else part.stream_index(eos_first=eos_first)
    return KeptOfDocuments(part.splits).added(tables)
