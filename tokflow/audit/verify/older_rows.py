"""Rows that documents, which lists name by the rows of the newest build, had in older ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.tables import keys_of
from tokflow.exclusion.lists import ExclusionList, find_excluded
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

Shards: TypeAlias = Mapping[tuple[str, str], TokenShard]
"""Token shards by dataset and raw file."""

Place: TypeAlias = tuple[str, int]
"""Raw file and row."""


@dataclass
class OlderRows:
    """Finds in older builds, by its text, what rows name in the newest one."""

    newest: Shards
    _texts: dict[tuple[str, str], dict[Place, bytes]] = field(default_factory=dict)
    """Text hashes of the documents that a list names in the newest build of a dataset."""

    def as_of(
        self, shards: Sequence[TokenShard], of: ExclusionList
    ) -> tuple[ExclusionList, npt.NDArray[np.int64]]:
        """Return a list with the rows that its documents had in a build of one dataset, and for
        each of its rows the one of the list that it is from.

        Of a raw file that has other tokens there, a document with the same text at its row is the
        one, else all of its raw file with this text, else all of other files with other tokens. A
        row that names nothing in the newest build stays as it is.
        """
        older = [shard for shard in shards if not all(self._are_newest(shard).values())]
        if of.rows_of_files is None or not older:
            return of, np.arange(len(of.keys))
        newest = {key for each in shards for key, is_it in self._are_newest(each).items() if is_it}
        texts = self._texts_of(of, shards[0].manifest.dataset)
        with_text = self._places(older, set(texts.values()))
        places, list_rows = list[Place](), list[int]()
        for file, some in of.rows_of_files.items():
            for list_row, row in zip(some.tolist(), of.keys.take(some).to_pylist(), strict=True):
                there = [(file, row)]
                if file not in newest and there[0] in texts:
                    every = with_text.get(texts[there[0]], [])
                    in_file = [place for place in every if place[0] == file]
                    there = there if there[0] in every else in_file or every
                places += there
                list_rows += [list_row] * len(there)
        rows_of_files: dict[str, list[int]] = {}
        for number, (file, _) in enumerate(places):
            rows_of_files.setdefault(file, []).append(number)
        found = replace(
            of,
            keys=pa.array([row for _, row in places], pa.int64()),
            rows_of_files={file: np.array(some) for file, some in rows_of_files.items()},
            reasons=of.reasons.take(pa.array(list_rows, pa.int64())),
        )
        return found, np.array(list_rows, dtype=np.int64)

    def _are_newest(self, shard: TokenShard) -> dict[str, bool]:
        """Return for each raw file of a shard whether its newest tokens are these."""
        name, keys = shard.manifest.dataset, shard.origins.raw_files
        newest = {key: self.newest.get((name, key)) for key in keys}
        return {key: of is not None and of.folder == shard.folder for key, of in newest.items()}

    def _texts_of(self, of: ExclusionList, dataset: str) -> dict[Place, bytes]:
        if (key := (of.name, dataset)) not in self._texts:
            own = {each.folder: each for (name, _), each in self.newest.items() if name == dataset}
            self._texts[key] = {
                (found["raw_file"], found["row"]): found["text_hash"]
                for shard in own.values()
                for found in find_excluded([shard], [of], copies=False).documents.to_pylist()
                if self._are_newest(shard)[found["raw_file"]]
            }
        return self._texts[key]

    def _places(
        self, shards: Sequence[TokenShard], texts: Collection[bytes]
    ) -> dict[bytes, list[Place]]:
        """Return the documents that have one of some texts in raw files with other tokens."""
        found: dict[bytes, list[Place]] = {}
        wanted = pa.array([*texts], pa.binary(16))
        for shard in shards:
            is_one = to_numpy(pc.is_in(keys_of(shard, "text_hash"), value_set=wanted))
            at = to_arrow(np.flatnonzero(is_one))
            some = shard.documents(["row", "text_hash"]).take(at)
            files, rows = shard.origins.of_rows(to_numpy(some["row"]))
            each = zip(files.to_pylist(), rows.tolist(), some["text_hash"].to_pylist(), strict=True)
            are_newest = self._are_newest(shard)
            for file, row, text in each:
                if not are_newest[file]:
                    found.setdefault(text, []).append((file, row))
        return found
