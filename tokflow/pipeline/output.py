"""One output that a dataset must have: its recipe, its folder, and whether it is there."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.store.manifest import Manifest, Recipe, damaged
from tokflow.store.store import Store, StoredOutput

Stage = Literal["raw", "tokenizer", "tokens", "split", "sequences", "export"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which data goes through them."""

FILE_STAGES: tuple[Stage, ...] = ("tokens", "split", "sequences")
"""The stages with an output of each raw file."""


SOURCE_STAGES: tuple[Stage, ...] = ("tokenizer", "tokens", "split")
"""What a mixture needs of a source, which has sequences and exports for itself alone."""


class Home(Protocol):
    """A dataset, as its outputs know it."""

    store: Store
    folder: Path
    """The folder of its outputs, which has its name."""

    def recipe(self, output: "Output") -> Recipe:
        """Return what decides an output."""

    def refused(self, output: "Output", counts: Mapping[str, int]) -> str | None:
        """Return what is in an output that the config makes an error now; None where nothing is."""


@dataclass(frozen=True, eq=False)  # without slots, since it keeps its recipe
class Output:
    """One output as it must be; whether it has been made is another question.

    Its recipe is worked out when it is first asked for: what it needs may have to be made before.
    The manifest is read once and, when it was believed, not again.
    """

    home: Home
    stage: Stage
    name: str
    """The partition key; of an export, its name; of the tokenizer, `tokenizer`."""
    packing: str = ""
    """Of sequences whose packing is not the dataset's: its name in `Dataset.packings`."""

    @cached_property
    def recipe(self) -> Recipe:
        """All that decides it.

        Raises: TokflowError, OSError where that cannot be known, such as a raw file that cannot
        be read or a tokenizer that has not been made.
        """
        return self.home.recipe(self)

    @property
    def is_of_file(self) -> bool:
        """True if it is made from one partition of the raw files, whose key is its name."""
        return self.stage in FILE_STAGES

    @property
    def dataset(self) -> str:
        """The name of its dataset."""
        return self.home.folder.name

    @property
    def store(self) -> Store:
        """The store that it belongs in."""
        return self.home.store

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of its recipe."""
        return self.recipe.fingerprint

    @property
    def place(self) -> Path:
        """The folder of its kind, whatever the fingerprints: `<store>/<dataset>/<stage>/<name>`."""
        return self.home.folder / self._place

    @property
    def is_first_of_kind(self) -> bool:
        """True if none of its kind was ever made: of a raw file, say, that is new."""
        path = f"{self.home.folder}/{self._place}"
        return not os.path.isdir(path)  # noqa: PTH112 (of many: a Path costs as much again)

    @cached_property
    def folder(self) -> Path:
        """The folder of its files, `<place>/<fingerprint[:16]>`."""
        return self.home.folder / f"{self._place}/{self.fingerprint[:16]}"

    @property
    def _place(self) -> str:
        if self.stage == "tokenizer":
            return "tokenizer"
        return f"{'exports' if self.stage == 'export' else self.stage}/{self.name}"

    @property
    def title(self) -> str:
        """`tokens of a.jsonl`, `export bin` or `tokenizer`: how messages call it."""
        if self.stage == "tokenizer":
            return self.stage
        return f"{self.stage} {'' if self.stage == 'export' else 'of '}{self.label}"

    @property
    def label(self) -> str:
        """Its name and, in brackets, that of the export whose packing it has."""
        return f"{self.name} ({self.packing})" if self.packing else self.name

    @property
    def asset(self) -> str:
        """The Dagster asset that makes it, with the partition it is of."""
        if self.stage == "export":
            return f"{self.dataset}/exports/{self.name}"
        partition = "" if self.stage == "tokenizer" else f" (partition {self.name})"
        return f"{'/'.join(filter(None, [self.dataset, self.stage, self.packing]))}{partition}"

    @property
    def asset_name(self) -> str:
        """What its asset is called within the stage: of an export its name, of sequences that of
        their packing."""
        return self.name if self.stage == "export" else self.packing

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
            if (reason := self.home.refused(self, self._whole.counts)) is None:
                return self._whole
        found = "none in the store for this file and this config"
        remedy = f"materialize {self.asset}, or run `tokflow run`"
        if reason is not None:
            found = f"one with {reason}"
            remedy = "correct the raw file, or the config; `tokflow run` names the first"
        expected = f"an output with fingerprint {self.fingerprint[:7]}"
        raise MissingOutputError(where=self.asset, expected=expected, found=found, remedy=remedy)

    @property
    def counts(self) -> Mapping[str, int]:
        """What its manifest counts. Raises: as `manifest`."""
        return self.manifest().counts

    @cached_property
    def stored(self) -> StoredOutput:
        """It as it is in the store, whatever became of its files and whatever is in it.

        Raises: as `manifest`.
        """
        return self.store.find(self.folder, self.stage, self.fingerprint, self.recipe)

    def forget(self) -> None:
        """Let go of its recipe, but for the fingerprint, of its manifest and its path, which come
        again where they are asked for: those of 100,000 files take more memory than all else of a
        plan."""
        for name in ("recipe", "stored", "_whole", "folder"):
            self.__dict__.pop(name, None)

    @cached_property
    def _whole(self) -> Manifest:
        """Its manifest, of which no file is missing or cut short."""
        stored = self.stored
        stored.store.check(stored)
        if stored.store.is_known_damaged(stored.folder):
            raise damaged(stored.folder, "files that are as its manifest says", "others")
        return stored.manifest

    def open(self) -> StoredOutput:
        """Return it as it is in the store. Raises: as `manifest`."""
        self.manifest()
        return self.stored


class NeededOutputs:
    """Outputs that are needed together, such as the tokens of all files for the position of one.

    While one is missing it is looked at first, so that asking again for each of 100,000 files does
    not look at all 100,000 each time.
    """

    def __init__(self) -> None:
        self._missing: Output | None = None

    def check(self, outputs: Iterable[Output]) -> None:
        """Raise the error of the first output that is not there; see `Output.manifest`."""
        if self._missing is not None:
            self._missing.manifest()
        for self._missing in outputs:
            self._missing.manifest()
        self._missing = None
