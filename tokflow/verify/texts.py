"""Are the texts of an export those that the tokens were made of."""

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

import pyarrow as pa

from tokflow.arrays import to_numpy, to_texts
from tokflow.document_table import text_hashes
from tokflow.exports import Arrays, Part
from tokflow.manifest import Manifest
from tokflow.verify.problems import unequal


def compare_texts(
    where: str, arrays: Iterator[Arrays], manifest: Manifest, part: Part | None, name: str
) -> Iterator[str]:
    """Yield what is wrong with the texts of a part, read from an export.

    Their number is the one of the manifest; with `part`, each has the length and, if it is a
    whole document, the hash that the token shard has of it.
    """
    expected = None if part is None else _expected(part)
    num_documents = 0
    for fields in arrays:
        texts = to_texts(fields["texts"].tolist())
        if expected is not None:
            wanted = list(islice(expected, len(texts)))
            wrong = _first_difference(texts, wanted)
            if wrong is not None:
                yield f"{where}: the text of document {num_documents + wrong:,} is not its own"
                expected = None
        num_documents += len(texts)
    expected_documents = manifest.counts[f"{name}.num_documents"]
    yield from unequal(where, num_documents=(expected_documents, num_documents))
    if expected is not None and next(expected, None) is not None:
        yield f"{where}: expected more texts, found the end of the files"


Known = tuple[bytes | None, int]
"""The hash of a text, None of a piece of one, and its code points."""


def _expected(part: Part) -> Iterator[Known]:
    for split in part.splits:
        table = split.shard.documents(["num_chars", "text_hash"])
        hashes, num_chars = table["text_hash"].to_pylist(), to_numpy(table["num_chars"]).tolist()
        for span in split.spans(part.name).to_pylist():
            if span["is_cut"]:
                yield None, span["num_chars"]
                continue
            stop = span["document"] + span["num_documents"]
            yield from zip(
                hashes[span["document"] : stop], num_chars[span["document"] : stop], strict=True
            )


def _first_difference(texts: pa.LargeStringArray, wanted: Sequence[Known]) -> int | None:
    import pyarrow.compute as pc

    lengths = to_numpy(pc.utf8_length(texts)).tolist()
    found = zip(text_hashes(texts).to_pylist(), lengths, strict=True)
    for number, (pair, expected) in enumerate(zip_longest(found, wanted)):
        if pair is None or expected is None or pair[1] != expected[1]:
            return number
        if expected[0] not in (None, pair[0]):
            return number
    return None
