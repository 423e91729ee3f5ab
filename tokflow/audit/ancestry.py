"""Ancestors of a stored output, opened without the dataset's config, and the texts that the index
of an export leads to in them."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import MissingOutputError
from tokflow.exports import Export, Part
from tokflow.exports.part import make_parts
from tokflow.exports.reading import is_export
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.stages import STAGES
from tokflow.raw import group_key
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import FileSequences
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import mixture_of
from tokflow.split.shuffle import ExportOrder, order_of
from tokflow.split.spans import SPANS_NAME, PartSpans, Split
from tokflow.split.stage import MIXED_SPLIT, SPLIT
from tokflow.stage import Stage, stage_of
from tokflow.store.integrity import check_files
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import made_in
from tokflow.store.tables import to_numpy
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard, is_shard
from tokflow.tokens.shard_files import DOCUMENTS_NAME
from tokflow.tokens.token_source import TokenSource


def place_of(output: StoredOutput) -> Path:
    """Return the path of an output below its dataset's folder, as a run has it."""
    manifest, name = output.manifest, output.manifest.fingerprint[:16]
    if is_export(manifest):
        return Path(EXPORT.path, output.folder.parent.name, name)
    return Path(manifest.stage, manifest.partition or "", name)


def dataset_folder_of(output: StoredOutput) -> Path:
    """Return `<store>/<dataset>`, if an output is where it was made; else a folder above it."""
    parents = output.folder.parents
    return parents[min(len(place_of(output).parts), len(parents)) - 1]


CutChars: TypeAlias = dict[tuple[int, int], int]
"""Characters of each span of cut documents, by document and first character."""


class Ancestry:
    """Stored outputs with their parents; each manifest is read, or fetched, once.

    Methods raise MissingOutputError for an output that the store has no more, as where only an
    export was copied; CorruptOutputError, ForeignOutputError for a manifest that cannot be read.
    """

    def __init__(self, stages: tuple[Stage, ...] = STAGES) -> None:
        """`stages`: stages that can have made the outputs, parents first."""
        self.stages = stages
        self._read: dict[Path, StoredOutput] = {}
        self._tokenizers: dict[tuple[Path, str], Tokenizer | None] = {}
        """Keys: the folder of a dataset, and the fingerprint."""

    def add(self, output: StoredOutput) -> None:
        """Add an output whose manifest was read before."""
        self._read[output.folder] = output

    def parents(
        self, output: StoredOutput, raw_files: Iterable[str] | None = None
    ) -> dict[str, StoredOutput]:
        """Return the split, sequences or token shards that an output is made from, by their names
        in its manifest: stages or, of an export, raw files, all or only `raw_files`."""
        manifest, parents, store = output.manifest, output.manifest.parents, output.store
        dataset_folder, key = dataset_folder_of(output), str(manifest.partition)
        if mixture_of(manifest.config) is not None:  # a split, made from one of a source
            source, key = source_and_key(key)
            dataset_folder = dataset_folder.parent / source
        # Of each stage the names of parents, and their partitions.
        wanted = {of.name: {of.name: key} for of in self.stages if of.is_of_file}
        if is_export(manifest):
            is_packed = Export(output).layout.is_packed
            is_of_files = order_of(manifest).documents is None
            names = {of: of for of in raw_files or sorted(parents)}
            wanted = {SEQUENCES.name if is_packed and is_of_files else SPLIT.name: names}
        found: dict[str, StoredOutput] = {}
        for stage, of_stage in wanted.items():
            below = dataset_folder / stage
            folders = {
                name: below / partition / parents[name][:16]
                for name, partition in of_stage.items()
                if name in parents
            }
            store.look_for(folders.values(), below=below)
            for name, folder in folders.items():
                if folder not in self._read:
                    self.add(store.find(folder, stage, parents[name]))
                found[name] = self._read[folder]
        return found

    def tokenizer(self, output: StoredOutput) -> Tokenizer | None:
        """Return the tokenizer that made the tokens of an output; None where the store does not
        have it, and of a raw file."""
        manifest, step = output.manifest, stage_of(self.stages, output.manifest)
        if step is None:
            return None
        if step.decides_all:
            return tokenizer_of(output)
        fingerprint = manifest.details.get("tokenizer_fingerprint")
        if fingerprint is None:
            fingerprint = self.shard(output).manifest.parents[TOKENIZER.name]
        folder = dataset_folder_of(output)
        names = list(manifest.details.get("mixture", ()))  # of the sources of a mixture
        if manifest.partition is not None and not is_shard(manifest):
            names.append(self.shard(output).manifest.dataset)
        datasets = [folder, *(folder.parent / name for name in names)]
        found = (self._tokenizer_in(output.store, of, fingerprint) for of in datasets)
        return next(filter(None, found), None)

    def _tokenizer_in(self, store: Store, dataset: Path, fingerprint: str) -> Tokenizer | None:
        """Return the tokenizer of a dataset with a fingerprint; only its files are fetched."""
        key = dataset, fingerprint
        if key not in self._tokenizers:
            store.refresh(folder := dataset / TOKENIZER.path)
            made = (
                tokenizer_of(found)
                for found in made_in(store, folder)
                if found.manifest.details["tokenizer_fingerprint"] == fingerprint
            )
            self._tokenizers[key] = next(made, None)
        return self._tokenizers[key]

    def open(self, output: StoredOutput) -> Any:
        """Return an output as its stage opens it."""
        step = stage_of(self.stages, output.manifest)
        if mixture_of(output.manifest.config) is not None:
            step = MIXED_SPLIT
        return step.open(output, _Inputs(self, output)) if step else output

    def shard(self, output: StoredOutput) -> TokenShard:
        """Return the token shard that an output of one raw file is, or is made from."""
        if is_shard(output.manifest):
            shard: TokenShard = self.open(output)
            return shard
        return self.shard(next(iter(self.parents(output).values())))

    def split(self, output: StoredOutput) -> Split:
        """Return the split that an output is, or that sequences are made from."""
        split: Split | FileSequences = self.open(output)
        return split.split if isinstance(split, FileSequences) else split

    def selections(self, output: StoredOutput) -> list[Any]:
        """Return the selections of documents that an output was made with."""
        return _Inputs(self, output).selections()

    def split_of(self, export: StoredOutput, raw_file: str) -> Split:
        """Return the split that one raw file is in, among those that an export is made from."""
        for partition in _partitions_with(export, raw_file):
            split = self.split(self.parents(export, [partition])[partition])
            if raw_file in split.shard.origins.raw_files:
                return split
        raise MissingOutputError(
            where=export.folder,
            expected=f"a partition that holds {raw_file}, which its index names",
            found="none",
            remedy="run `tokflow verify` on the store",
        )

    def parts(self, output: StoredOutput) -> list[Part]:
        """Return what an export is made from, in the order of its parts; of the split or the
        sequences of one raw file, what an export of that file alone is made from."""
        manifest = output.manifest
        if is_export(manifest):
            files = [self.open(of) for of in self.parents(output).values()]
            details, order = manifest.details, order_of(manifest)
            packing = manifest.config.get("packing")
        else:
            files = [self.open(output)]
            details, order = self.shard(output).manifest.details, ExportOrder()
            packing = manifest.config if isinstance(files[0], FileSequences) else None
        return make_parts(
            manifest.details["parts"],
            details,
            files,
            PackingConfig(**(packing or {})),
            order=order,
            is_packed=packing is not None,
        )


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The parents of a stored output, as `Stage.open` asks for them."""

    ancestry: Ancestry
    output: StoredOutput
    trust_remote_code: bool = False

    def opened(self, stage: str) -> Any:
        """Return the ancestor that a stage made, opened."""
        if stage == TOKENIZER.name:
            return self.ancestry.tokenizer(self.output)
        parents = self.ancestry.parents(self.output)
        if (found := parents.get(stage)) is not None:
            return self.ancestry.open(found)
        return _Inputs(self.ancestry, next(iter(parents.values()))).opened(stage)

    def selections(self) -> list[Any]:
        """Return the parents that select documents, opened."""
        parents = self.ancestry.parents(self.output)
        selecting = [of.name for of in self.ancestry.stages if of.gives == "selection"]
        return [self.ancestry.open(parents[name]) for name in selecting if name in parents]


def _partitions_with(export: StoredOutput, raw_file: str) -> Iterator[str]:
    """Yield the partitions that can hold a raw file: its group of sorted keys, and its own."""
    partitions, prefix = sorted(export.manifest.parents), ""
    if "mixture" in export.manifest.details:
        name, raw_file = source_and_key(raw_file)
        prefix = f"{name}/"
        partitions = [of.removeprefix(prefix) for of in partitions if of.startswith(prefix)]
    are_groups = all(key.startswith(group_key("")) for key in partitions)
    if are_groups and (number := bisect_right(partitions, group_key(raw_file))):
        yield prefix + partitions[number - 1]
    if raw_file in partitions:
        yield prefix + raw_file


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedText:
    """A text that was tokenized: a document, or a span of one that was cut."""

    source: TokenSource
    """All tokens of its split, its own among them."""
    token_start: int
    num_tokens: int
    """Tokens with the BOS and EOS that were put around it."""
    char_start: int
    """Code points of the document before it."""
    num_chars: int
    may_hold_special: bool
    """True if the text itself can hold EOS or BOS, as chats do."""
    may_have_added: tuple[bool, bool]
    """True if a BOS can have been put before it, and an EOS behind it."""
    record: int | None
    """The record that a transform made the document of."""
    shard: TokenShard
    """The token shard of its document."""
    raw_file: str
    row: int
    """Row of its document in the raw file."""
    text_hash: bytes
    """Hash of the whole document."""
    is_cut: bool
    """True if it is a span of its document, or a budget of tokens ended it early."""

    @property
    def token_ids(self) -> npt.NDArray[np.unsignedinteger]:
        """All its tokens, (num_tokens,)."""
        return self.between(0, self.num_tokens)

    def between(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return some of its tokens, counted from its first."""
        stop = min(stop, self.num_tokens)
        return self.source.read(self.token_start + start, self.token_start + stop)


class Texts:
    """Finds the texts of one split; each of its tables is read once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._of_parts: dict[str, tuple[PartSpans, npt.NDArray[np.int64], CutChars]] = {}

    def text_of(self, entry: Mapping[str, Any]) -> TokenizedText:
        """Return the text that a row of the index is of."""
        shard = self.split.shard
        row = shard.origins.row_of(entry["raw_file"], entry["row"])
        document = int(np.searchsorted(self._rows, row))
        spans, order, cut_chars = self._of_part(entry["part"])
        char_start = entry["char_start"]
        edges = np.searchsorted(spans.document, (document, document + 1), sorter=order)
        of_document = order[slice(*edges)]
        at = of_document[np.searchsorted(spans.char_start[of_document], char_start)]
        facts, config = self._documents.slice(document, 1).to_pylist()[0], shard.manifest.config
        num_chars = cut_chars.get((document, char_start), facts["num_chars"])
        is_chat_or_control = config["special_tokens_in_text"] == "control" or shard.has_loss_mask
        return TokenizedText(
            source=self._source,
            token_start=int(spans.token_start[at]),
            num_tokens=int(spans.num_tokens[at]),
            char_start=char_start,
            num_chars=num_chars,
            may_hold_special=is_chat_or_control,
            may_have_added=(config["bos"] == "first", config["eos"] == "last"),
            record=facts.get("record"),
            shard=shard,
            raw_file=entry["raw_file"],
            row=entry["row"],
            text_hash=facts["text_hash"],
            is_cut=(document, char_start) in cut_chars,
        )

    @cached_property
    def _documents(self) -> pa.Table:
        has_records = "num_records" in self.split.shard.manifest.counts
        columns = ["row", "num_chars", "text_hash", *(["record"] if has_records else [])]
        return self.split.shard.documents(columns)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        return to_numpy(self._documents["row"])

    @cached_property
    def _source(self) -> TokenSource:
        return self.split.token_source(is_lazy=True)

    def _of_part(self, part: str) -> tuple[PartSpans, npt.NDArray[np.int64], CutChars]:
        """Return the spans of a part, which can be shuffled, their order by document and place in
        it, and the characters of spans of cut documents."""
        if part not in self._of_parts:
            rows = self.split.span_table(part)
            rows = rows.filter(rows["is_cut"])
            names = ("document", "char_start", "num_chars")
            document, char_start, num_chars = (rows[name].to_pylist() for name in names)
            keys = zip(document, char_start, strict=True)
            cut_chars = dict(zip(keys, num_chars, strict=True))
            spans = self.split.spans(part)
            order = np.lexsort((spans.char_start, spans.document))
            self._of_parts[part] = spans, order, cut_chars
        return self._of_parts[part]


class ExportTexts:
    """Finds the texts of an export, in the splits of its raw files; each is opened once."""

    def __init__(
        self, export: StoredOutput, ancestry: Ancestry, *, max_splits: int | None = None
    ) -> None:
        """`max_splits`: how many are opened; any more count as not there."""
        self._export, self._ancestry, self._max_splits = export, ancestry, max_splits
        self._of_files: dict[str, Texts] = {}
        self._of_splits: dict[Path, Texts] = {}
        self.has_left_out = False
        """True once a split was not opened because of `max_splits`."""

    def outputs_of(self, entry: Mapping[str, Any]) -> tuple[Split, TokenShard]:
        """Return the outputs that the text of a row of the index is read from. Raises: as
        `text_of`."""
        split = self._open(entry).split
        return split, split.shard

    def text_of(self, entry: Mapping[str, Any]) -> TokenizedText:
        """Return the text that a row of the index is of.

        Raises: MissingOutputError where the store does not have the split of its raw file;
        CorruptOutputError where a table is damaged.
        """
        return self._open(entry).text_of(entry)

    def _open(self, entry: Mapping[str, Any]) -> Texts:
        name = entry["raw_file"]
        if name not in self._of_files:
            if len(self._of_splits) == self._max_splits:
                self.has_left_out = True
                raise MissingOutputError(
                    where=self._export.folder,
                    expected=f"raw files of {self._max_splits:,} splits",
                    found=name,
                    remedy="trace its tokens alone",
                )
            split = self._ancestry.split_of(self._export, name)
            if split.folder not in self._of_splits:
                tables = {SPANS_NAME, *split.shard.names(DOCUMENTS_NAME)}
                check_files(split, split.shard, only=tables)
                self._of_splits[split.folder] = Texts(split)
            self._of_files[name] = self._of_splits[split.folder]
        return self._of_files[name]


def open_tokenizer(export: StoredOutput, ancestry: Ancestry) -> Tokenizer | None:
    """Return the tokenizer of an export, its files compared with their checksums; None where the
    store does not have it. Raises: CorruptOutputError."""
    try:
        tokenizer = ancestry.tokenizer(export)
    except MissingOutputError:
        return None
    if tokenizer is not None:
        check_files(tokenizer)
    return tokenizer
