"""Pairs of alike texts of a dataset: those that share a key are compared n-gram by n-gram; and the
documents that go for the sake of another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.near_duplicates import ngrams
from tokflow.stage import Tables
from tokflow.store.store import StoredOutput
from tokflow.store.tables import make_table, offsets_of, one_array, read_table, to_arrow, to_numpy
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens import positions_of_runs
from tokflow.tokens.shard import TokenShard

PAIRS_NAME = "pairs.parquet"
PAIRS_SCHEMA = pa.schema(
    [
        pa.field("text_hash", pa.binary(16), nullable=False),
        pa.field("other", pa.binary(16), nullable=False),
        pa.field("similarity", pa.float64(), nullable=False),
    ]
)
"""One row per pair of texts that are alike. text_hash: of the longer one in tokens, of equally long
ones the lower hash; other: of the other one; similarity: Jaccard of their n-grams."""

NUM_NEIGHBOURS = NUM_LEADERS = 32
"""Texts of one key that each is compared with: those before it, and the first ones, in the order of
priority. Of up to 33 texts these are all pairs; a passage that thousands share does not take their
square."""

RANGE_TEXTS = 20_000_000
"""Keys of a band that are sorted at once; of more texts a band is taken by ranges of its keys."""

NUM_SAMPLES = 5
SAMPLE_TOKENS = 100
"""Pairs that are shown, and the tokens of each text at its beginning."""


@dataclass(frozen=True, slots=True)
class DistinctTexts:
    """The texts of a dataset, each once, whatever files and rows it is in."""

    hashes: pa.FixedSizeBinaryArray
    """(num_texts,) xxh3-128."""
    ids: npt.NDArray[np.int64]
    """(num_documents,) the text of each document of all shards, end to end."""
    documents: ngrams.Numbers
    """(num_texts,) the first document that has each; ascending."""
    ranks: ngrams.Numbers
    """(num_texts,) the ordinal of each by priority; no two are equal."""


def distinct_texts(shards: Sequence[TokenShard]) -> DistinctTexts:
    """Return the texts of shards. The longest in tokens has the first rank, of equally long ones
    that with the lowest hash: neither depends on where they are."""
    tables = [of.documents(["num_tokens", "text_hash"]) for of in shards]
    num_tokens = np.concatenate([to_numpy(of.column("num_tokens")) for of in tables])
    columns = [chunk for of in tables for chunk in of.column("text_hash").chunks]
    hashes = one_array(pa.chunked_array(columns, pa.binary(16)))
    del tables, columns
    high, low = _halves(hashes)
    order = np.lexsort((low, high))  # of equal texts the first document comes first
    is_new = np.ones(len(order), dtype=bool)
    for half in (high, low):
        half[:] = half[order]
    is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    del high, low
    by_hash = order[is_new]
    documents = np.sort(by_hash)
    numbers = np.searchsorted(documents, by_hash)
    ids = np.empty(len(order), dtype=np.int64)
    ids[order] = numbers[np.cumsum(is_new) - 1]
    del order
    ranks = np.empty(len(numbers), dtype=np.int64)
    by_priority = np.argsort(-num_tokens[by_hash], kind="stable")
    ranks[numbers[by_priority]] = np.arange(len(ranks))
    return DistinctTexts(hashes.take(to_arrow(documents)), ids, documents, ranks)


def _halves(hashes: pa.FixedSizeBinaryArray) -> tuple[ngrams.Hashes, ngrams.Hashes]:
    """Return the first and the last eight bytes of hashes as numbers, which sort as they do."""
    if not len(hashes):
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    numbers = np.frombuffer(hashes.buffers()[1], ">u8", 2 * len(hashes), 16 * hashes.offset)
    return numbers[::2].astype(np.uint64), numbers[1::2].astype(np.uint64)


def proven_pairs(
    shards: Sequence[TokenShard],
    keys: Sequence[StoredOutput],
    bands: int,
    ngram: int,
    threshold: float,
    tokenizer: Tokenizer,
) -> Tables:
    """Return the proven pairs of all shards, with how many there are of each similarity, and the
    beginnings of some; they are the same for any order of the shards."""
    texts = distinct_texts(shards)
    found, num_passed_by = _candidates(keys, bands, texts)
    corpus = corpus_of(shards)
    similarity = similarities(texts.documents[found], corpus, ngram)
    is_alike = similarity >= threshold
    pairs, similarity = found[is_alike], similarity[is_alike]
    order = np.lexsort((texts.ranks[pairs[:, 1]], texts.ranks[pairs[:, 0]]))
    pairs, similarity = pairs[order], similarity[order]
    first, second = (texts.hashes.take(to_arrow(of)) for of in pairs.T)
    rows = pa.Table.from_arrays([first, second, to_arrow(similarity)], schema=PAIRS_SCHEMA)
    counts = {
        "num_documents": len(texts.ids),
        "num_copies": len(texts.ids) - len(texts.documents),
        "num_compared": len(found),
        "num_pairs": len(pairs),
        "num_passed_by": num_passed_by,
    }
    details = {
        "similarities": np.bincount((similarity * 20).astype(np.int64), minlength=21).tolist(),
        "samples": _samples(texts.documents[pairs], similarity, corpus, tokenizer),
    }
    return {PAIRS_NAME: rows}, counts, details


def _candidates(
    keys: Sequence[StoredOutput], bands: int, texts: DistinctTexts
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the pairs of texts that share a key of some band, (num_pairs, 2), each once and that
    of higher priority first, and how many are passed by."""
    num_texts = max(len(texts.documents), 1)
    codes, num_passed_by = np.zeros(0, dtype=np.int64), 0
    for number in range(bands):
        for some, of_some in _ranges(keys, number, texts.documents):
            pairs, num_others = _alike(some, of_some, texts.ranks)
            codes = _distinct(np.concatenate([codes, pairs[:, 0] * num_texts + pairs[:, 1]]))
            num_passed_by += num_others
    return np.stack([codes // num_texts, codes % num_texts], axis=1), num_passed_by


def _samples(
    pairs: npt.NDArray[np.int64],
    similarity: npt.NDArray[np.float64],
    corpus: "Corpus",
    tokenizer: Tokenizer,
) -> list[dict[str, Any]]:
    """Return the beginnings of some pairs of documents, from the least alike to the most."""
    reference = open_reference(tokenizer)

    def beginning(document: int) -> str:
        number = int(np.searchsorted(corpus.edges, document, side="right")) - 1
        texts, own = corpus.texts[number], document - corpus.edges[number]
        start = int(texts.starts[own])
        stop = start + min(int(texts.lengths[own]), SAMPLE_TOKENS)
        return reference.decode(texts.tokens.read(start, stop).tolist())

    order = np.argsort(similarity, kind="stable")
    places = np.linspace(0, len(order) - 1, min(NUM_SAMPLES, len(order))).astype(np.int64)
    return [
        {
            "similarity": round(float(similarity[of]), 3),
            "text": beginning(pairs[of, 0]),
            "other": beginning(pairs[of, 1]),
        }
        for of in order[places]
    ]


def _ranges(
    keys: Sequence[StoredOutput], number: int, documents: ngrams.Numbers
) -> Iterator[tuple[ngrams.Hashes, ngrams.Numbers]]:
    """Yield the keys of a band and their texts, range by range, without those that have none.

    `documents`: the document of each text, ascending.
    """
    bits = 0
    while len(documents) > RANGE_TEXTS << bits:
        bits += 1
    edges = offsets_of([of.manifest.counts["num_documents"] for of in keys])
    of_shards = np.split(np.arange(len(documents)), np.searchsorted(documents, edges[1:-1]))
    for wanted in range(2**bits):
        found, texts = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
        for stored, first, of_shard in zip(keys, edges[:-1], of_shards, strict=True):
            own = ngrams.band_of(stored, number)[documents[of_shard] - first]
            is_wanted = own != 0
            if bits:
                is_wanted &= own >> np.uint64(64 - bits) == wanted
            found.append(own[is_wanted])
            texts.append(of_shard[is_wanted])
        yield np.concatenate(found), np.concatenate(texts)


def _alike(
    keys: ngrams.Hashes, texts: ngrams.Numbers, ranks: ngrams.Numbers
) -> tuple[npt.NDArray[np.int64], int]:
    """Return pairs of texts with one key, (num_pairs, 2), that of higher priority first, and how
    many pairs more there are."""
    order = np.lexsort((ranks[texts], keys))
    keys, texts = keys[order], texts[order]
    is_same = keys[1:] == keys[:-1]
    is_member = np.zeros(len(keys), dtype=bool)
    is_member[1:] |= is_same
    is_member[:-1] |= is_same
    keys, texts = keys[is_member], texts[is_member]
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = keys[1:] != keys[:-1]
    firsts = np.flatnonzero(is_first)
    sizes = np.diff([*firsts, len(keys)])
    start = np.repeat(firsts, sizes)
    place = np.arange(len(keys)) - start
    found = [np.zeros((0, 2), dtype=np.int64)]
    for back in range(1, min(NUM_NEIGHBOURS, int(sizes.max(initial=0)) - 1) + 1):
        at = np.flatnonzero(place >= back)
        found.append(np.stack([texts[at - back], texts[at]], axis=1))
    far = np.flatnonzero(place > NUM_NEIGHBOURS)
    for leader in range(NUM_LEADERS if len(far) else 0):
        at = far[place[far] > leader + NUM_NEIGHBOURS]
        found.append(np.stack([texts[start[at] + leader], texts[at]], axis=1))
    pairs = np.concatenate(found)
    return pairs, int((sizes * (sizes - 1) // 2).sum()) - len(pairs)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The texts of all shards; documents count through them."""

    texts: Sequence[ngrams.TextSpans]
    edges: ngrams.Numbers
    """(num_shards + 1,) the first document of each, and the end."""


def corpus_of(shards: Sequence[TokenShard]) -> Corpus:
    """Return the texts of shards."""
    texts = [ngrams.texts_of(of) for of in shards]
    return Corpus(texts, offsets_of([len(of.lengths) for of in texts]))


def similarities(pairs: npt.NDArray[np.int64], corpus: Corpus, n: int) -> npt.NDArray[np.float64]:
    """Return the Jaccard similarity of pairs of documents, (num_pairs,): n-grams of tokens that
    both have over those that either has. `pairs`: (num_pairs, 2) documents with an n-gram."""
    found = np.zeros(len(pairs))
    lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(of.lengths for of in corpus.texts)])
    pairs = np.sort(pairs, axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # files are read from the first to the last
    for some in ngrams.batches(lengths[pairs[order]].sum(axis=1)):
        found[order[some]] = _jaccard(pairs[order[some]], corpus, n)
        for of in corpus.texts:
            of.tokens.release()
    return found


def _jaccard(pairs: npt.NDArray[np.int64], corpus: Corpus, n: int) -> npt.NDArray[np.float64]:
    """Return the similarity of pairs that are compared at once."""
    documents, places = np.unique(pairs, return_inverse=True)
    of_shards = np.split(documents, np.searchsorted(documents, corpus.edges[1:-1]))
    own = [
        ngrams.ngrams_within(texts.read(some - first), texts.lengths[some - first], n)
        for texts, first, some in zip(corpus.texts, corpus.edges[:-1], of_shards, strict=True)
        if len(some)
    ]
    known, ids = np.unique(np.concatenate([of for of, _ in own]), return_inverse=True)
    document = np.repeat(np.arange(len(documents)), np.concatenate([num for _, num in own]))
    members = _distinct(document * len(known) + ids)  # the n-grams of each document, once
    sizes = np.bincount(members // len(known), minlength=len(documents))
    left, right = places.reshape(pairs.shape).T
    is_left = sizes[left] < sizes[right]
    small, large = np.where(is_left, left, right), np.where(is_left, right, left)
    num = sizes[small]
    of_pair = np.repeat(np.arange(len(pairs)), num)
    own_members = members[positions_of_runs(offsets_of(sizes)[small], num)]
    asked = own_members + (large - small)[of_pair] * len(known)
    place = np.minimum(np.searchsorted(members, asked), len(members) - 1)
    both = np.bincount(of_pair[members[place] == asked], minlength=len(pairs))
    found: npt.NDArray[np.float64] = both / (sizes[left] + sizes[right] - both)
    return found


def _distinct(numbers: ngrams.Numbers) -> ngrams.Numbers:
    """Return numbers in order, each once; by sorting, which takes a tenth of the time of numpy's
    table of hashes."""
    numbers.sort()
    is_new = np.ones(len(numbers), dtype=bool)
    is_new[1:] = numbers[1:] != numbers[:-1]
    return numbers[is_new]


@dataclass(frozen=True, slots=True)
class NeedlessDocuments:
    """Documents of one shard that go, ascending, and the document that stays for each."""

    documents: ngrams.Numbers
    """Their indices in documents.parquet."""
    are_exact: npt.NDArray[np.bool_]
    """True where an equal text stays, or would if it were not itself like another."""
    similarity: npt.NDArray[np.float64]
    """1 of equal texts."""
    raw_files: pa.StringArray
    rows: ngrams.Numbers
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
    ranks: ngrams.Numbers,
    is_there: npt.NDArray[np.bool_],
    stays_for: ngrams.Numbers,
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
