"""A stage of the pipeline: everything that graph, plan, run, verify, gc and Dagster know of one.

A new stage is a module with a subclass of `Stage`, and one line in `tokflow.pipeline.stages`.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from tokflow.pools.pool import Advance
from tokflow.raw import RawFile, RawPartition, RawSource
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest, Recipe, write_manifest
from tokflow.store.store import InStore, StoredOutput

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

RAW = "raw"
"""What the raw files are called where a stage is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """Outputs of another stage that an output is made from."""

    stage: str
    reach: Literal["own", "all"] = "own"
    """own: the output of the same partition, or the only one; all: those of all partitions."""
    variant: str = ""
    dataset: str = ""
    """The dataset that has them, where it is another."""
    why_all: str = ""
    """Reason for needing all partitions, for messages: `, through which scope: dataset counts`."""
    remedy: str = "fix what is wrong with them"
    """What to do where some of all are missing."""

    @property
    def is_of_all(self) -> bool:
        """True of the outputs of all partitions, raw files aside."""
        return self.reach == "all" and self.stage != RAW


class DatasetConfig(Protocol):
    """The config of a dataset, as stages read it."""

    name: str

    @property
    def base(self) -> Path:
        """Folder that relative paths start from."""

    @property
    def folder(self) -> Path:
        """Folder of all outputs of the dataset on this disk, or of their copies."""

    @property
    def stages(self) -> "tuple[Stage, ...]":
        """The stages of the dataset, parents first."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of its splits, divided by strata, in order."""

    def of(self, section: type[T]) -> T:
        """Return the section of the YAML that has this type."""


class Graph(Protocol):
    """A dataset as it is now: its config, its raw files, and what exports say of it."""

    @property
    def dataset(self) -> DatasetConfig:
        """The config."""

    @property
    def sources(self) -> Mapping[str, RawSource]:
        """The raw files by their keys, as they are listed."""

    @property
    def partitions(self) -> Mapping[str, tuple[RawSource, ...]]:
        """The raw files of each partition by its key."""

    @property
    def bad_files(self) -> Mapping[str, str]:
        """Why each raw file is left out that cannot be read, by its key, sorted."""

    def is_of_file(self, stage: str) -> bool:
        """Return whether each partition has an output of a stage."""

    def raw(self, key: str) -> RawPartition:
        """Return the raw files of a partition, fetched. Raises: RawFileError."""

    def raw_file(self, key: str) -> RawFile:
        """Return a raw file, fetched. Raises: RawFileError."""

    def shared(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what outputs have in common, computed once for all of them; `key`: their stage,
        and what else tells it from other things."""

    @property
    def encoding(self) -> Any:
        """The tokenizer, which must have been made, with its EOS and BOS, as `Encoding`."""

    def token_details(self) -> dict[str, Any]:
        """Return dtype, vocab_size, eos_id and bos_id, as manifests of exports have them."""

    def export_details(self) -> dict[str, Any]:
        """Return all that the manifest of an export says of its tokens.

        Raises: ConfigError where the documents are chats and no token is supervised.
        """


class Opened(Protocol):
    """The inputs of an output that is in a store, each as its stage opens it."""

    def opened(self, stage: str) -> Any:
        """Return the output of a stage that this one goes back to, as that stage opens it."""

    def given(self, kind: str) -> list[Any]:
        """Return the inputs that give something of this kind, opened."""


class Made(Protocol):
    """An input, as a recipe and counts need it."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its recipe."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of its manifest. Raises: MissingOutputError, CorruptOutputError."""


class Making(Opened, Protocol):
    """An output to be made, with access to what it is made from."""

    @property
    def graph(self) -> Graph:
        """Its dataset."""

    @property
    def key(self) -> str:
        """The partition key; empty for an output of the whole dataset."""

    @property
    def variant(self) -> str:
        """The name of the export, or of the packing; mostly empty."""

    @property
    def folder(self) -> Path:
        """The folder that it will have in the store."""

    @property
    def place(self) -> Path:
        """The folder of all its versions."""

    @property
    def recipe(self) -> Recipe:
        """All that decides it."""

    def of(self, section: type[T]) -> T:
        """Return a section of the YAML as it holds for this partition."""

    def input(self, stage: str, variant: str | None = None) -> Made:
        """Return the output of a stage that this one goes back to; of a variant, where it goes
        back to several."""

    def opened(self, stage: str, variant: str | None = None) -> Any:
        """Return the output of `input`, as its stage opens it."""

    def inputs(self, stage: str, variant: str | None = None) -> Mapping[str, Made]:
        """Return the outputs of a direct input over all partitions, by key.

        Raises: MissingOutputError where not all partitions are known yet and, for an output of one
        partition, where one of them is not there.
        """

    def opened_all(self, stage: str, variant: str | None = None) -> list[Any]:
        """Return the outputs of `inputs`, each as its stage opens it."""


class Share(Protocol):
    """A part of an output that one task makes; joined with the others when all are made."""

    @property
    def number(self) -> int:
        """Its ordinal among the shares of the output."""

    @property
    def recipe(self) -> Recipe:
        """All that decides it."""


class Writer:
    """Writes the files of one output, whole or by shares; goes to another process as it is."""

    __slots__ = ()

    @property
    def begun(self) -> Recipe | None:
        """The recipe by which an output is called until its raw files were read; None where all
        that decides it is known."""
        return None

    def write(self, share: Any, folder: Path, progress: Advance) -> None:
        """Write a share of the output, None: all of it, into an empty folder, manifest last."""
        raise NotImplementedError

    def shares(self) -> Sequence[Share]:
        """Return the shares of a large output; none where one task makes it whole."""
        return ()

    def join(self, shares: Sequence[StoredOutput], folder: Path) -> None:
        """Make the output of its shares, in their order, in an empty folder."""
        raise NotImplementedError

    def inputs(self) -> Iterable[InStore]:
        """Return outputs with large files, which workers need not hash again."""
        return ()


@dataclass(frozen=True, slots=True)
class WholeWriter(Writer):
    """The writer of an output that one task makes."""

    make: Callable[[Path], None]
    """Fills an empty folder, manifest last."""

    def write(self, share: None, folder: Path, progress: Advance) -> None:
        """Write the output into an empty folder, manifest last."""
        self.make(folder)


Tables: TypeAlias = "tuple[Mapping[str, pa.Table], Mapping[str, int], Mapping[str, Any]]"
"""Tables by the names of their files, and the counts and details of the manifest."""


@dataclass(frozen=True, slots=True)
class TablesWriter(Writer):
    """The writer of an output that one task makes, and that is tables."""

    about: Mapping[str, Any]
    """Recipe, dataset and partition, as the manifest has them."""
    make: Callable[[], Tables]

    @classmethod
    def of(cls, making: Making, make: Callable[..., Tables], *made_of: Any, **how: Any) -> Self:
        """Return the writer of the tables that a function makes of these arguments."""
        about = {"dataset": making.graph.dataset.name, "partition": making.key or None}
        return cls({"recipe": making.recipe, **about}, partial(make, *made_of, **how))

    def write(self, share: None, folder: Path, progress: Advance) -> None:
        """Write the tables into an empty folder, manifest last."""
        from tokflow.store.tables import write_table  # which imports pyarrow

        started = time.perf_counter()
        tables, counts, details = self.make()
        files = {name: write_table(folder / name, of) for name, of in sorted(tables.items())}
        manifest = Manifest(**self.about, counts=counts, details=details, files=files)
        write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that an output takes where no earlier run tells: measured on two cores."""

    seconds: float = 0.1
    per_byte: float = 0.0
    """Per byte of raw text."""


class Stage:
    """One step of the pipeline. An output of it has a partition key, a variant, or neither."""

    name: ClassVar[str]
    """In manifests and messages, and its Dagster asset."""
    folder: ClassVar[str] = ""
    """Below the dataset's; default: the name."""
    is_of_file: ClassVar[bool] = True
    """True if each partition has an output; False: the dataset has one of each variant."""
    decides_all: ClassVar[bool] = False
    """True of the tokenizer, before which no other recipe is known."""
    section: ClassVar[type[Config] | None] = None
    """Section of the YAML that it adds, under its name, with a default for each field."""
    config: ClassVar[type[Config] | None] = None
    """Section that decides its outputs; default: the one that it adds."""
    needs: ClassVar[str] = ""
    """Field of that config without which a dataset has no such stage."""
    gives: ClassVar[str] = ""
    """`selection`: its outputs open as (num_documents,) bool, and the split takes what is True;
    `strata`: as `Strata`, and the split divides its parts by them."""
    cost: ClassVar[Cost] = Cost()
    has_engine: ClassVar[bool] = False
    """True of the tokens: an engine makes them, of all the text that a limit takes."""
    has_latest: ClassVar[bool] = False
    """True if people read its outputs, by a link `latest` to the newest."""

    @property
    def path(self) -> str:
        """The folder of all its outputs below the dataset's."""
        return self.folder or self.name

    def place(self, key: str, variant: str) -> str:
        """Return the folder of an output below the dataset's, without its fingerprint."""
        own = key if self.is_of_file else variant
        return "/".join(filter(None, [self.path, own]))

    def variants(self, dataset: DatasetConfig) -> Mapping[str, Any]:
        """Return the config of each variant that a dataset has; empty: it has no such stage."""
        section = self.config or self.section
        config: Any = dataset.of(section) if section else {}
        return {"": config} if not self.needs or getattr(config, self.needs) else {}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return what an output is made from: parents in Dagster, what a plan waits for."""
        raise NotImplementedError

    def all_inputs(self, dataset: DatasetConfig) -> list[Input]:
        """Return what the outputs of all variants are made from."""
        return [of for variant in self.variants(dataset) for of in self.inputs(dataset, variant)]

    def recipe(self, making: Making) -> Recipe:
        """Return all that decides an output.

        Raises: TokflowError, OSError where that cannot be known yet.
        """
        raise NotImplementedError

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what config and code decide of any output: its Dagster code version."""
        raise NotImplementedError

    def writer(self, making: Making) -> Writer:
        """Return what makes an output, whose inputs are there."""
        raise NotImplementedError

    def largest_task(self, making: Making, num_bytes: int) -> int:
        """Return the text that the largest task of an output reads, of `num_bytes` in all."""
        return num_bytes

    def open(self, stored: StoredOutput, inputs: Opened) -> Any:
        """Return an output, the sizes of whose files are right, as the stages behind it read
        it."""
        return stored

    def refused(self, counts: Mapping[str, int], dataset: DatasetConfig) -> str | None:
        """Return what a stored output contains that the config makes an error now, if anything."""
        return None

    def files_beside(self, dataset: DatasetConfig, variant: str) -> Sequence[Path]:
        """Return the files of this disk, beside raw files and tokenizer, that decide its outputs:
        Dagster's sensor builds when one has changed. Raises: ConfigError where one is missing."""
        return ()

    def reads_tokens(self, dataset: DatasetConfig, variant: str) -> bool:
        """Return whether the output of a partition is made of its token ids, which must be made
        again if they were dropped; of what is made of all partitions it is so anyway."""
        return False

    def keeps_all(self, making: Making) -> bool:
        """Return whether its output leaves out no document, whichever there are in its tokens: a
        selection that a split need not be made again for."""
        return False

    def spare_files(self, manifest: Manifest) -> list[str]:
        """Return files of an output that may go once all exports stand, by their names."""
        return []

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return Dagster's tags of what its files are."""
        return ["parquet"]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of its Dagster asset, in Markdown."""
        return ""


def stages_giving(dataset: DatasetConfig, *kinds: str) -> list[Stage]:
    """Return the stages of a dataset that give something of these kinds."""
    return [of for of in dataset.stages if of.gives in kinds and of.variants(dataset)]


def stage_named(stages: Iterable[Stage], name: str) -> Stage | None:
    """Return the stage with this name; None where there is none, as for the raw files."""
    return next((of for of in stages if of.name == name), None)


def stage_of(stages: Iterable[Stage], manifest: Manifest) -> Stage | None:
    """Return the stage that made an output; None for one that no stage here makes, as raw files."""
    return stage_named(stages, manifest.recipe.stage)
