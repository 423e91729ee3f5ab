"""Read an export back as its users do, and compare it with what it was made from."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.verify.tokens import TOKENS_AT_ONCE, first_other_row, too_large, unequal
from tokflow.exports import INDEX_NAME, Export, Layout, Part
from tokflow.exports.columns import has_first_loss
from tokflow.exports.reading import is_export
from tokflow.sequences.segments import Sequences
from tokflow.store.listed_files import BESIDE, is_as_written
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_part, to_numpy
from tokflow.tokens import TokenSource

NAMES = {
    "token_ids": "token",
    "segment_ids": "segment id of token",
    "position_ids": "position id of token",
    "loss_mask": "loss mask of token",
    "offsets": "length of document",
}
"""Messages call one value of a field so."""


class Rechunked:
    """The values, or rows, of arrays or tables end to end, taken as many at a time as wished."""

    def __init__(
        self, chunks: Iterator[Any], join: Callable[[list[Any]], Any] = np.concatenate
    ) -> None:
        self._chunks = chunks
        self._join = join
        self._rest: Any = ()

    def next(self, size: int) -> Any:
        """Return the next `size` values, or fewer at the end; () where there is none."""
        taken = []
        while size:
            chunk = self._rest if len(self._rest) else next(self._chunks, None)
            if chunk is None:
                break
            taken.append(chunk[:size])
            self._rest = chunk[size:]
            size -= len(taken[-1])
        return self._join(taken) if len(taken) > 1 else (taken or [()])[0]


def verify_beside(output: StoredOutput) -> list[str]:
    """Return which of the files that stand beside an export for people are not as written."""
    found = {}
    if is_export(output.manifest):
        found = {name: output.store.read_beside(output.folder, name) for name in BESIDE}
    return [
        f"{output.folder / name}: expected the sha256 of its other lines in one of them, found "
        "other bytes; remove the file, and `tokflow run` writes it again"
        for name, data in found.items()
        if data is not None and not is_as_written(name, data)
    ]


def verify_export(
    made: StoredOutput,
    parts: Sequence[Part] | None = None,
    *,
    reads_files: bool = True,
) -> list[str]:
    """Return what is wrong with an export.

    The index leads to every token once; the files, read through the format's own reader, hold as
    many tokens as the manifest says, with ids below vocab_size. With `parts`, what it was made
    from: written + dropped is the parts' tokens, the index leads to the documents they have, and
    every field that the format keeps has the values that they have. A format without a reader is
    compared by its counts and its index alone, and so is any other without `reads_files`.
    """
    folder, manifest, export = made.folder, made.manifest, Export(made)
    counts, names = manifest.counts, manifest.details["parts"]
    problems = [each for name in names for each in index_problems(made, name)]
    for part in parts or ():
        once = counts[f"{part.name}.num_tokens"] + counts[f"{part.name}.num_dropped_tokens"]
        once -= counts.get(f"{part.name}.num_repeated_tokens", 0)
        where = f"{folder}: {part.name}: written once and dropped"
        problems += unequal(where, num_tokens=(part.num_tokens, once))
    if parts and not problems:
        problems += _compare_index(made.file(INDEX_NAME), export.layout, parts)
    by_name = {part.name: part for part in parts or ()}
    for name in names if reads_files else ():
        problems += _read_problems(export, name, by_name.get(name))
    return problems


def index_problems(made: StoredOutput, part: str) -> Iterator[str]:
    """Yield what is wrong with the entries of a part: they cover its tokens and do not overlap."""
    columns = read_part(made.file(INDEX_NAME), part, ["position", "num_tokens"])
    start, size = columns["position"], columns["num_tokens"]
    where = f"{made.folder / INDEX_NAME}: {part}"
    num_tokens = made.manifest.counts[f"{part}.num_tokens"]
    if len(wrong := np.flatnonzero(start[1:] < (start + size)[:-1])):
        yield f"{where}: expected entries that do not overlap, found one at {start[wrong[0] + 1]:,}"
    yield from unequal(where, num_tokens=(num_tokens, int(size.sum())))


def _compare_index(path: Path, layout: Layout, parts: Sequence[Part]) -> Iterator[str]:
    """Yield the first entry of the index that is not the one which the parts have there."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(path) as file:
        groups = (file.read_row_group(number) for number in range(file.num_row_groups))
        stored = Rechunked(groups, pa.concat_tables)
        for part in parts:
            for expected in part.index(is_packed=layout.is_packed, eos_first=layout.eos_first):
                found = stored.next(len(expected)) or expected.slice(0, 0)
                if not found.equals(expected):
                    row = min(first_other_row(expected, found), len(expected) - 1)
                    position = to_numpy(expected["position"])[row]
                    yield (
                        f"{path}: {part.name}: the entry at {position:,} does not lead to its "
                        "document"
                    )
                    return
        if len(stored.next(1)):
            yield f"{path}: expected no more entries, found some"


def _read_problems(export: Export, name: str, part: Part | None) -> Iterator[str]:
    """Read a part as its users do and compare every field with `part`."""
    export = export.of_part(name)
    if not export.is_read:
        return
    manifest = export.manifest
    where, layout = f"{export.folder}: {name}", export.layout
    first_loss = has_first_loss(export, name)
    expected = {} if part is None else _expected_fields(layout, part, first_loss=first_loss)
    num: Counter[str] = Counter()
    for fields in export.read(name):
        token_ids = fields["token_ids"].reshape(-1)
        num_tokens = len(token_ids)
        if layout.is_packed:
            if "segment_ids" in fields:  # for padding may be an id that a token has
                is_token = fields["segment_ids"].reshape(-1) != 0
            else:
                is_token = token_ids != manifest.details.get("pad_id", -1)
            num_tokens = int(np.count_nonzero(is_token))
            token_ids = np.where(is_token, token_ids, 0)
        tokens = TokenSource((token_ids,))
        yield from too_large(where, tokens, manifest.details["vocab_size"])
        for field, values in fields.items():
            yield from _differences(where, field, values, expected, num)
        num["positions"] += len(token_ids)
        num["num_tokens"] += num_tokens
        num["num_loss_tokens"] += int(np.count_nonzero(fields.get("loss_mask", ())))
    for field, rest in expected.items():
        if len(rest.next(1)):
            yield f"{where}: expected more {NAMES[field]}s, found the end of the files"
    if "segment_ids" not in layout.keeps:  # no file tells padding: believe the manifest
        num_padding = export.num_positions(name) - manifest.counts[f"{name}.num_tokens"]
        num["num_tokens"] = num["positions"] - num_padding
    of_loss = ("num_loss_tokens",) if first_loss else ()
    for what in ("num_tokens", *of_loss, "num_documents"):
        if (count := manifest.counts.get(f"{name}.{what}")) is not None:
            yield from unequal(where, **{what: (count, num[what])})


def _expected_fields(layout: Layout, part: Part, *, first_loss: bool) -> dict[str, Rechunked]:
    """Return the values that each field of an export must have, padding included."""
    if layout.made_of == "sequences":
        made = part.sequences()
        if not first_loss:
            made = (replace(of, loss_mask=of.loss_mask & (of.position_ids != 0)) for of in made)
        return _fields_apart(made, layout.keeps)
    fields = {"token_ids": Rechunked(part.stream(eos_first=layout.eos_first))}
    if "loss_mask" in layout.keeps and part.has_loss_mask:
        fields["loss_mask"] = Rechunked(part.stream_loss_mask())
    if "offsets" in layout.keeps and part.num_tokens:
        least = 1 if layout.leaves_out_empty else 0
        lengths = (of.num_tokens for of in part.documents())
        fields["offsets"] = Rechunked(some[some >= least] for some in lengths)
    return fields


def _fields_apart(made: Iterator[Sequences], names: Iterable[str]) -> dict[str, Rechunked]:
    """Return the values of fields of sequences, each to be taken at a pace of its own; what all
    have taken is dropped, where `tee` keeps 57 items."""
    waiting: dict[str, deque[npt.NDArray[Any]]] = {name: deque() for name in names}

    def field(name: str) -> Iterator[npt.NDArray[Any]]:
        try:
            while waiting[name] or (some := next(made, None)) is not None:
                if not waiting[name]:
                    for each, values in waiting.items():
                        values.append(getattr(some, each).reshape(-1))
                yield waiting[name].popleft()
        finally:
            del waiting[name]  # nobody takes it any more

    return {name: Rechunked(field(name)) for name in names}


def _differences(
    where: str,
    field: str,
    values: npt.NDArray[Any],
    expected: dict[str, Rechunked],
    num: Counter[str],
) -> Iterator[str]:
    """Yield the first value that differs from the part; the rest of the field is not compared."""
    first, found = num["positions"], values.reshape(-1)
    if field == "offsets":
        first, found = num["num_documents"], np.diff(values)
        num["num_documents"] += len(found)
    for start in range(0, len(found), TOKENS_AT_ONCE):
        if field not in expected:
            return
        some = found[start : start + TOKENS_AT_ONCE]
        wanted = expected[field].next(len(some))
        is_wrong = some[: len(wanted)] != wanted
        if is_wrong.any() or len(wanted) < len(some):
            at = first + start + (int(is_wrong.argmax()) if is_wrong.any() else len(wanted))
            yield f"{where}: {NAMES[field]} {at:,} differs from the split"
            del expected[field]
