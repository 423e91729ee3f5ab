"""The stage that writes exports: each of all partitions, in somebody's format; whole, or segment by
segment.

    exports/<name>/.<fingerprint[:16]>.segments/00003/   one segment: files of one part, or its
                                                         index, made alone, until all are there
    exports/<name>/<fingerprint[:16]>/                   the export, with the files of all segments

By segments only where the files of a format do not depend on each other: `Format.sizes`.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Any

from tokflow.errors import CorruptOutputError, TokflowError
from tokflow.exports.columns import LABELS_VERSION, num_written_padding
from tokflow.exports.config import DeclaredExports, ExportConfig, export_named
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_NAME, INDEX_VERSION, KeptOfDocuments, write_index
from tokflow.exports.options import Padding
from tokflow.exports.part import Part, make_parts
from tokflow.exports.reading import Export
from tokflow.exports.shards import LastExport, WrittenShard, facts_of, shards_of, write_files
from tokflow.exports.shuffled_documents import GROUP_TOKENS
from tokflow.exports.token_files import take_hashed
from tokflow.pools.pool import Advance
from tokflow.sequences import Packings, Side, one_or_each
from tokflow.split.permutation import ShuffleConfig, shuffle_fields
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, Writer
from tokflow.store.listed_files import LATEST
from tokflow.store.manifest import FileEntry, Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.stored_outputs import output_at
from tokflow.store.versions import known_changes

ABOUT = "{}. It is made from all raw files; `latest` in its folder leads to the newest."


class ExportStage(Stage):
    """The exports of a dataset, each a variant: formats are a registry below it."""

    name = "export"
    folder = "exports"
    is_of_file = False
    has_latest = True
    cost = Cost(0.1, 1 / 100e6)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, ExportConfig]:
        """Return the configs of the exports by their names."""
        return {of.name: of for of in dataset.of(DeclaredExports).configs}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the sequences of its packing or, of a stream, the splits of all partitions."""
        for packing, exports in dataset.of(Packings).exports.items():
            if variant in exports:
                return [Input(stage="sequences", reach="all", variant=packing)]
        return [Input(stage="split", reach="all")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides an export: the outputs of all partitions, format and packing."""
        dataset, variant = making.graph.dataset, making.variant
        inputs = making.inputs(self.inputs(dataset, variant)[0].stage)
        parents = {key: of.fingerprint for key, of in inputs.items()}
        declared, bad = self.declared_recipe(dataset, variant), [*making.graph.bad_files]
        config = {**declared.config, **({"bad_files": bad} if bad else {})}
        return replace(declared, config=config, parents=parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        exports, order = dataset.of(DeclaredExports), dataset.of(ShuffleConfig).of_export
        config = exports.config(variant)
        fields: dict[str, Any] = {"format": config.format, "options": config.options.model_dump()}
        if config.layout.is_packed:
            fields["packing"] = exports.packing_of(config).fields_of_export()
            fields |= {} if order.documents is None else {"group_tokens": GROUP_TOKENS}
            fields |= shuffle_fields(order.sequences)
        fields |= order.document_fields()
        fields |= known_changes("export", config.format)
        version = FORMATS[config.format].version + INDEX_VERSION
        version += LABELS_VERSION if "labels" in config.layout.columns else 0
        return Recipe(stage="export", version=version, config=fields, parents={})

    def writer(self, making: Making) -> "ExportWriter":
        """Return what writes an export, its segments too.

        Raises: MissingOutputError where a partition is not built; ConfigError where no token of
        chats is supervised.
        """
        parts, config = parts_of(making), making.of(DeclaredExports).config(making.variant)
        last = None
        with suppress(TokflowError, OSError):  # there is none, or none that can be read
            store = parts[0].splits[0].store
            found = output_at(store, making.folder.parent / LATEST)
            if found and found.folder != making.folder and store.is_intact(found.folder):
                last = found
        return ExportWriter(
            parts=parts,
            config=config,
            last=last,
            dataset=making.graph.dataset.name,
            recipe=making.recipe,
            details=making.graph.export_details(),
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Export:
        """Return the export as it is read."""
        return Export(stored)

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the format as a tag."""
        return [dataset.of(DeclaredExports).config(variant).format]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        text = FORMATS[dataset.of(DeclaredExports).config(variant).format].description
        return ABOUT.format(text.replace("<", r"\<"))  # no tag of Markdown


EXPORT = ExportStage()


def parts_of(making: Making) -> Sequence[Part]:
    """Return what an export is made from; every partition must have been built.

    Raises: MissingOutputError that names the first partitions that have not.
    """
    dataset, exports = making.graph.dataset, making.of(DeclaredExports)
    config = exports.config(making.variant)
    [made_of] = EXPORT.inputs(dataset, making.variant)
    files = making.opened_all(made_of.stage)
    return make_parts(
        dataset.parts,
        making.graph.token_details(),
        files,
        exports.packing_of(config),
        order=dataset.of(ShuffleConfig).of_export,
        is_packed=config.layout.is_packed,
    )


SEGMENT_TOKENS = 2**25
"""Tokens of the sequences that one task writes, padding included, and at least one file: a second
of work of the fastest format, in proportion to the 10 ms of one output more."""

SEGMENT_VERSION = 2
"""Another one where segments are written another way, so that a run that was killed before goes on
with none of those."""

Written = dict[str, list[WrittenShard]]
"""The files of each part."""


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
        within = self.within.start, self.within.stop
        own = {"segment": [SEGMENT_VERSION, self.number, self.part, *within]}
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
        started, store = time.perf_counter(), self.parts[0].splits[0].store
        last = LastExport(self.last) if self.last else None
        written, linked, counts = Written(), dict[str, FileEntry](), dict[str, int]()
        layout = self.config.layout
        with export_named(self.config):
            parts, inputs = self._named_parts(), self.inputs()
            made, has_index = parts, share is None or share.part is None
            if share is not None:
                own = [of for of in parts if of.name == share.part]
                made = [replace(part, within=share.within) for part in own]
            if not has_index:  # what is made of tails comes when it is read
                [of_share] = made
                inputs = of_share.packed.inputs_within(of_share.within)
            with store.fetching(inputs, has_numbers=bool(made)):
                for part in made:
                    # A part without tokens, or sequences, has no file.
                    if part.num_sequences if layout.is_packed else part.num_tokens:
                        found = write_files(part, self.config, self.recipe, folder, last=last)
                        written[part.name] = found[0]
                        linked |= found[1]
                if share is None:
                    self._finish(parts, written, folder)
                if has_index:
                    kept = KeptOfDocuments(parts[0].splits).names
                    how = {"is_packed": layout.is_packed, "eos_first": layout.eos_first}
                    tables = (part.index(**how) for part in parts)
                    write_index(folder / INDEX_NAME, tables, kept)
                if share is None:
                    counts = _counts_of(parts, self.config)
        files = checksums(folder, known={**take_hashed(folder), **linked})
        recipe = self.recipe if share is None else share.recipe
        seconds = time.perf_counter() - started
        self._write_manifest(folder, recipe, counts, files, seconds, written)

    def inputs(self) -> Sequence[InStore]:
        """Return the outputs that the parts are read from."""
        return self.parts[0].packed.inputs_within()  # all parts are of the same files

    def shares(self) -> list[ExportSegment]:
        """Return the segments that the export is made of; none where it is made as a whole.

        There are none either where most files are links to those of the last export, which are on
        this disk, and few are written.

        Raises: as `integrity.Reading`, of the tables that tell how many sequences there are.
        """
        if sum(part.num_tokens for part in self.parts) <= SEGMENT_TOKENS:
            return []
        shares: list[tuple[str, range]] = []
        inputs, num_new = self.inputs(), 0
        last = LastExport(self.last) if self.last else None
        with export_named(self.config), inputs[0].store.fetching(inputs, has_numbers=False):
            for part in self._named_parts():  # fingerprints of shards have these names
                sizes = FORMATS[self.config.format].sizes(part.rows, self.config.options)
                if sizes is None:
                    return []
                shards = shards_of(part, self.config, self.recipe)
                is_new = [not (last and last.has(of, self.config)) for of in shards]
                new = [len(of.part.within or ()) for of in compress(shards, is_new)]
                num_new += (sum(new) if shards else part.num_sequences) * part.sequence_length
                largest = max(sizes, default=1) * part.sequence_length
                edges = [0, *accumulate(sizes)]
                edges = [*edges[: -1 : max(1, SEGMENT_TOKENS // largest)], edges[-1]]
                shares += [(part.name, range(*share)) for share in pairwise(edges)]
        if len(shares) < 2 or num_new <= SEGMENT_TOKENS:
            return []
        found = [ExportSegment(number, self.recipe, *of) for number, of in enumerate(shares)]
        return [*found, ExportSegment(len(found), self.recipe)]

    def join(self, shares: Sequence[StoredOutput], folder: Path) -> None:
        """Make the export of its segments in the empty `folder`, manifest last. No file is copied
        where the file system has hard links.

        Raises: CorruptOutputError where a file of them is damaged.
        """
        files, written = dict[str, FileEntry](), Written()
        taken = {part.name: Counter[str]() for part in self.parts}
        for segment in shares:
            for name, entry in segment.manifest.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                segment.link(name, folder / name)
                files[name] = entry
            for part_name, shards in segment.manifest.details.get("shards", {}).items():
                written.setdefault(part_name, []).extend(shards)
                for of in shards:
                    taken[part_name].update(of["taken"])
        with export_named(self.config):
            parts = [replace(part, taken=taken[part.name]) for part in self._named_parts()]
            self._finish(parts, written, folder)
            counts = _counts_of(parts, self.config)
        files |= checksums(folder, known=files)  # at a URL the server copies what is linked
        seconds = sum(segment.run().get("seconds", 0) for segment in shares)
        self._write_manifest(folder, self.recipe, counts, files, seconds, written)

    def _named_parts(self) -> list[Part]:
        """Return the parts, each with its name in the names of files, and counters."""
        names = [part.name for part in self.parts]
        names_in_files = FORMATS[self.config.format].file_names(self.config.options, names)
        return [
            replace(of, file_name=names_in_files[of.name], taken=Counter()) for of in self.parts
        ]

    def _finish(self, parts: Sequence[Part], written: Written, folder: Path) -> None:
        """Write the files that are about several."""
        facts = {
            name: [each for of in shards for each in facts_of(of)]
            for name, shards in written.items()
        }
        if made := [replace(of, files=facts[of.name]) for of in parts if of.name in facts]:
            FORMATS[self.config.format].finish(made, self.config.options, folder)

    def _write_manifest(
        self,
        folder: Path,
        recipe: Recipe,
        counts: Mapping[str, int],
        files: Mapping[str, FileEntry],
        seconds: float,
        written: Written,
    ) -> None:
        """Write the manifest, with what a reader must know of the files."""
        parts, layout = self.parts, self.config.layout
        details = {
            **self.details,
            "format": self.config.format,
            "parts": [part.name for part in parts],
            "keeps": list(layout.keeps),
        }
        is_share = recipe is not self.recipe
        if shards := {
            name: of
            for name, of in written.items()
            if is_share or any(each["fingerprint"] for each in of)
        }:
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
