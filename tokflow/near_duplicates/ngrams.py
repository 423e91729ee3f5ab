"""Hashes of n-grams of tokens, and the signatures of documents that are made of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokflow.store.store import StoredOutput
from tokflow.store.tables import one_array, read_table, to_numpy
from tokflow.tokens import TokenSource
from tokflow.tokens.shard import TokenShard

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

FACTOR = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64."""

CHUNK_TOKENS = 2**17
"""Tokens hashed at once, so that their numbers stay in the cache."""

BATCH_TOKENS = 2_000_000
BATCH_DOCUMENTS = 20_000
"""Documents at once hold at most this, or one document."""

EMPTY = 2**32 - 1
"""The slot of a signature in which no n-gram fell; none has this value."""


@dataclass(frozen=True, slots=True)
class TextSpans:
    """Places of the texts of documents in the tokens of a shard, without BOS and EOS."""

    tokens: TokenSource
    starts: Numbers
    """(num_documents,) positions in the tokens."""
    lengths: Numbers
    """(num_documents,) tokens."""

    def read(self, documents: Numbers) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of some documents, end to end."""
        found: npt.NDArray[np.unsignedinteger]
        found = self.tokens.take(self.starts[documents], self.lengths[documents])
        return found


def texts_of(shard: TokenShard) -> TextSpans:
    """Return where the texts of a shard lie."""
    table = shard.documents(["token_offset", "num_tokens"])
    starts, num_tokens = map(to_numpy, table.columns)
    config = shard.manifest.recipe.config
    has_bos, has_eos = config["bos"] == "first", config["eos"] == "last"
    return TextSpans(
        tokens=shard.tokens(),
        starts=starts + has_bos,
        lengths=np.maximum(num_tokens - has_bos - has_eos, 0),
    )


def batches(lengths: Numbers) -> Iterator[slice]:
    """Yield runs of documents of at most `BATCH_TOKENS` and `BATCH_DOCUMENTS`, one at least."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = ends[first] - lengths[first]
        after = int(np.searchsorted(ends, before + BATCH_TOKENS, side="right"))
        stop = min(max(after, first + 1), first + BATCH_DOCUMENTS, len(lengths))
        yield slice(first, stop)
        first = stop


def ngrams_within(
    tokens: npt.NDArray[np.unsignedinteger], lengths: Numbers, n: int
) -> tuple[Hashes, Numbers]:
    """Return the hashes of the n-grams that lie within one document, and how many each has; the
    documents, so many tokens each, are end to end."""
    num = np.maximum(lengths - n + 1, 0)
    hashes = ngram_hashes(tokens, n)
    if len(lengths) == 1:
        return hashes, num
    starts = np.cumsum(lengths) - lengths
    is_within = np.zeros(len(hashes) + 1, dtype=np.int8)
    some = num > 0
    is_within[starts[some]] += 1
    is_within[starts[some] + num[some]] -= 1
    return hashes[np.cumsum(is_within[:-1], dtype=np.int8).view(bool)], num


def ngram_hashes(tokens: npt.NDArray[np.unsignedinteger], n: int) -> Hashes:
    """Return a hash of each n tokens in a row, (len(tokens) - n + 1,).

    It is that of a polynomial in FACTOR modulo 2**64, as a difference of two sums of which one
    continues the other, so that its cost does not depend on n; then mixed.
    """
    hashes = np.empty(max(len(tokens) - n + 1, 0), dtype=np.uint64)
    powers, inverses = _powers(CHUNK_TOKENS + n)
    sums = np.zeros(CHUNK_TOKENS + n, dtype=np.uint64)
    for start in range(0, len(hashes), CHUNK_TOKENS):
        found = hashes[start : start + CHUNK_TOKENS]
        terms = tokens[start : start + len(found) + n - 1].astype(np.uint64)
        terms += np.uint64(1)
        terms *= powers[: len(terms)]
        np.cumsum(terms, out=sums[1 : len(terms) + 1])
        np.subtract(sums[n : n + len(found)], sums[: len(found)], out=found)
        found *= inverses[: len(found)]
        mix(found)
    return hashes


@lru_cache(maxsize=4)
def _powers(num: int) -> tuple[Hashes, Hashes]:
    """Return FACTOR, its square and so on modulo 2**64, and their inverses."""
    factor, inverse = (np.full(num, of, np.uint64) for of in (FACTOR, pow(FACTOR, -1, 2**64)))
    return np.cumprod(factor, dtype=np.uint64), np.cumprod(inverse, dtype=np.uint64)


def mix(hashes: Hashes) -> None:
    """Let each bit of a hash depend on all of them, in place."""
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    hashes ^= hashes >> np.uint64(32)


def signatures(hashes: Hashes, num_ngrams: Numbers, num_slots: int) -> npt.NDArray[np.uint32]:
    """Return the signature of each document, (num_documents, num_slots).

    The share of slots in which two agree estimates how alike they are. One permutation hashing (Li,
    Owen, Zhang 2012): an n-gram falls into one slot, which keeps the least value. A slot without
    one takes that of another, in an order that depends on the slot alone, as in optimal
    densification (Shrivastava 2017). A document without n-grams is EMPTY everywhere.
    """
    found = np.full((len(num_ngrams), num_slots), EMPTY, dtype=np.uint32)
    slots = (hashes >> np.uint64(32)) * np.uint64(num_slots) >> np.uint64(32)
    places = np.repeat(np.arange(len(num_ngrams)) * num_slots, num_ngrams)
    places += slots.astype(np.int64)
    np.minimum.at(found.reshape(-1), places, hashes.astype(np.uint32) & np.uint32(EMPTY - 1))
    document, slot = np.nonzero((found == EMPTY) & (num_ngrams > 0)[:, np.newaxis])
    known, order = found.copy(), _order_of_slots(num_slots)
    for tried in range(num_slots):
        values = known[document, order[slot, tried]]
        is_filled = values != EMPTY
        found[document[is_filled], slot[is_filled]] = values[is_filled]
        document, slot = document[~is_filled], slot[~is_filled]
        if not len(document):
            break
    return found


@lru_cache(maxsize=4)
def _order_of_slots(num_slots: int) -> npt.NDArray[np.int64]:
    """Return for each slot the slots that it takes a value from, (num_slots, num_slots)."""
    hashes = np.arange(1, num_slots**2 + 1, dtype=np.uint64) * np.uint64(FACTOR)
    mix(hashes)
    return np.argsort(hashes.reshape(num_slots, num_slots), axis=1, kind="stable")


def band_keys(found: npt.NDArray[np.uint32], bands: int) -> Hashes:
    """Return the key of each band of signatures, (bands, num_documents), equal where all its
    numbers are; 0 of a document without n-grams."""
    keys = np.empty((bands, len(found)), dtype=np.uint64)
    of_bands = np.split(found, bands, axis=1)
    for number, (key, of_band) in enumerate(zip(keys, of_bands, strict=True)):
        key[:] = number + 1
        for column in of_band.T:
            key ^= column
            key *= np.uint64(FACTOR)
            key ^= key >> np.uint64(29)
    keys[:, found[:, 0] == EMPTY] = 0
    return keys


KEYS_NAME = "band_keys.parquet"
"""A column for each band, `0`, `1` ..., a row for each document: its key, uint64 little-endian."""


def band_of(stored: StoredOutput, number: int) -> Hashes:
    """Return the keys of one band for each document of a shard."""
    column = one_array(read_table(stored.file(KEYS_NAME), [str(number)]).column(0))
    data = column.buffers()[1] or b""
    found: Hashes = np.frombuffer(data, "<u8", len(column), column.offset * 8)
    return found
