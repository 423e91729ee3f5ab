"""Are the texts of an export those that the tokens were made of."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.verify.expected import Expected, Runs
from tokflow.audit.verify.problems import unequal
from tokflow.exports import Arrays, Part
from tokflow.store.arrow import to_numpy, to_texts
from tokflow.store.manifest import Manifest
from tokflow.tokens.document_table import hashes_as_array, text_hashes


def compare_texts(
    where: str, arrays: Iterator[Arrays], manifest: Manifest, part: Part | None, name: str
) -> Iterator[str]:
    """Yield what is wrong with the texts of a part, read from an export.

    Their number is the one of the manifest; with `part`, each has the length and, if it is a
    whole document, the hash that the token shard has of it.
    """
    expected = None if part is None else Expected(Runs(_known_of(part)), "texts")
    num_documents = 0
    for fields in arrays:
        texts = to_texts(fields["texts"].tolist())
        if expected is not None:
            wrong = _first_difference(_found(texts), expected.next(len(texts)))
            if wrong is not None:
                yield f"{where}: the text of document {num_documents + wrong:,} is not its own"
                expected = None
        num_documents += len(texts)
    expected_documents = manifest.counts[f"{name}.num_documents"]
    yield from unequal(where, num_documents=(expected_documents, num_documents))
    if expected is not None and len(expected.next(1)):
        yield f"{where}: expected more texts, found the end of the files"


KNOWN = np.dtype([("text_hash", "V16"), ("num_chars", "<i8"), ("is_cut", "?")])
"""What is known of a text; the hash is of the whole document, so not of a cut piece."""


def _known_of(part: Part) -> Iterator[Arrays]:
    """Yield what is known of the texts of a part, those of one file at a time."""
    for split in part.splits:
        table = split.shard.documents(["num_chars", "text_hash"])
        spans = split.span_table(part.name)
        counts = to_numpy(spans["num_documents"])
        ends = np.cumsum(counts)
        document = np.arange(ends[-1] if len(ends) else 0)
        document += np.repeat(to_numpy(spans["document"]) - (ends - counts), counts)
        known = np.zeros(len(document), dtype=KNOWN)
        known["text_hash"] = hashes_as_array(table["text_hash"].combine_chunks())[document]
        is_cut = np.repeat(to_numpy(spans["is_cut"]), counts)
        of_piece = np.repeat(to_numpy(spans["num_chars"]), counts)
        known["num_chars"] = np.where(is_cut, of_piece, to_numpy(table["num_chars"])[document])
        known["is_cut"] = is_cut
        yield {"texts": known}


def _found(texts: pa.LargeStringArray) -> npt.NDArray[np.void]:
    import pyarrow.compute as pc

    found = np.zeros(len(texts), dtype=KNOWN)
    found["text_hash"] = hashes_as_array(text_hashes(texts))
    found["num_chars"] = to_numpy(pc.utf8_length(texts))
    return found


def _first_difference(found: npt.NDArray[np.void], known: npt.NDArray[np.void]) -> int | None:
    size = min(len(found), len(known))
    is_equal = found["num_chars"][:size] == known["num_chars"][:size]
    is_equal &= (found["text_hash"][:size] == known["text_hash"][:size]) | known["is_cut"][:size]
    if not is_equal.all():
        return int(np.argmin(is_equal))
    return size if len(found) != len(known) else None
