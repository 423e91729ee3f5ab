"""Raw files behind the rows of a token shard: one, or those of a group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import DocumentSource
from tokflow.raw import RawPartition
from tokflow.store.manifest import Manifest
from tokflow.store.tables import repeated, to_arrow, to_texts


@dataclass(frozen=True, slots=True)
class Origins:
    """The raw files of a token shard, in the order of its rows."""

    raw_files: Sequence[str]
    """Keys of the raw files."""
    first_rows: Sequence[int]
    """The row of the shard with which each begins."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Origins":
        """Return the raw files of the token shard with this manifest."""
        files = manifest.details.get("files")
        if files is None:
            return cls([str(manifest.partition)], [0])
        edges = list(accumulate((file["num_rows"] for file in files), initial=0))
        return cls([file["raw_file"] for file in files], edges[:-1])

    def of_rows(self, rows: npt.NDArray[np.int64]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the raw file of each row of the shard, and its row in that file."""
        if len(self.raw_files) == 1:
            return repeated(self.raw_files[0], len(rows)), rows
        number, names = self.numbers_of(rows), to_texts(self.raw_files).cast(pa.string())
        return names.take(to_arrow(number)), rows - np.array(self.first_rows)[number]

    def numbers_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ordinal of the raw file of each row of the shard."""
        return np.searchsorted(np.array(self.first_rows), rows, side="right") - 1

    def row_of(self, raw_file: str, row: int) -> int:
        """Return the row of the shard for a row of one of its raw files."""
        return self.first_rows[self.raw_files.index(raw_file)] + row

    def path_of(self, raw_file: str, run: Mapping[str, Any]) -> Path | None:
        """Return the path that a raw file had when it was read, from the run's `raw_paths`; None if
        unknown."""
        paths = run.get("raw_paths") or [None]
        path = paths[self.raw_files.index(raw_file) % len(paths)]  # a mixture has several passes
        return None if path is None else Path(path)


def described_files(raw: RawPartition, source: DocumentSource) -> dict[str, Any]:
    """Return the rows of each file of a group, and version identifiers of remote files that were
    not read to the end."""
    if not raw.is_group:
        return raw.files[0].described
    files = zip(map(raw.by_path.__getitem__, source.paths), source.num_rows, strict=True)
    return {
        "files": [
            {
                "raw_file": file.key,
                "sha256": file.sha256,
                "num_rows": num_rows,
                **file.described,
            }
            for file, num_rows in files
        ]
    }
