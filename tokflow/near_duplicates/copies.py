"""Which documents go for the sake of another, and for which one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.near_duplicates.ngrams import Numbers
from tokflow.near_duplicates.pairs import PAIRS_NAME, distinct_texts
from tokflow.store.store import StoredOutput
from tokflow.store.tables import make_table, offsets_of, one_array, read_table, to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard


@dataclass(frozen=True, slots=True)
class NeedlessDocuments:
    """Documents of one shard that go, ascending, and the document that stays for each."""

    documents: Numbers
    """Their indices in documents.parquet."""
    are_exact: npt.NDArray[np.bool_]
    """True where an equal text stays, or would if it were not itself like another."""
    similarity: npt.NDArray[np.float64]
    """1 of equal texts."""
    raw_files: pa.StringArray
    rows: Numbers
    """Where the document is that stays: its raw file, and its row there."""

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return a row for each of them."""
        columns = {"document": self.documents, "row": self.rows, "similarity": self.similarity}
        return make_table({**columns, "raw_file": self.raw_files}, schema)


def find_copies(
    shards: Mapping[str, TokenShard],
    are_kept: Sequence[npt.NDArray[np.bool_]],
    pairs: StoredOutput | None,
) -> dict[str, NeedlessDocuments]:
    """Return the copies of each shard by its key, among the documents that all else keeps.

    Of equal texts the first stays. With `pairs`, a text goes only if it is alike to one that stays:
    they are taken by priority, the longest first, so that no chain of texts takes what is unlike.
    `are_kept`: of each document of each shard, whether all other rules keep it.
    """
    texts = distinct_texts(list(shards.values()))
    kept = np.flatnonzero(np.concatenate(are_kept))
    first_of = np.full(len(texts.documents), len(texts.ids), dtype=np.int64)
    np.minimum.at(first_of, texts.ids[kept], kept)
    stays_for = np.arange(len(texts.documents))
    similarity = np.ones(len(texts.documents))
    if pairs is not None:
        is_there = first_of < len(texts.ids)
        _leave_alike(pairs, texts.hashes, texts.ranks, is_there, stays_for, similarity)
    of_kept = texts.ids[kept]
    is_exact = first_of[of_kept] != kept
    goes = is_exact | (stays_for[of_kept] != of_kept)
    gone, text, is_exact = kept[goes], of_kept[goes], is_exact[goes]
    stays = first_of[stays_for[text]]
    edges = offsets_of([len(of) for of in are_kept])
    origins = [
        of.origins.of_rows(to_numpy(of.documents(["row"]).column("row"))) for of in shards.values()
    ]
    files = pa.chunked_array([of for of, _ in origins], pa.string()).take(to_arrow(stays))
    rows = np.concatenate([of for _, of in origins])[stays]
    found = {}
    for number, key in enumerate(shards):
        some = slice(*np.searchsorted(gone, edges[number : number + 2]))
        found[key] = NeedlessDocuments(
            documents=gone[some] - edges[number],
            are_exact=is_exact[some],
            similarity=similarity[text[some]],
            raw_files=files.slice(some.start, some.stop - some.start).combine_chunks(),
            rows=rows[some],
        )
    return found


def _leave_alike(
    pairs: StoredOutput,
    hashes: pa.FixedSizeBinaryArray,
    ranks: Numbers,
    is_there: npt.NDArray[np.bool_],
    stays_for: Numbers,
    similarity: npt.NDArray[np.float64],
) -> None:
    """Write for each text that goes which one stays, and how alike they are: the one most alike, of
    equally alike ones that of the first rank. `is_there`: whether a document with it is kept."""
    table = read_table(pairs.file(PAIRS_NAME))
    named = (one_array(table[name]) for name in ("text_hash", "other"))
    first, second = (to_numpy(pc.index_in(of, value_set=hashes)).astype(np.int64) for of in named)
    alike = to_numpy(table["similarity"])
    both = is_there[first] & is_there[second]
    first, second, alike = first[both], second[both], alike[both]
    order = np.lexsort((ranks[first], -alike, ranks[second]))
    goes: set[int] = set()
    columns = (column[order].tolist() for column in (first, second, alike))
    for stays, text, of in zip(*columns, strict=True):
        if text not in goes and stays not in goes:
            goes.add(text)
            stays_for[text], similarity[text] = stays, of
