"""The outputs that a stored one was made from, opened without the dataset's config, and the texts
of an export's tokens in them, found by the rows of its index."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import MissingOutputError
from tokflow.exports import Export, Part
from tokflow.exports.part import make_parts
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.mixture import MIXED_SPLIT
from tokflow.pipeline.stages import STAGES
from tokflow.raw import group_key
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import FileSequences
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import mixture_of
from tokflow.split.shuffle import ExportOrder, order_of
from tokflow.split.spans import SPANS_NAME, PartSpans, Split
from tokflow.split.stage import SPLIT
from tokflow.stage import RAW, Stage, stage_of
from tokflow.store.integrity import check_files
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import made_in
from tokflow.store.tables import to_numpy
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import DOCUMENTS_NAME
from tokflow.tokens.stage import TOKENS
from tokflow.tokens.token_source import TokenSource


def dataset_folder_of(output: StoredOutput) -> Path:
    """Return `<store>/<dataset>`, if an output is where it was made; else a folder above it."""
    parents = output.folder.parents
    return parents[min(len(_place_of(output).parts), len(parents)) - 1]


def is_misplaced(output: StoredOutput) -> bool:
    """Return whether an output lies in a store, and not where a run looks for it."""
    dataset = dataset_folder_of(output)
    return (dataset / TOKENIZER.path).is_dir() and output.folder != dataset / _place_of(output)


def _place_of(output: StoredOutput) -> Path:
    """Return where an output must lie below its dataset's folder."""
    manifest, name = output.manifest, output.manifest.fingerprint[:16]
    if manifest.stage == EXPORT.name:
        return Path(EXPORT.path, output.folder.parent.name, name)
    return Path(manifest.stage, manifest.partition or "", name)


class Ancestry:
    """Stored outputs opened with what they were made from; each manifest is read once.

    Of a store at a URL the manifests come that are asked for, not all that it has.

    Its methods raise MissingOutputError where the store does not have an output any more, as where
    only an export was copied elsewhere; CorruptOutputError and ForeignOutputError where its
    manifest cannot be read.
    """

    def __init__(self, stages: tuple[Stage, ...] = STAGES) -> None:
        """`stages`: those that the outputs may be of, parents first."""
        self.stages = stages
        self._read: dict[Path, StoredOutput] = {}
        self._tokenizers: dict[tuple[Path, str], Tokenizer | None] = {}
        """By the folder of a dataset and the fingerprint."""

    def add(self, output: StoredOutput) -> None:
        """Take the manifest of an output as it was read before."""
        self._read[output.folder] = output

    def parents(
        self, output: StoredOutput, raw_files: Iterable[str] | None = None
    ) -> list[StoredOutput]:
        """Return the split, sequences or token shards that an output is made from: of an export,
        one of each raw file, or of `raw_files` alone."""
        manifest, parents, store = output.manifest, output.manifest.parents, output.store
        dataset_folder, key = dataset_folder_of(output), str(manifest.partition)
        if mixture_of(manifest.config) is not None:  # a split, made from one of a source
            source, key = source_and_key(key)
            dataset_folder = dataset_folder.parent / source
        # By the name of each parent in the manifest: its stage and partition.
        names = {of.name: (of.name, key) for of in self.stages if of.is_of_file}
        if manifest.stage == EXPORT.name:
            is_packed = Export(output).layout.is_packed
            is_of_files = order_of(manifest).documents is None
            stage = SEQUENCES.name if is_packed and is_of_files else SPLIT.name
            names = {key: (stage, key) for key in raw_files or sorted(parents)}
        wanted = {name: of for name, of in names.items() if name in parents}
        folders = {name: dataset_folder / stage / key for name, (stage, key) in wanted.items()}
        for stage in {stage for stage, _ in wanted.values()}:
            of_stage = [name for name in wanted if wanted[name][0] == stage]
            of_all = (folders[name] / parents[name][:16] for name in of_stage)
            store.look_for(of_all, below=dataset_folder / stage)
        return [
            self._output(store, folders[name], stage, parents[name])
            for name, (stage, _) in wanted.items()
        ]

    def _output(self, store: Store, place: Path, stage: str, fingerprint: str) -> StoredOutput:
        folder = place / fingerprint[:16]
        if folder not in self._read:
            self.add(store.find(folder, stage, fingerprint))
        return self._read[folder]

    def ancestors(self, output: StoredOutput) -> list[StoredOutput]:
        """Return the outputs that one is compared with: its parents and what these were made from,
        down to the token shards."""
        parents = self.parents(output)
        return [*parents, *(found for parent in parents for found in self.ancestors(parent))]

    def tokenizer(self, output: StoredOutput) -> Tokenizer | None:
        """Return the tokenizer that made the tokens of an output; None where the store does not
        have it, and of a raw file."""
        manifest = output.manifest
        if manifest.stage == RAW:
            return None
        if manifest.stage == TOKENIZER.name:
            return tokenizer_of(output)
        if manifest.stage == EXPORT.name:
            fingerprint = manifest.details["tokenizer_fingerprint"]
        else:
            fingerprint = self.shard(output).manifest.parents[TOKENIZER.name]
        found = (self._tokenizer_in(output.store, of, fingerprint) for of in self._datasets(output))
        return next(filter(None, found), None)

    def _datasets(self, output: StoredOutput) -> list[Path]:
        """Return the folders of the dataset of an output and, of a mixture, of its sources."""
        folder, manifest = dataset_folder_of(output), output.manifest
        names = list(manifest.details.get("mixture", ()))
        if manifest.partition is not None and manifest.stage != TOKENS.name:
            names.append(self.shard(output).manifest.dataset)
        return [folder, *(folder.parent / name for name in names)]

    def _tokenizer_in(
        self, store: Store, dataset_folder: Path, fingerprint: str
    ) -> Tokenizer | None:
        """Return the tokenizer of a dataset that has a fingerprint; of a store at a URL the files
        of no other come."""
        key = dataset_folder, fingerprint
        if key not in self._tokenizers:
            store.refresh(folder := dataset_folder / TOKENIZER.path)
            made = (
                tokenizer_of(found)
                for found in made_in(store, folder)
                if found.manifest.details["tokenizer_fingerprint"] == fingerprint
            )
            self._tokenizers[key] = next(made, None)
        return self._tokenizers[key]

    def open(self, output: StoredOutput) -> Any:
        """Return an output as its stage opens it, over what it was made from."""
        step = stage_of(self.stages, output.manifest)
        if mixture_of(output.manifest.config) is not None:
            step = MIXED_SPLIT
        return step.open(output, _Inputs(self, output)) if step else output

    def shard(self, output: StoredOutput) -> TokenShard:
        """Return the token shard that an output of one raw file is, or is made from."""
        is_shard = output.manifest.stage == TOKENS.name
        return self.open(output) if is_shard else self.shard(self.parents(output)[0])

    def split(self, output: StoredOutput) -> Split:
        """Return the split that an output of one raw file is, or is made from."""
        is_split = output.manifest.stage == SPLIT.name
        return self.open(output) if is_split else self.split(self.parents(output)[0])

    def selections(self, output: StoredOutput) -> list[Any]:
        """Return the selections of documents that an output was made with."""
        return _Inputs(self, output).selections()

    def split_of(self, export: StoredOutput, raw_file: str) -> Split:
        """Return the split that one raw file is in, among those that an export is made from."""
        for partition in _partitions_with(export, raw_file):
            split = self.split(self.parents(export, [partition])[0])
            if raw_file in split.shard.origins.raw_files:
                return split
        raise MissingOutputError(
            where=export.folder,
            expected=f"a partition that holds {raw_file}, which its index names",
            found="none",
            remedy="run `tokflow verify` on the store",
        )

    def sequences(self, output: StoredOutput) -> FileSequences:
        """Return the sequences that an output is."""
        return cast(FileSequences, self.open(output))

    def parts(self, output: StoredOutput) -> list[Part]:
        """Return what an export is made from, in the order of its parts; of the split or the
        sequences of one raw file, what an export of that file alone is made from."""
        manifest = output.manifest
        is_export, is_packed = manifest.stage == EXPORT.name, manifest.stage == SEQUENCES.name
        if is_export:
            made_from, details = self.parents(output), manifest.details
            packing = manifest.config.get("packing", {})
        else:
            made_from, details = [output], self.shard(output).manifest.details
            packing = manifest.config if is_packed else {}
        return make_parts(
            manifest.details["parts"],
            details,
            [self.open(each) for each in made_from],
            PackingConfig(**packing),
            order=order_of(manifest) if is_export else ExportOrder(),
            is_packed="packing" in manifest.config or is_packed,
        )


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a stored output was made from, as `Stage.open` asks for it."""

    ancestry: Ancestry
    output: StoredOutput
    trust_remote_code: bool = False

    def opened(self, stage: str) -> Any:
        """Return the parent of a stage, opened."""
        parents = self.ancestry.parents(self.output)
        return self.ancestry.open(next(of for of in parents if of.manifest.stage == stage))

    def selections(self) -> list[Any]:
        """Return the parents that select documents, opened."""
        parents = self.ancestry.parents(self.output)
        steps = [(of, stage_of(self.ancestry.stages, of.manifest)) for of in parents]
        return [self.ancestry.open(of) for of, step in steps if step and step.gives == "selection"]


def _partitions_with(export: StoredOutput, raw_file: str) -> Iterator[str]:
    """Yield the partitions that may hold a raw file: the group, a run of sorted keys, with it, and
    its own; of a mixture those of its source."""
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
    """The tokens that it is some of."""
    token_start: int
    num_tokens: int
    """With the BOS and EOS that were put around it."""
    char_start: int
    """Code points of the document before it."""
    num_chars: int
    may_hold_special: bool
    """True if the text itself may hold EOS or BOS, as chats do."""
    may_have_added: tuple[bool, bool]
    """True if a BOS may have been put before it, and an EOS behind it."""
    record: int | None
    """The record that a transform made the document of."""
    shard: TokenShard
    """The token shard that its document is of."""
    raw_file: str
    row: int
    """Of its document in the raw file."""
    text_hash: bytes
    """Of its document."""
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


_SpansOfPart: TypeAlias = tuple[PartSpans, npt.NDArray[np.int64], dict[tuple[int, int], int]]


class Texts:
    """Finds the texts of one split; each of its tables is read once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._of_parts: dict[str, _SpansOfPart] = {}

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
        num_chars = self._documents["num_chars"][document].as_py()
        special = shard.manifest.config["special_tokens_in_text"]
        return TokenizedText(
            source=self._source,
            token_start=int(spans.token_start[at]),
            num_tokens=int(spans.num_tokens[at]),
            char_start=char_start,
            num_chars=cut_chars.get((document, char_start), num_chars),
            may_hold_special=shard.has_loss_mask or special == "control",
            may_have_added=(
                shard.manifest.config["bos"] == "first",
                shard.manifest.config["eos"] == "last",
            ),
            record=self._documents["record"][document].as_py() if self._has_records else None,
            shard=shard,
            raw_file=entry["raw_file"],
            row=entry["row"],
            text_hash=self._documents["text_hash"][document].as_py(),
            is_cut=(document, char_start) in cut_chars,
        )

    @property
    def _has_records(self) -> bool:
        return "num_records" in self.split.shard.manifest.counts

    @cached_property
    def _documents(self) -> pa.Table:
        columns = ["row", "num_chars", "text_hash", *(["record"] if self._has_records else [])]
        return self.split.shard.documents(columns)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        return to_numpy(self._documents["row"])

    @cached_property
    def _source(self) -> TokenSource:
        return self.split.token_source(is_lazy=True)

    def _of_part(self, part: str) -> "_SpansOfPart":
        """Return the spans of a part, which may be shuffled, their order by document and place in
        it, and the characters of those of cut documents."""
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
        """`max_splits`: those that are opened; the others are taken as not there."""
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
