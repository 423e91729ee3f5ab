"""Problems that outputs of several stages may have: of files, counts, ids."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokflow.store.manifest import MANIFEST_NAME, RUN_NAME, Manifest
from tokflow.tokens.token_source import TokenSource

TOKENS_AT_ONCE = 8_000_000
"""Token ids looked at together, so that memory does not grow with the output."""


def unlisted_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return one sentence for each file of `folder` that nobody listed."""
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    unlisted = found - set(manifest.files) - {MANIFEST_NAME, RUN_NAME}
    return [f"{folder / name}: expected no file, found one" for name in sorted(unlisted)]


def too_large(where: object, tokens: TokenSource, vocab_size: int) -> Iterator[str]:
    """Yield a sentence for the first id that is not below vocab_size."""
    for start in range(0, len(tokens), TOKENS_AT_ONCE):
        some = tokens.read(start, start + TOKENS_AT_ONCE)
        if int(some.max()) >= vocab_size:
            at = int(np.argmax(some >= vocab_size))
            yield (
                f"{where}: token {start + at:,}: expected an id below vocab_size {vocab_size:,}, "
                f"found {int(some[at]):,}"
            )
            return
        tokens.release()


def unequal(where: object, **pairs: tuple[int, int]) -> Iterator[str]:
    """Yield a sentence for each count that is not the expected one: name=(expected, found)."""
    for name, (expected, found) in pairs.items():
        if expected != found:
            yield f"{where}: expected {name} {expected:,}, found {found:,}"


def first_other_row(expected: pa.Table, found: pa.Table) -> int:
    """Return the first row in which two tables of the same columns differ, or one has ended."""
    size = min(len(expected), len(found))
    is_other = np.zeros(size, dtype=bool)
    for name in expected.schema.names:
        one, other = (table[name].slice(0, size).to_numpy() for table in (expected, found))
        is_other |= one != other
    return int(np.argmax(is_other)) if is_other.any() else size
