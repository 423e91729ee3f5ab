"""Splits and sequences made again by their own stage's functions, and compared with the stored."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.tokens import first_other_row, unequal
from tokflow.pipeline.output import Output
from tokflow.pools.pool import ignore
from tokflow.sequences.segments import FileSequences, write_sequences
from tokflow.split import (
    CUT_TOKENS_NAME,
    NOT_IN_STRATA,
    SPANS_NAME,
    CutEncoder,
    Split,
    write_split,
)
from tokflow.split.mixed_split import write_mixed_split
from tokflow.split.rule import LONGEST, NO_PART, NOT_TAKEN, FileSpans
from tokflow.store.integrity import Reading
from tokflow.store.listed_files import broken_file
from tokflow.store.manifest import read_manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.tables import read_table, to_numpy
from tokflow.tokenizers.tokenizer import Tokenizer


def verify_split(
    split: Split,
    encode_cut: CutEncoder | None = None,
    *,
    given: Callable[[str], list[Any]] = lambda kind: [],
) -> list[str]:
    """Return what is wrong with a split: its parts are not the text, or made again it is another.

    Without `encode_cut`, which needs the raw file, cut documents keep the tokens that they have.
    `given`: the selections and strata of its documents, by their kind, that it was made with.
    """
    names, counts = (*split.parts, NOT_TAKEN), split.manifest.counts
    num_chars = sum(counts[f"{name}.num_chars"] for name in names)
    expected = split.shard.manifest.counts["num_chars"]
    where = f"{split.folder}: all parts and no part together"
    problems = [*unequal(where, num_chars=(expected, num_chars))]
    unknown = set()
    if encode_cut is None:
        encode_cut = partial(_stored_cut_tokens, split)
        if CUT_TOKENS_NAME in split.manifest.files:
            unknown = {
                f"{of}.{n}" for of in (NOT_TAKEN, NOT_IN_STRATA) for n in ("num_tokens", LONGEST)
            }
    write = partial(
        write_split,
        split.shard,
        dataset=split.manifest.dataset,
        recipe=split.manifest.recipe,
        encode_cut=encode_cut,
        selections=given("selection"),
        strata=given("strata"),
    )
    unknown |= {f"{name}.{LONGEST}" for name in names} - counts.keys()
    return problems + _made_again(split, write, unknown)


def verify_mixed_split(split: Split, source: Split, tokenizer: Tokenizer) -> list[str]:
    """Return what is wrong with a split of a mixture: made again from the split of its source it is
    another.

    Raises: UntrustedCodeError where a document is cut and the tokenizer is code that may not run.
    """
    about: dict[str, Any] = {"dataset": split.manifest.dataset, "recipe": split.manifest.recipe}
    return _made_again(split, partial(write_mixed_split, source, tokenizer=tokenizer, **about))


def verify_sequences(sequences: FileSequences) -> list[str]:
    """Return what is wrong with the sequences of one file: they are not the tokens of the split,
    or they differ when they are made again."""
    split, manifest = sequences.split, sequences.manifest
    problems: list[str] = []
    names = ("num_tokens", "num_tail_tokens", "num_dropped_tokens", "num_repeated_tokens")
    for part in split.parts:
        full, tail, dropped, repeated = (manifest.counts[f"{part}.{name}"] for name in names)
        num_tokens = split.manifest.counts[f"{part}.num_tokens"], full + tail + dropped - repeated
        where = f"{sequences.folder}: {part}: in sequences, leftover and dropped"
        problems += unequal(where, num_tokens=num_tokens)
    about: dict[str, Any] = {"dataset": manifest.dataset, "recipe": manifest.recipe}
    return problems + _made_again(sequences, partial(write_sequences, split, **about))


def _stored_cut_tokens(split: Split, spans: FileSpans, folder: Path) -> npt.NDArray[np.int64]:
    """Copy the tokens of cut spans from `split`; return how many it has of each span, 0 of those
    that no part takes."""
    table = read_table(split.stored.file(SPANS_NAME))
    in_file_order = np.lexsort([to_numpy(table[name]) for name in ("char_start", "document")])
    is_cut = to_numpy(table["is_cut"])[in_file_order]
    split.cut_tokens().tofile(folder / CUT_TOKENS_NAME)
    num_tokens = np.zeros(len(spans.part), dtype=np.int64)
    is_kept = spans.is_cut & (spans.part != NO_PART)
    num_tokens[is_kept] = to_numpy(table["num_tokens"])[in_file_order][is_cut]
    return num_tokens


def _made_again(
    stored: StoredOutput | InStore,
    write: Callable[[Path], object],
    unknown: Collection[str] = (),
) -> list[str]:
    """Return how an output differs from the same made again by `write`; `unknown` counts may.

    Tables may be of other bytes, as another version of pyarrow writes them, if their rows are
    the same.
    """
    problems = []
    with TemporaryDirectory(prefix="tokflow.") as name, Reading():
        folder = Path(name)
        write(folder)
        manifests = read_manifest(folder), stored.manifest
        expected, found = (
            {**of.counts, **of.details, "files": sorted(of.files)} for of in manifests
        )
        for name in sorted((expected | found).keys() - {*unknown}):
            if expected.get(name) != found.get(name):
                there = f"{expected.get(name)!r} as made again, found {found.get(name)!r}"
                problems.append(f"{stored.folder}: expected {name} {there}")
        for name, entry in manifests[0].files.items():
            path = stored.store.file(stored, name)
            if (broken := broken_file(stored.folder, name, entry)) is None:
                continue
            if path.suffix == ".parquet" and path.is_file():
                problems += _row_difference(path, folder / name)
                continue
            there = f"{broken.expected} as made again, found {broken.found}"
            problems.append(f"{path}: expected {there}")
    return problems


def _row_difference(path: Path, remade: Path) -> Iterator[str]:
    """Yield the first row that is not the one made again, if there is one."""
    found, expected = read_table(path), read_table(remade)
    if found.equals(expected):
        return
    yield from unequal(path, num_rows=(len(expected), len(found)))
    row = first_other_row(expected, found)
    rows = (of.slice(row, 1).to_pylist() for of in (expected, found))
    for one, other in zip(*rows, strict=False):  # none where one of them has ended
        wrong = {name: value for name, value in one.items() if value != other[name]}
        there = {name: other[name] for name in wrong}
        yield f"{path}: row {row:,}: expected {wrong} as made again, found {there}"


def verify_made_again(output: Output) -> list[str]:
    """Return what is wrong with an output that its stage makes again whole: it is another.

    Raises: TokflowError where it cannot be made.
    """
    return _made_again(output.open(), lambda of: output.step.writer(output).write(None, of, ignore))
