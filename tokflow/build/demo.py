"""The demo's raw files: the Python source text that every machine with Python has.

    python -m tokflow.build.demo data/raw/demo

Real text, tens of MB, with no download: the standard library of the Python that runs this, then
the packages installed beside tokflow, until `MAX_BYTES` of text are together.
"""

import argparse
import dataclasses
import hashlib
import io
import json
import platform
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokflow.errors import RawFileError
from tokflow.store.atomic import new_file

NUM_PARTS = 4
"""Raw files, and so partitions: enough to see one rebuilt and the others left alone."""

MAX_BYTES = 60_000_000
"""Text in all parts together, in bytes of UTF-8."""

COLLECTION_KEY = b"tokflow.build.demo"
"""Where each part's parquet metadata says which collection the part belongs to."""

NOT_STDLIB = frozenset({"site-packages", "dist-packages"})
"""Folders inside the standard library's that hold other people's packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One source file."""

    path: str
    """`stdlib/` or `site-packages/`, then the path below that folder, with `/`."""
    content: str
    """The whole file as it is on disk, line ends included, without a byte order mark."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """What all parts hold together."""

    python: str
    """The version of Python whose library this is; another version is collected anew."""
    num_documents: int
    num_bytes: int
    """Text in bytes of UTF-8."""
    num_undecodable: int
    """Source files left out because they are not text in the encoding that they declare."""
    num_repeated: int
    """Source files left out because an earlier one has the same text, so that validation is
    not train once more.
    """
    sha256: str
    """Of every path and text in order: parts with different ones do not belong together."""


def collect(
    folder: Path,
    roots: Mapping[str, Path] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
) -> tuple[Collection, bool]:
    """Write `part-0.parquet` ... into `folder`; return what they hold and whether they are new.

    The parts have the columns `content` and `path` and about equal shares of the text. The
    order is that of `roots`, then of the paths, so the same libraries give the same bytes.
    Each part is written whole or not at all; where all parts are there already and were made
    with this version of Python, nothing is read but their metadata.

    Raises: RawFileError where the roots hold no source file.
    """
    paths = [folder / f"part-{part}.parquet" for part in range(NUM_PARTS)]
    found = _read_collection(paths)
    if found is not None and found.python == platform.python_version():
        return found, False
    documents, collection = gather(roots or python_roots(), max_bytes=max_bytes)
    for path, part in zip(paths, _equal_parts(documents), strict=True):
        _write_part(path, part, collection)
    return collection, True


def python_roots() -> dict[str, Path]:
    """Return the folders of the standard library and of the installed packages."""
    folders = sysconfig.get_paths()
    return {"stdlib": Path(folders["stdlib"]), "site-packages": Path(folders["purelib"])}


def read_sources(roots: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of each `*.py` below `roots`, in sorted order within each root."""
    for prefix, root in roots.items():
        sources = {path.relative_to(root): path for path in root.rglob("*.py") if path.is_file()}
        for relative in sorted(sources, key=Path.as_posix):
            if prefix == "stdlib" and not NOT_STDLIB.isdisjoint(relative.parts):
                continue
            if relative.name.startswith("__editable__"):
                continue  # pip's link to a checkout: differs with the folder that holds it
            yield f"{prefix}/{relative.as_posix()}", sources[relative].read_bytes()


def decode_source(source: bytes) -> str | None:
    """Return the text of a Python file in the encoding it declares; None where it has none.

    As `tokenize.open` decodes it (declaration, byte order mark, UTF-8 without either), but
    with its line ends as they are.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
        text.encode()  # a lone surrogate decodes in some encodings and is no text
    except (SyntaxError, LookupError, UnicodeError):
        return None
    return text


def gather(roots: Mapping[str, Path], *, max_bytes: int) -> tuple[list[Document], Collection]:
    """Read documents until the next one would pass `max_bytes`."""
    documents: list[Document] = []
    seen: set[str] = set()
    digest = hashlib.sha256()
    num_bytes = num_undecodable = num_repeated = 0
    for path, source in read_sources(roots):
        content = decode_source(source)
        if content is None:
            num_undecodable += 1
        elif content in seen:
            num_repeated += 1
        elif num_bytes + len(content.encode()) > max_bytes:
            break
        else:
            seen.add(content)
            documents.append(Document(path=path, content=content))
            digest.update(f"{path}\0{len(content)}\0{content}".encode())
            num_bytes += len(content.encode())
    if not documents:
        raise RawFileError(
            where=", ".join(map(str, roots.values())),
            expected="Python source files",
            found="none that can be read as text",
            remedy="use a Python that has its standard library as files",
        )
    return documents, Collection(
        python=platform.python_version(),
        num_documents=len(documents),
        num_bytes=num_bytes,
        num_undecodable=num_undecodable,
        num_repeated=num_repeated,
        sha256=digest.hexdigest(),
    )


def _equal_parts(documents: Sequence[Document]) -> list[list[Document]]:
    """Divide the documents, in order, into parts of about equally many characters."""
    total = sum(len(document.content) for document in documents)
    parts: list[list[Document]] = [[] for _ in range(NUM_PARTS)]
    start = 0
    for document in documents:
        parts[min(start * NUM_PARTS // max(total, 1), NUM_PARTS - 1)].append(document)
        start += len(document.content)
    return parts


def _write_part(path: Path, documents: Sequence[Document], collection: Collection) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {COLLECTION_KEY: json.dumps(dataclasses.asdict(collection), sort_keys=True)}
    schema = pa.schema([("content", pa.string()), ("path", pa.string())], metadata=metadata)
    rows = [{"content": document.content, "path": document.path} for document in documents]
    table = pa.Table.from_pylist(rows, schema=schema)
    with new_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=1000)


def _read_collection(paths: Sequence[Path]) -> Collection | None:
    """Return the collection that all `paths` belong to; None where one is missing or differs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: set[bytes] = set()
    for path in paths:
        try:
            metadata = pq.read_schema(path).metadata or {}
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        found.add(metadata.get(COLLECTION_KEY, b""))
    if len(found) != 1:
        return None
    try:
        return Collection(**json.loads(found.pop()))
    except (ValueError, TypeError):
        return None  # somebody else's file, or written by another version of this module


def main() -> None:
    """Collect the demo's raw files into the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tokflow.build.demo", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    collection, is_new = collect(folder)
    state = "" if is_new else f"already there for Python {collection.python}: "
    print(  # noqa: T201 (a command says what it did)
        f"{folder}: {state}{NUM_PARTS} files, {collection.num_documents:,} documents, "
        f"{collection.num_bytes / 1e6:.1f} MB of Python source (left out: "
        f"{collection.num_undecodable} that do not decode, {collection.num_repeated} repeated)"
    )


if __name__ == "__main__":
    main()
