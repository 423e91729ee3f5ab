"""Ancestors of a stored output, opened without the dataset's config."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.exports import Export, Part
from tokflow.exports.part import make_parts
from tokflow.exports.reading import is_export
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.stages import STAGES
from tokflow.raw import group_key
from tokflow.sequences import PackingConfig
from tokflow.sequences.segments import FileSequences
from tokflow.sequences.stage import SEQUENCES
from tokflow.split import Split
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import dataset_of
from tokflow.split.permutation import ExportOrder, order_of
from tokflow.split.stage import MIXED_SPLIT, SPLIT
from tokflow.stage import Stage, stage_of
from tokflow.store.integrity import check_files
from tokflow.store.listed_files import names_below
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import made_in
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard, is_shard


def place_of(output: StoredOutput) -> Path:
    """Return the path of an output below its dataset's folder, as a run has it."""
    manifest, name = output.manifest, output.manifest.recipe.fingerprint[:16]
    if is_export(manifest):
        return Path(EXPORT.path, output.folder.parent.name, name)
    return Path(manifest.recipe.stage, manifest.partition or "", name)


def dataset_folder_of(output: StoredOutput) -> Path:
    """Return `<store>/<dataset>`, if an output is where it was made; else a folder above it."""
    parents = output.folder.parents
    return parents[min(len(place_of(output).parts), len(parents)) - 1]


def with_links(output: StoredOutput, problem: TokflowError) -> TokflowError:
    """Return the error of a damaged file with the other outputs that it is in."""
    names = names_below(Path(problem.where), dataset_folder_of(output))
    others = [str(of) for of in names if of != Path(problem.where)]
    if not others:
        return problem
    found = f"{problem.found}; it is one file with {', '.join(others)}"
    remedy = "remove the folders of all these outputs and run `tokflow run` again"
    return CorruptOutputError(**{**problem.fields(), "found": found, "remedy": remedy})


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
        """Return the outputs that an output is made from, except the tokenizer, by their names in
        its manifest: stages or, of an export, raw files, all or only `raw_files`."""
        manifest, parents, store = output.manifest, output.manifest.recipe.parents, output.store
        dataset_folder, key = dataset_folder_of(output), str(manifest.partition)
        if "mixture" in manifest.recipe.config:  # a split, made from one of a source
            source, key = source_and_key(key)
            dataset_folder = dataset_folder.parent / dataset_of(source)
        # Of each stage the names of parents, and their partitions.
        steps = [of for of in self.stages if not of.decides_all]
        wanted = {of.name: {of.name: key if of.is_of_file else ""} for of in steps}
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
            fingerprint = self.shard(output).manifest.recipe.parents[TOKENIZER.name]
        folder = dataset_folder_of(output)
        names = [*map(dataset_of, manifest.details.get("mixture", ()))]  # the sources of a mixture
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
        """Return an output as its stage opens it.

        Raises: CorruptOutputError where a file is missing or cut short.
        """
        output.store.check(output)
        step = stage_of(self.stages, output.manifest)
        if "mixture" in output.manifest.recipe.config:
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

    def given(self, output: StoredOutput, kind: str) -> list[Any]:
        """Return what of this kind, as selections of documents, an output was made with."""
        return _Inputs(self, output).given(kind)

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
            packing = manifest.recipe.config.get("packing")
        else:
            files = [self.open(output)]
            details, order = self.shard(output).manifest.details, ExportOrder()
            packing = manifest.recipe.config if isinstance(files[0], FileSequences) else None
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

    def opened(self, stage: str) -> Any:
        """Return the ancestor that a stage made, opened."""
        if stage == TOKENIZER.name:
            return self.ancestry.tokenizer(self.output)
        parents = self.ancestry.parents(self.output)
        if (found := parents.get(stage)) is not None:
            return self.ancestry.open(found)
        return _Inputs(self.ancestry, next(iter(parents.values()))).opened(stage)

    def given(self, kind: str) -> list[Any]:
        """Return the parents that give something of this kind, opened."""
        parents = self.ancestry.parents(self.output)
        giving = [of.name for of in self.ancestry.stages if of.gives == kind]
        return [self.ancestry.open(parents[name]) for name in giving if name in parents]


def _partitions_with(export: StoredOutput, raw_file: str) -> Iterator[str]:
    """Yield the partitions that can hold a raw file: its group of sorted keys, and its own."""
    partitions, prefix = sorted(export.manifest.recipe.parents), ""
    if "mixture" in export.manifest.details:
        name, raw_file = source_and_key(raw_file)
        prefix = f"{name}/"
        partitions = [of.removeprefix(prefix) for of in partitions if of.startswith(prefix)]
    are_groups = all(key.startswith(group_key("")) for key in partitions)
    if are_groups and (number := bisect_right(partitions, group_key(raw_file))):
        yield prefix + partitions[number - 1]
    if raw_file in partitions:
        yield prefix + raw_file


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


def lineage(export: StoredOutput, ancestry: Ancestry) -> list[StoredOutput]:
    """Return an export and every output that it was made from, each once, the last stages first and
    those of a mixture's sources after its own.

    The keys of near-duplicates are not among them: the pairs name all of them by one digest.
    Raises: as `Ancestry`, where one is missing or damaged.
    """
    found = {export.folder: export}
    waiting = [export]
    while waiting:
        parents = ancestry.parents(waiting.pop()).values()
        new = {of.folder: of for of in parents if of.folder not in found}
        found |= new
        waiting += new.values()
    if (tokenizer := ancestry.tokenizer(export)) is None:
        raise MissingOutputError(
            where=export.shown,
            expected="the tokenizer that made its tokens, in the same store",
            found="none",
            remedy="name the export in the store where it was made, or run `tokflow run` there",
        )
    own, ranks = export.manifest.dataset, [of.name for of in reversed(ancestry.stages)]

    def order(of: StoredOutput) -> tuple[bool, str, int]:
        dataset = of.manifest.dataset
        return dataset != own, dataset, ranks.index(of.manifest.recipe.stage)

    return [*sorted(found.values(), key=order), tokenizer.stored]
