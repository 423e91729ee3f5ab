"""One output that a dataset must have: its recipe, its folder, and whether it is there."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from tokflow.documents import DocumentsConfig
from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError, first_five
from tokflow.pipeline.raw_files import LimitedFiles
from tokflow.raw import RawSource
from tokflow.stage import Graph, Input, Stage, stages_giving
from tokflow.store.manifest import Manifest, Recipe, damaged, holds_output
from tokflow.store.remembered import ManifestIndex, stamp_of_manifest
from tokflow.store.store import Store, StoredOutput
from tokflow.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


class Home(Graph, Protocol):
    """A dataset as it is now, as its outputs know it."""

    store: Store
    folder: Path
    """The folder of its outputs, which has its name."""
    steps: Mapping[str, Stage]
    sections: dict[type, Any]
    """Sections of the YAML that were asked for."""

    @property
    def listed(self) -> Mapping[str, tuple[RawSource, ...]]:
        """The raw files of each partition that there may be."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which must have been made."""

    def at(self, key: str) -> "tuple[Home, str]":
        """Return the graph that has a partition, and its key there."""

    def documents(self, key: str) -> DocumentsConfig:
        """Return how the documents of a partition are read."""

    def output(self, stage: str, key: str = "", variant: str = "") -> "Output":
        """Return one output."""

    @property
    def of_sources(self) -> "Mapping[str, Home]":
        """The graphs of the datasets of a mixture, by their names."""

    @property
    def limited(self) -> LimitedFiles | None:
        """The files that a limit of the whole dataset takes; None without one."""

    def outputs(self, *, until: str | None = None) -> "Iterator[Output]":
        """Yield every output, up to a stage."""

    def check_made(self, stage: str, outputs: "Iterable[Output]") -> None:
        """Raise the error of the first output of a stage that is not there."""

    def open(self, output: "Output") -> Any:
        """Return an output as its stage opens it."""

    def index(self, step: Stage) -> ManifestIndex | None:
        """Return the index of the manifests of a stage; None where it has none."""


@dataclass(frozen=True, eq=False)  # without slots, since it keeps its recipe
class Output:
    """One output as it must be; whether it has been made is another question.

    Its recipe is worked out when it is first asked for: what it needs may have to be made before.
    The manifest is read once and, when it was believed, not again. It is the `Making` that its
    stage is given.
    """

    graph: Home
    step: Stage
    """The stage that makes it."""
    key: str = ""
    """The partition key; empty for an output of the whole dataset."""
    variant: str = ""
    """The name of an export; of sequences with another packing than the dataset's, that of the
    packing."""

    @cached_property
    def recipe(self) -> Recipe:
        """Version, config and parents that decide the output.

        Raises: TokflowError, OSError where that cannot be known, such as a raw file that cannot
        be read or a tokenizer that has not been made.
        """
        return self.step.recipe(self)

    @property
    def stage(self) -> str:
        """The name of its stage."""
        return self.step.name

    @property
    def name(self) -> str:
        """The partition key; of an export, its name; of the tokenizer, `tokenizer`."""
        return self.key or self.variant or self.stage

    @property
    def is_of_all_files(self) -> bool:
        """True if it is made from the outputs of all partitions, as exports are."""
        return not self.step.is_of_file and any(of.is_of_all for of in self.direct_inputs())

    @property
    def packing(self) -> str:
        """Name of the packing of sequences, where it is not the dataset's; else empty."""
        return self.variant if self.step.is_of_file else ""

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of its recipe."""
        return self.recipe.fingerprint

    @property
    def place(self) -> Path:
        """Folder of the output in all its versions: `<store>/<dataset>/<stage>/<name>`."""
        return self.graph.folder / self.step.place(self.key, self.variant)

    @property
    def is_first_of_kind(self) -> bool:
        """True if no version of it was ever made, as for a new raw file."""
        path = f"{self.graph.folder}/{self.step.place(self.key, self.variant)}"
        return not os.path.isdir(path)  # noqa: PTH112 (of many: a Path costs as much again)

    @cached_property
    def folder(self) -> Path:
        """The folder of its files, `<place>/<fingerprint[:16]>`."""
        place = self.step.place(self.key, self.variant)
        return self.graph.folder / f"{place}/{self.fingerprint[:16]}"

    @property
    def title(self) -> str:
        """`tokens of a.jsonl`, `export bin` or `tokenizer`: how messages call it."""
        return (
            f"{self.stage} of {self.label}"
            if self.step.is_of_file
            else f"{self.stage} {self.variant}".strip()
        )

    @property
    def label(self) -> str:
        """Its name and, in brackets, that of the export whose packing it has."""
        return f"{self.name} ({self.packing})" if self.packing else self.name

    @property
    def asset(self) -> str:
        """The Dagster asset that makes it, with the partition it is of."""
        path = [self.graph.dataset.name, self.step.path, self.variant]
        return "/".join(filter(None, path)) + (f" (partition {self.key})" if self.key else "")

    @property
    def is_made(self) -> bool:
        """True if the output is there; False, too, if its recipe cannot be known yet."""
        try:
            return self.find() is not None
        except (TokflowError, OSError):
            return False

    def find(self) -> Manifest | None:
        """Return its manifest; None where it must be made: absent, damaged or not allowed now.

        Raises: ForeignOutputError where a newer tokflow made it: it is left as it is.
        """
        if self.is_first_of_kind or (self.known is None and not holds_output(self.folder)):
            return None
        try:
            return self.manifest()
        except (MissingOutputError, CorruptOutputError):
            return None

    def manifest(self) -> Manifest:
        """Return its manifest, of which no file is missing or cut short.

        Raises: MissingOutputError that says which asset to materialize; CorruptOutputError where
        it is damaged; ForeignOutputError where a newer tokflow made it.
        """
        reason = None
        with suppress(MissingOutputError):
            manifest = self.known or self.stored.manifest
            if (reason := self.step.refused(manifest.counts, self.graph.dataset)) is None:
                return manifest
        found = "none in the store for this file and this config"
        remedy = f"materialize {self.asset}, or run `tokflow run`"
        if reason is not None:
            found = f"one with {reason}"
            remedy = "correct the raw file, or the config; `tokflow run` names the first"
        expected = f"an output with fingerprint {self.fingerprint[:7]}"
        raise MissingOutputError(where=self.asset, expected=expected, found=found, remedy=remedy)

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of its manifest, which is read. Raises: as `manifest`."""
        return self.open().manifest.counts

    @cached_property
    def known(self) -> Manifest | None:
        """Its manifest by the index of its stage, without a look into any file: enough to know that
        it is there, and nothing is made from it. None where the manifest has to be read."""
        index = self.graph.index(self.step)
        if index is None:
            return None
        place = self.step.place(self.key, self.variant)
        folder = f"{self.graph.folder}/{place}/{self.fingerprint[:16]}"
        return index.find(folder, self.key, self.variant, self.recipe)

    @cached_property
    def stored(self) -> StoredOutput:
        """The stored output, of which no file is missing or cut short.

        Raises: as `manifest`.
        """
        store, index = self.graph.store, self.graph.index(self.step)
        stamp = None if index is None else stamp_of_manifest(str(self.folder))
        stored = store.find(self.folder, self.stage, self.fingerprint, self.recipe)
        store.check(stored)
        if store.is_known_damaged(self.folder):
            raise damaged(self.folder, "files that are as its manifest says", "others")
        if index is not None:
            index.keep(self.key, self.variant, stored.manifest, stamp)
        return stored

    def forget(self) -> None:
        """Drop the cached recipe, manifest and path, which are made again when asked for: those of
        100,000 files take more memory than all else of a plan. The fingerprint stays."""
        for name in ("recipe", "known", "stored", "folder"):
            self.__dict__.pop(name, None)

    def open(self) -> StoredOutput:
        """Return it as it is in the store. Raises: as `manifest`."""
        self.manifest()
        return self.stored

    # Access to what it is made from, as `Making` describes it.

    def of(self, section: type[T]) -> T:
        """Return a section of the YAML as it holds for its partition."""
        if section is DocumentsConfig and self.key:
            return cast(T, self.graph.documents(self.key))
        sections = self.graph.sections
        if section not in sections:  # 0.25 ms where several exports decide
            sections[section] = self.graph.dataset.of(section)
        return cast(T, sections[section])

    def direct_inputs(self) -> list[Input]:
        """Return what it is made from, as its stage says."""
        of_variant = partial(self.step.inputs, self.graph.dataset, self.variant)
        return list(self.graph.shared((self.step, self.variant, "inputs"), of_variant))

    def input(self, stage: str, variant: str | None = None) -> "Output":
        """Return the output of a stage, of several variants of one, that it goes back to; of a
        mixture, whose splits are made of splits, that of the source."""
        graph, key = self.graph, self.key
        if graph.steps.get(stage) in (None, self.step):
            graph, key = graph.at(key)
        if variant is None:
            variant = {of.stage: of.variant for of in self.direct_inputs()}.get(stage, "")
        return graph.output(stage, key if graph.is_of_file(stage) else "", variant)

    def inputs(self, stage: str, variant: str | None = None) -> "dict[str, Output]":
        """Return the outputs of a direct input over all partitions, by key.

        Raises: MissingOutputError where a limit of the dataset may take more files and, for the
        output of one partition, where one of them is not there.
        """
        if variant is None:
            variant = {of.stage: of.variant for of in self.direct_inputs()}[stage]
        graph = self.graph
        if self.step.is_of_file:
            graph.check_made(stage, (graph.output(stage, of, variant) for of in graph.partitions))
        elif graph.limited is not None:
            graph.limited.check_closed()
        return {key: graph.output(stage, key, variant) for key in graph.partitions}

    def opened(self, stage: str, variant: str | None = None) -> Any:
        """Return the output of a stage that it goes back to, as that stage opens it."""
        made_from = self.input(stage, variant)
        return made_from.graph.open(made_from)

    def opened_all(self, stage: str, variant: str | None = None) -> list[Any]:
        """Return the outputs of `inputs`, opened.

        Raises: MissingOutputError that names the first ones that are not there.
        """
        inputs, dataset = self.inputs(stage, variant), self.graph.dataset.name
        if missing := [key for key, of in inputs.items() if not of.is_made]:
            raise MissingOutputError(
                where=str(self.place.relative_to(self.graph.folder.parent)),
                expected=f"the {stage} of all {len(inputs):,} partitions",
                found=f"{len(missing):,} not built: {first_five(missing)}",
                remedy=f"materialize {dataset}/{stage} for them, or run `tokflow run`",
            )
        return [of.graph.open(of) for of in inputs.values()]

    def given(self, kind: str) -> list[Any]:
        """Return the outputs of its partition that give something of this kind, opened."""
        return [self.opened(of.name) for of in stages_giving(self.graph.dataset, kind)]
