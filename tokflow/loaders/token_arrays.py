"""The tokens of a stream export or a token store as one array, with its documents."""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.exports.format import of_dtype
from tokflow.loaders.opening import KeptPortions, Stream, find_part, lost, open_stream
from tokflow.loaders.samples import Numbers, grouped, picked
from tokflow.store.store import StoredOutput
from tokflow.tokens import SHORT_RUN, positions_of_runs


def open_tokens(path: str | Path | StoredOutput, part: str | None = None) -> "TokenArray":
    """Open the tokens of a part of a stream export, or of a token store, as one array.

    By path or URL (`s3://...`), whose files come to this disk when they are first needed.
    Nothing is read but the manifest, against which the sizes of the files are checked. Files stay
    memory-mapped where the format can be; of others what was decoded last is kept.

    part: may be left out where there is one.

    Raises: MissingOutputError where there is no export that is finished; CorruptOutputError where a
    file is missing or cut short; ForeignOutputError where a newer tokflow made it; ConfigError for
    a part that there is not, and for packed rows.
    """
    output, part, is_packed = find_part(path, part)
    if is_packed:
        raise ConfigError(
            where=output.folder,
            expected="a stream of tokens",
            found="packed rows",
            remedy="call `open_rows`, or open an export of a stream (bin, npy, llmc, megatron)",
        )
    stream = open_stream(output, part)
    return TokenArray(output, part, stream, KeptPortions(stream.portions))


@dataclass(frozen=True)
class TokenArray:
    """The tokens of a part, documents end to end; an array of one dimension, read where it is
    looked at.

    `tokens[7]` is a token, `tokens[3:9]` and `tokens[[3, 1, 2]]` are arrays: of a slice within a
    memory-mapped file a view of it, which costs nothing. It is pickled without its tokens.
    """

    output: StoredOutput = field(repr=False, hash=False)
    part: str | None
    """The part; None of a token store."""
    _stream: Stream = field(repr=False, compare=False)
    _portions: KeptPortions = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_tokens, (self.output, self.part)

    def __len__(self) -> int:
        return int(self._portions.edges[-1])

    @property
    def shape(self) -> tuple[int]:
        """(num_tokens,)."""
        return (len(self),)

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of a token id: uint16 or uint32."""
        dtype: np.dtype[np.unsignedinteger] = np.dtype(
            self._stream.output.manifest.details["dtype"]
        )
        return dtype

    def __getitem__(self, chosen: Any) -> Any:
        """Return a token, those of a slice or those at a list of positions; negative ones count
        from the end. Raises: IndexError."""
        if isinstance(chosen, slice) and chosen.step in (None, 1):
            start, stop, _ = chosen.indices(len(self))
            return self._between(start, max(start, stop))
        if isinstance(chosen, slice) or np.ndim(chosen):
            return self._at(picked(chosen, len(self)))
        return self._at(picked([chosen], len(self)))[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all tokens, for `np.asarray`."""
        return np.array(self[:], dtype=dtype, copy=copy)

    def take(self, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of many spans, end to end. Raises: IndexError."""
        starts, lengths = (np.asarray(of, dtype=np.int64) for of in (starts, lengths))
        if starts.shape != lengths.shape or (lengths < 0).any():
            raise IndexError(f"expected {starts.size:,} lengths, from 0 on, found {lengths}")
        stops = starts + lengths
        for edge in (*starts[starts < 0], *stops[stops > len(self)]):
            raise IndexError(f"expected spans within 0 to {len(self):,}, found one to {edge:,}")
        if lengths.sum() <= SHORT_RUN * len(lengths):
            return self._at(positions_of_runs(starts, lengths))
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return np.concatenate([self._between(*span) for span in spans])

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The position at which each document begins, and the last ends; (num_documents + 1,).

        Raises: ConfigError of a format that does not keep it.
        """
        if "offsets" not in self._stream.keeps:
            raise lost("offsets", self._stream.output, ["offsets"])
        edges, found = self._portions.edges, [np.zeros(1, dtype=np.int64)]
        for number, portion in enumerate(self._stream.portions):
            own = portion.offsets
            own = portion.read_lazily()["offsets"] if own is None else own
            found.append(own[1:] + edges[number])
        offsets = np.concatenate(found)
        offsets.flags.writeable = False
        return offsets

    @property
    def num_documents(self) -> int:
        """Documents, those of no tokens among them where the format keeps them. Raises: as
        `offsets`."""
        return len(self.offsets) - 1

    def document(self, number: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of a document, its EOS among them. Raises: IndexError."""
        [number] = picked([number], self.num_documents)
        return self._between(*self.offsets[number : number + 2].tolist())

    def documents(self, start: int = 0, stop: int | None = None) -> range:
        """Return the numbers of the documents that have a token from `start` to `stop`, and of
        those without tokens between them."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if start >= stop:
            return range(0)
        first, last = np.searchsorted(self.offsets, [start, stop - 1], side="right") - 1
        return range(int(first), int(last) + 1)

    def _between(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return a view where one file has them all."""
        found, number = [np.empty(0, self.dtype)], bisect_right(self._edges, start) - 1
        while start < stop:
            begin, end = self._edges[number : number + 2]
            values = self._portions[number]["token_ids"][start - begin : stop - begin]
            found.append(of_dtype(values, self.dtype))
            start, number = end, number + 1
        return found[1] if len(found) == 2 else np.concatenate(found)

    @cached_property
    def _edges(self) -> list[int]:
        edges: list[int] = self._portions.edges.tolist()
        return edges

    def _at(self, positions: Numbers) -> npt.NDArray[np.unsignedinteger]:
        found = np.empty(len(positions), self.dtype)
        for number, here in grouped(self._portions.of(positions)):
            values = self._portions[number]["token_ids"]
            found[here] = values[positions[here] - self._portions.edges[number]]
        return found
