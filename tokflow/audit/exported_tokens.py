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

        Raises: MissingOutputError where the export does not have them one behind the other.
        """
        part, first = self.entry["part"], self.entry["position"] - self.entry["token_in_piece"]
        begin, end = first + start, first + stop
        found = read_index(self.export, part, begin, end)
        num_there = sum(
            min(of["position"] + of["num_tokens"], end) - max(of["position"], begin)
            for of in found
            if of["position"] - of["token_in_piece"] == first
            and all(of[name] == self.entry[name] for name in ("raw_file", "row", "char_start"))
        )
        if num_there < stop - start:
            raise MissingOutputError(
                where=self.export.shown,
                expected=f"tokens {start:,} to {stop:,} of {self.entry['raw_file']}, row "
                f"{self.entry['row']:,}, one behind the other",
                found="not all of them: other sequences have them, or none",
                remedy="trace its document alone; the tokens of its raw file were dropped",
            )
        return np.concatenate([*Export(self.export).between(part, begin, end)])
