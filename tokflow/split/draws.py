"""Draws of documents that are the same with every version of every library."""

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt


@lru_cache(maxsize=1)
def ranks_of_draw(total: int, seed: int, key: str) -> npt.NDArray[np.int64]:
    """Return the rank of each of `total` documents in a draw without replacement.

    The draw sorts documents by a hash of (seed, key, ordinal), so it is the same with every
    version of every library.
    """
    salt = int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), "big")
    keys = mixed(np.arange(total, dtype=np.uint64), salt)
    ranks = np.empty(total, dtype=np.int64)
    ranks[np.argsort(keys, kind="stable")] = np.arange(total)
    return ranks


def mixed(values: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """Return well-mixed 64-bit hashes of `values`, different for each salt.

    Source: splitmix64's finalizer (Steele, Lea, Flood 2014), applied twice.
    """
    hashes = values + np.uint64(salt % 2**64)
    for _ in range(2):
        hashes = hashes + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes = hashes ^ (hashes >> np.uint64(31))
    return hashes
