"""The tokens of a text as an export has them, where those of its raw file were dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import MissingOutputError
from tokflow.exports import Export
from tokflow.exports.index import read_index
from tokflow.store.store import StoredOutput


@dataclass(frozen=True, slots=True)
class ExportedTokens:
    """The tokens of one text, from its first, read out of the files of an export."""

    export: StoredOutput
    entry: Mapping[str, Any]
    """A row of its index about the text."""

    def read(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens between two positions in the text.

        Raises: MissingOutputError where the export does not have them one behind the other, but for
        the EOS of the text, which can stand before it.
        """
        export, part, entry = Export(self.export), self.entry["part"], self.entry
        moves_eos = export.layout.eos_first
        is_eos = moves_eos and entry["token_in_piece"] > 0
        first = entry["position"] + 1 if is_eos else entry["position"] - entry["token_in_piece"]
        found: list[tuple[int, int, int]] = []
        for of in read_index(self.export, part, max(0, first - moves_eos), first + stop):
            is_same = all(of[name] == entry[name] for name in ("raw_file", "row", "char_start"))
            at = of["token_in_piece"]
            there = of["position"] - at
            if is_same and (there == first or (moves_eos and of["position"] == first - 1)):
                found.append((max(at, start), min(at + of["num_tokens"], stop), there))
        num_there = sum(max(0, end - begin) for begin, end, _ in found)
        if num_there < stop - start:
            raise MissingOutputError(
                where=self.export.shown,
                expected=f"tokens {start:,} to {stop:,} of {self.entry['raw_file']}, row "
                f"{self.entry['row']:,}, one behind the other",
                found="not all of them: other sequences have them, or none",
                remedy="trace its document alone; the tokens of its raw file were dropped",
            )
        pieces = (
            of["token_ids"]
            for begin, end, there in sorted(found)
            if begin < end
            for of in export.between(part, there + begin, there + end)
        )
        return np.concatenate([*pieces])
