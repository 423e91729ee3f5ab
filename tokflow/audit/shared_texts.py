"""Texts that two parts of a split have in common."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tokflow.split.spans import Split
from tokflow.store.tables import to_numpy
from tokflow.tokens.shard_files import hashes_as_array
from tokflow.tokens.token_source import positions_of_runs

MIN_SHARED_CHARS = 32
"""Shorter texts (an empty file, a licence's one line) are equal by chance and teach nothing."""


def find_shared_texts(splits: Sequence[Split], *, min_chars: int = MIN_SHARED_CHARS) -> list[str]:
    """Return one sentence for each pair of parts that have a text in common.

    All files are looked at together. Only documents of at least `min_chars` characters that are
    whole in their part are compared, by their text_hash; memory takes 16 bytes for each.
    """
    parts = splits[0].parts if splits else ()
    hashes: dict[str, npt.NDArray[np.void]] = {}
    problems = []
    for part in parts:
        of_files = [_whole_documents(split, part, min_chars)[0] for split in splits]
        hashes[part] = np.unique(np.concatenate(of_files))
        for other in list(hashes)[:-1]:
            shared = np.intersect1d(hashes[other], hashes[part], assume_unique=True)
            if len(shared):
                problems.append(
                    f"{other} and {part}: expected no text in both, found {len(shared):,}, "
                    f"such as {_first_with(splits, part, shared)}"
                )
    return problems


def _whole_documents(
    split: Split, part: str, min_chars: int
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Return the hashes of one file's whole documents in a part, and their rows."""
    table = split.shard.documents(["row", "num_chars", "text_hash"])
    hashes = hashes_as_array(table["text_hash"])
    rows = split.rows(part)
    runs = (rows[name][~rows["is_cut"]] for name in ("document", "num_documents"))
    documents = np.sort(positions_of_runs(*runs))
    documents = documents[to_numpy(table["num_chars"])[documents] >= min_chars]
    return hashes[documents], to_numpy(table["row"])[documents]


def _first_with(splits: Iterable[Split], part: str, shared: npt.NDArray[np.void]) -> str:
    for split in splits:
        hashes, rows = _whole_documents(split, part, 0)
        is_shared = np.isin(hashes, shared)
        if is_shared.any():
            return f"{split.manifest.partition}:{int(rows[np.argmax(is_shared)])}"
    return "(none)"
