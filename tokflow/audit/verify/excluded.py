"""Proof that no token of the documents that lists name is in an export."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.attributes.config import OWN_KEYS
from tokflow.attributes.stage import tables_of
from tokflow.audit.ancestry import Ancestry
from tokflow.audit.found_documents import documents_with
from tokflow.audit.verify.export import index_problems
from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exclusion.lists import ExclusionList, check_used, find_excluded, read_lists
from tokflow.exclusion.stage import ExcludeConfig, Exclusion
from tokflow.exports import Export
from tokflow.exports.index import scan_index
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.dataset import Dataset
from tokflow.selection.left_out import are_excluded
from tokflow.split.mixed_split import origin_of, own_dataset
from tokflow.split.mixture import dataset_of
from tokflow.store.listed_files import LATEST, resolved
from tokflow.store.manifest import MANIFEST_NAME, Manifest, joined_digest, sealed
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import Unreadable, walk
from tokflow.store.tables import one_array, to_arrow, to_numpy
from tokflow.store.versions import installed_versions
from tokflow.tokens.shard import ROWS_OF_PASS, TokenShard

Document: TypeAlias = tuple[str, str, int]
"""Dataset, raw file and row."""

Place: TypeAlias = tuple[str, int]
"""Raw file and row."""

Shards: TypeAlias = dict[tuple[str, str], TokenShard]
"""Token shards by dataset and raw file."""

Sizes: TypeAlias = dict[tuple[str, str, int, str], int]
"""Tokens of documents by dataset, raw file, row and hash of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The documents that were looked for, in which exports, and those that are there."""

    path: Path
    """The file that has it, in the folder of the dataset."""
    fields: dict[str, Any]

    @property
    def is_proven(self) -> bool:
        """Whether no document is in any export, and the exports are whole."""
        return not (self.fields["held"] or self.fields["problems"])


def prove_excluded(dataset: Dataset, paths: Sequence[Path]) -> Proof:
    """Look in all exports of a dataset, and of the mixtures in its store that take it, for the
    documents that lists name, as `exclude` of the dataset, or of a mixture's sources, looks them
    up; write what is found. `file` and `row` name a document of the newest build; older ones are
    searched for its text.

    Every byte of the exports is compared with their manifests, and the entries of each index with
    the number of tokens: none is of a document that the index does not name. The same store and
    lists give the same bytes.

    Raises: as `read_lists`; ConfigError for a list of which no row names a document;
    MissingOutputError where there is no export, or the store lacks what one was made from.
    """
    config = _config_of(dataset, paths)
    files = tables_of(config.path, dataset, "--excluded")
    exports, ancestry = exports_with(dataset), Ancestry(dataset.known_stages)
    if not exports:
        raise MissingOutputError(
            where=dataset.store.shown(dataset.folder),
            expected=f"an export of {dataset.name}, or of a mixture of it",
            found="none",
            remedy="run `tokflow run` first, or name another store",
        )
    of_exports = [_shards_of(export, ancestry, dataset) for export in exports]
    shards = {of.folder: of for some in of_exports for of in some}
    kept = sorted({name for of in shards.values() for name in of.keep_columns})
    newest = _newest_shards(dataset, exports, of_exports)
    search = _Search(read_lists(files, config.by, kept), config.copies, newest)
    search.check_columns(shards.values())
    held = [_held(*each) for each in zip(exports, map(search.find, of_exports), strict=True)]
    check_used(search.lists, search.unused, "--excluded", dataset.name)
    problems = [str(of) for each in dataset.store.problems(exports) for of in each]
    for export in exports if not problems else ():
        problems += [of for part in Export(export).parts for of in index_problems(export, part)]
    fields = {
        "dataset": dataset.name,
        **_described(search, shards.values(), exports, held),
        "held": [of for each in held for of in each],
        "problems": problems,
    }
    name = joined_digest(of.file.sha256 for of in search.lists)[:16]
    path = dataset.folder / f"excluded-{name}.json"
    dataset.store.write_beside(path, sealed(fields))
    return Proof(path=path, fields=fields)


def _described(
    search: "_Search",
    shards: Collection[TokenShard],
    exports: Sequence[StoredOutput],
    held: Sequence[Sequence[Any]],
) -> dict[str, Any]:
    """Return what was looked for and where, with the digests of all that was read."""
    looked_at = [
        {"export": _name(of), "manifest_sha256": _manifest_sha256(of), "num_held": len(here)}
        for of, here in zip(exports, held, strict=True)
    ]
    return {
        "tokflow": installed_versions()["dagster-tokflow"],
        "lists": [
            {
                "name": of.name,
                "sha256": of.file.sha256,
                "by": of.by,
                "num_rows": len(of.keys),
                "num_unused_rows": len(search.unused[of.name]),
            }
            for of in search.lists
        ],
        "copies": search.copies,
        "num_documents": len(search.sizes),
        "num_tokens": sum(search.sizes.values()),
        "documents_sha256": joined_digest("\t".join(map(str, of)) for of in sorted(search.sizes)),
        "token_shards": {
            "num": len(shards),
            "manifests_sha256": joined_digest(sorted(map(_manifest_sha256, shards))),
        },
        "exports": looked_at,
    }


def _config_of(dataset: Dataset, paths: Sequence[Path]) -> ExcludeConfig:
    """Return how lists are looked up: as `exclude` says or, of a mixture, those of its sources,
    with copies where one of these has them."""
    declared = [of.exclude for of in dataset.sources or [dataset]]
    keys = {of.by for of in declared} - {None}
    return ExcludeConfig(
        path=tuple(str(of.absolute()) for of in paths),
        by=keys.pop() if len(keys) == 1 else None,  # else it is the one that a list has
        copies=any(of.copies for of in declared),
    )


def exports_with(dataset: Dataset) -> list[StoredOutput]:
    """Return the exports in the store of a dataset that are of it, or of a mixture that takes it,
    older builds too. Raises: the error of an export that cannot be read."""
    store = dataset.store
    store.refresh(store.root)
    found = []
    for folder in sorted(store.root.iterdir()) if store.root.is_dir() else ():
        for each in walk(store, folder / EXPORT.path):
            if isinstance(each, Unreadable):
                raise each.error
            if has_documents_of(each.manifest, dataset.name):
                found.append(each)
    return found


def has_documents_of(manifest: Manifest, dataset: str) -> bool:
    """Return whether an output can have documents of a dataset."""
    return dataset in (manifest.dataset, *map(dataset_of, manifest.details.get("mixture", ())))


def _shards_of(export: StoredOutput, ancestry: Ancestry, dataset: Dataset) -> list[TokenShard]:
    """Return the token shards of a dataset, or of the sources of a mixture, that an export was made
    from, each once. Raises: MissingOutputError."""
    found = {of.folder: of for of in map(ancestry.shard, ancestry.parents(export).values())}
    names = {of.name for of in dataset.sources} or {dataset.name}
    return [of for of in found.values() if of.manifest.dataset in names]


def is_latest(export: StoredOutput) -> bool:
    """Return whether `latest` beside an export leads to it."""
    return export.folder.resolve() == resolved(export.folder.parent / LATEST)


def _newest_shards(
    dataset: Dataset, exports: Sequence[StoredOutput], of_exports: Sequence[Sequence[TokenShard]]
) -> Shards:
    """Return the shards of the newest build: those of the exports that `latest` leads to and the
    dataset declares; where it declares none, of those of mixtures, the newest first."""
    latest = [number for number, of in enumerate(exports) if is_latest(of)]
    declared = {dataset.folder / EXPORT.path / name for name in EXPORT.variants(dataset)}
    own = [number for number in latest if exports[number].folder.parent in declared]
    found: Shards = {}
    made_at = [(of.folder / MANIFEST_NAME).stat().st_mtime_ns for of in exports]
    for number in sorted(own or latest, key=lambda number: -made_at[number]):
        for shard in of_exports[number]:
            for key in shard.origins.raw_files:
                found.setdefault((shard.manifest.dataset, key), shard)
    return found


@dataclass
class _Search:
    """Looks up the documents that lists name, in older builds by their texts where a list names
    rows: these are of the newest build."""

    lists: Sequence[ExclusionList]
    copies: bool
    newest: Shards
    sizes: Sizes = field(default_factory=dict)
    """All documents that were found."""
    unused: dict[str, npt.NDArray[np.int64]] = field(init=False)
    """Rows of each list that name none of them, by its name."""
    _found: dict[tuple[Path, ...], Sizes] = field(default_factory=dict)
    _texts: dict[tuple[str, str], dict[Place, bytes]] = field(default_factory=dict)
    """Text hashes of the documents that a list names in the newest build of a dataset."""

    def __post_init__(self) -> None:
        self.unused = {of.name: np.arange(len(of.keys)) for of in self.lists}

    def check_columns(self, shards: Iterable[TokenShard]) -> None:
        """Raise ConfigError where documents do not have what a list names them by."""
        for shard in shards:
            for of in self.lists:
                if of.by not in (*OWN_KEYS, *shard.keep_columns):
                    raise ConfigError(
                        where=f"--excluded: {of.file.path}",
                        expected=f"`{of.by}` of all documents that exports were made from",
                        found=f"none in {shard.stored.shown}",
                        remedy="name them by `text_hash`, or remove old exports by `tokflow gc "
                        "--keep 0`",
                    )

    def find(self, shards: Sequence[TokenShard]) -> Sizes:
        """Return the documents of the token shards of one export that lists name."""
        key = tuple(of.folder for of in shards)
        if key not in self._found:
            self._found[key] = {}
            for name in sorted({of.manifest.dataset for of in shards}):
                own = [of for of in shards if of.manifest.dataset == name]
                each = [self._as_of(own, of) for of in self.lists]
                found = find_excluded(own, [of for of, _ in each], copies=self.copies)
                for shard in own:
                    self._found[key] |= _sizes(shard, Exclusion(found.documents))
                for of, list_rows in each:
                    used = np.delete(list_rows, found.unused[of.name])
                    self.unused[of.name] = np.setdiff1d(self.unused[of.name], used)
            self.sizes |= self._found[key]
        return self._found[key]

    def _as_of(
        self, shards: Sequence[TokenShard], of: ExclusionList
    ) -> tuple[ExclusionList, npt.NDArray[np.int64]]:
        """Return a list with the rows that its documents had in a build of one dataset, and for
        each of its rows the one of the list that it is from.

        Of a raw file that has other tokens there, a document with the same text at its row is the
        one, else all of its raw file with this text, else all of other files with other tokens. A
        row that names nothing in the newest build stays as it is.
        """
        are_newest = [self._are_newest(shard) for shard in shards]
        newest = {key for each in are_newest for key, is_it in each.items() if is_it}
        if of.rows_of_files is None or all(all(each.values()) for each in are_newest):
            return of, np.arange(len(of.keys))
        texts = self._texts_of(of, shards[0].manifest.dataset)
        with_text: dict[bytes, list[Place]] = {}
        for shard, each in zip(shards, are_newest, strict=True):
            found = {} if all(each.values()) else documents_with(shard, set(texts.values()))
            for text, some in found.items():
                with_text.setdefault(text, []).extend(of for of in some if of[0] not in newest)
        places, list_rows, rows_of_files = list[Place](), list[int](), dict[str, list[int]]()
        for file, numbers in of.rows_of_files.items():
            rows = of.keys.take(numbers).to_pylist()
            for list_row, row in zip(numbers.tolist(), rows, strict=True):
                there = [(file, row)]
                if file not in newest and there[0] in texts:
                    every = with_text.get(texts[there[0]], [])
                    in_file = [place for place in every if place[0] == file]
                    there = there if there[0] in every else in_file or every
                for place in there:
                    rows_of_files.setdefault(place[0], []).append(len(places))
                    places.append(place)
                    list_rows.append(list_row)
        as_it_was = replace(
            of,
            keys=pa.array([row for _, row in places], pa.int64()),
            rows_of_files={file: np.array(some) for file, some in rows_of_files.items()},
            reasons=of.reasons.take(pa.array(list_rows, pa.int64())),
        )
        return as_it_was, np.array(list_rows, dtype=np.int64)

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


def _sizes(shard: TokenShard, exclusion: Exclusion) -> Sizes:
    """Return the documents of a shard that are excluded."""
    table = shard.documents(["row", "text_hash", "num_tokens"])
    masks = are_excluded(shard, exclusion.of(shard.origins.raw_files)).values()
    at = np.flatnonzero(np.logical_or.reduce([np.zeros(len(table), dtype=bool), *masks]))
    some = table.take(to_arrow(at))
    files, rows = shard.origins.of_rows(to_numpy(some["row"]))
    hashes = (of.hex() for of in some["text_hash"].to_pylist())
    names = zip(files.to_pylist(), rows.tolist(), hashes, strict=True)
    num_tokens = some["num_tokens"].to_pylist()
    return {(shard.manifest.dataset, *of): n for of, n in zip(names, num_tokens, strict=True)}


def _held(export: StoredOutput, documents: Sizes) -> list[dict[str, Any]]:
    """Return the entries of the index of an export that are of one of some documents."""
    tables = scan_index(export, ["part", "position", "num_tokens", "raw_file", "row"])
    found = entries_of(tables, [of[:3] for of in documents], own_dataset(export.manifest))
    opened = Export(export)
    lengths = {part: opened.of_part(part).sequence_length for part in opened.parts}
    for entry in found:
        length = lengths[entry["part"]]
        entry |= {"export": _name(export)}
        entry |= {"sequence": entry["position"] // length} if length else {}
    return found


def entries_of(
    tables: Iterable[pa.Table], documents: Iterable[Document], dataset: str | None
) -> list[dict[str, Any]]:
    """Return the rows of the index of an export, raw files as dictionaries, that are of one of some
    documents; in order. `dataset`: as `own_dataset`."""
    numbers: dict[tuple[str, str], int] = {}
    wanted = [
        numbers.setdefault((of, file), len(numbers)) * ROWS_OF_PASS + row
        for of, file, row in documents
    ]
    found = []
    for table in tables:
        files = one_array(table["raw_file"])
        origins = (origin_of(of, dataset) for of in files.dictionary.to_pylist())
        number = np.array([numbers.get(of, -1) for of in origins], np.int64)
        keys = number[to_numpy(files.indices)] * ROWS_OF_PASS + to_numpy(table["row"])
        at = np.flatnonzero(np.isin(keys, np.array(wanted, dtype=np.int64)))
        found += table.take(to_arrow(at)).to_pylist()
    return found


def _name(export: StoredOutput) -> str:
    """Return the path of an export in its store."""
    return export.folder.relative_to(export.store.root).as_posix()


def _manifest_sha256(output: StoredOutput | TokenShard) -> str:
    return hashlib.sha256((output.folder / MANIFEST_NAME).read_bytes()).hexdigest()
