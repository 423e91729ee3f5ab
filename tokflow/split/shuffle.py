"""The config of shuffles, and what their seed decides."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.split.permutation import MAX_SIZE, PERMUTATION_VERSION, Permutation
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest
from tokflow.tokens.shard import Origins


class ShuffleConfig(Config):
    """Orders drawn by a seed. Nothing is lost or repeated, and no document changes its part."""

    section: ClassVar[str] = "shuffle"

    seed: int = 0
    """Another seed gives another, independent order."""
    documents: Literal["file", "dataset"] | None = None
    """file: the documents of each part are put into the order of the seed within their raw file,
    or group of them, when it is split: streams and sequences are made of that order. dataset: those
    of all files are put into one order when an export is made."""
    sequences: bool = False
    """True: the finished sequences of each part, of all files, are in the order of the seed in
    exports of sequences."""

    def check(self) -> None:
        """Refuse a shuffle of nothing."""
        if self.model_fields_set and not (self.documents or self.sequences):
            raise ConfigError(
                where="",
                expected="something to shuffle",
                found="nothing",
                remedy="add `documents: dataset`, `documents: file` or `sequences: true`, or leave "
                "`shuffle` out",
            )

    @property
    def of_documents(self) -> int | None:
        """The seed of the order of documents in a split; None where they stay as they are in their
        file."""
        return self.seed if self.documents == "file" else None

    @property
    def of_export(self) -> "ExportOrder":
        """The order that exports are made in."""
        return ExportOrder(
            documents=self.seed if self.documents == "dataset" else None,
            sequences=self.seed if self.sequences else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOrder:
    """The seeds of the order that an export is made in; None where it is that of the files."""

    documents: int | None = None
    """Seed of the order of the documents of all files."""
    sequences: int | None = None
    """Seed of the order of finished sequences."""

    def document_fields(self) -> dict[str, Any]:
        """Return the field about documents; nothing where they are in the order of the files."""
        fields = shuffle_fields(self.documents, DOCUMENT_ORDER)
        return {name: {**of, "scope": "dataset"} for name, of in fields.items()}


DOCUMENT_ORDER = "document_order"


def order_of(manifest: Manifest) -> ExportOrder:
    """Return the order that an export was made in."""
    documents = manifest.recipe.config.get(DOCUMENT_ORDER, {}).get("seed")
    return ExportOrder(documents=documents, sequences=shuffle_seed_of(manifest))


def shuffle_seed_of(manifest: Manifest) -> int | None:
    """Return the seed of a split's documents, or of an export's sequences; None without one."""
    seed: int | None = manifest.recipe.config.get("shuffle", {}).get("seed")
    return seed


def shuffled_by(manifest: Manifest) -> dict[str, int]:
    """Return the seeds of the shuffles of a split or an export, by name: `documents`, `documents of
    all files` and `sequences`."""
    own = "sequences" if manifest.partition is None else "documents"
    order = manifest.details.get(DOCUMENT_ORDER, {})
    documents = "documents of all files" if "scope" in order else "documents"
    orders = {documents: order.get("seed"), own: shuffle_seed_of(manifest)}
    return {name: seed for name, seed in orders.items() if seed is not None}


def shuffle_fields(seed: int | None, name: str = "shuffle") -> dict[str, Any]:
    """Return the field that says what a shuffle decides: none without one."""
    return {} if seed is None else {name: {"seed": seed, "version": PERMUTATION_VERSION}}


def document_keys(
    origins: Origins, rows: npt.NDArray[np.int64], seed: int, *, purpose: str = "documents"
) -> npt.NDArray[np.int64]:
    """Return a number for each document, given its row in a token shard: sorted by it, documents
    are in the order of the seed.

    It is the document's place among 2**63, which the seed, its raw file and its row there decide:
    so documents that come or go do not move the rest, and those of a part, of a file, of a group
    or of any files have one order.
    """
    first = np.array(origins.first_rows, dtype=np.int64)
    number = np.searchsorted(first, rows, side="right") - 1
    begin = [hashlib.blake2b(key.encode(), digest_size=8).digest() for key in origins.raw_files]
    begins = np.frombuffer(b"".join(begin), dtype="<u8")
    place = (begins[number] + (rows - first[number]).astype(np.uint64)) % np.uint64(MAX_SIZE)
    return Permutation(MAX_SIZE, seed, purpose).at(place.astype(np.int64))
