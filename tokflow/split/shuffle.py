"""The config of shuffles, and what their seed decides."""

import hashlib
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.split.permutation import MAX_SIZE, PERMUTATION_VERSION, Permutation
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest
from tokflow.tokens.origins import Origins


class ShuffleConfig(Config):
    """Orders drawn by a seed. Nothing is lost or repeated, and no document changes its part."""

    section: ClassVar[str] = "shuffle"

    seed: int = 0
    """Another seed gives another, independent order."""
    documents: Literal["file"] | None = None
    """file: the documents of each part are put into the order of the seed within their raw file,
    or group of them, when it is split: streams and sequences are made of that order."""
    sequences: bool = False
    """Put the finished sequences of each part, of all files, into the order of the seed when an
    export of sequences is made."""

    def check(self) -> None:
        """Refuse a shuffle of nothing."""
        if self.model_fields_set and not (self.documents or self.sequences):
            raise ConfigError(
                where="",
                expected="something to shuffle",
                found="nothing",
                remedy="add `documents: file` or `sequences: true`, or leave `shuffle` out",
            )

    @property
    def of_documents(self) -> int | None:
        """The seed of the order of documents; None where they stay as they are in their file."""
        return self.seed if self.documents else None

    @property
    def of_sequences(self) -> int | None:
        """The seed of the order of sequences; None where they stay in the order of files."""
        return self.seed if self.sequences else None


def shuffle_seed_of(manifest: Manifest) -> int | None:
    """Return the seed that an output was shuffled with; None where it was not."""
    seed: int | None = manifest.config.get("shuffle", {}).get("seed")
    return seed


def shuffled_by(manifest: Manifest) -> dict[str, int]:
    """Return what of a split or an export is in the order of a seed: `documents` (within their
    files) and `sequences`, each with the seed."""
    own = "documents" if manifest.stage == "split" else "sequences"
    orders = {
        "documents": manifest.details.get("document_order", {}).get("seed"),
        own: shuffle_seed_of(manifest),
    }
    return {name: seed for name, seed in orders.items() if seed is not None}


def shuffle_fields(seed: int | None, name: str = "shuffle") -> dict[str, Any]:
    """Return the field that says what a shuffle decides: none without one."""
    return {} if seed is None else {name: {"seed": seed, "version": PERMUTATION_VERSION}}


def document_keys(
    origins: Origins, rows: npt.NDArray[np.int64], seed: int
) -> npt.NDArray[np.int64]:
    """Return a number for each document, given its row in a token shard: sorted by it, documents
    are in the order of the seed.

    It is the document's place among 2**63, which the seed, its raw file and its row there decide:
    so documents that come or go do not move the others, and those of a part, of a file, of a group
    or of any files have one order.
    """
    first = np.array(origins.first_rows, dtype=np.int64)
    number = np.searchsorted(first, rows, side="right") - 1
    begin = [hashlib.blake2b(key.encode(), digest_size=8).digest() for key in origins.raw_files]
    begins = np.frombuffer(b"".join(begin), dtype="<u8")
    place = (begins[number] + (rows - first[number]).astype(np.uint64)) % np.uint64(MAX_SIZE)
    return Permutation(MAX_SIZE, seed, "documents").at(place.astype(np.int64))
