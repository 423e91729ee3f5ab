"""The orders that a seed draws, written again from their definition: one number at a time, in whole
numbers of Python, with no code of tokflow."""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import cycle
from math import isqrt
from typing import Any

OF_DOCUMENTS = 2**63
"""The places of which a document, and a file, has one, whatever else there is."""


def document_place(file: str, row: int, seed: int, purpose: str = "documents") -> int:
    """Return the place of a document of a raw file: sorted by it, documents are in their order."""
    first = int.from_bytes(hashlib.blake2b(file.encode(), digest_size=8).digest(), "little")
    return number_at((first + row) % OF_DOCUMENTS, OF_DOCUMENTS, seed, purpose)


def taking_order(files: Iterable[str], shuffle: Mapping[str, Any]) -> list[str]:
    """Return files in the order in which a limit of all of them takes them."""
    if "documents" not in shuffle:
        return sorted(files)
    seed = shuffle.get("seed", 0)
    return sorted(files, key=lambda file: document_place(file, 0, seed, "files"))


def number_at(place: int, size: int, seed: int, purpose: str) -> int:
    """Return the number at a place of an order of the numbers below `size`."""
    if size == 1:
        return 0
    num_rounds = 6 if size >= 2**16 else 24
    digest = hashlib.shake_256(f"1:{size}:{seed}:{purpose}".encode()).digest(8 * num_rounds)
    keys = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8)]
    height = isqrt(size - 1) + 1
    width = (size + height - 1) // height
    number = _through(place, height, width, keys)
    while number >= size:
        number = _through(number, height, width, keys)
    return number


def _through(number: int, height: int, width: int, keys: list[int]) -> int:
    row, column = divmod(number, width)
    for key, is_of_row in zip(keys, cycle([True, False]), strict=False):
        if is_of_row:
            row = (row + _hash(column + key) % height) % height
        else:
            column = (column + _hash(row + key) % width) % width
    return row * width + column


def _hash(number: int) -> int:
    """Return splitmix64's finalizer of a number, modulo 2**64."""
    number %= 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ (number >> shift)) * factor % 2**64
    return number ^ (number >> 31)
