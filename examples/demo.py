"""The demo's raw files: the Python source text that every machine with Python has.

    python -m examples.demo data/raw/demo

Real text, tens of MB, with no download: the standard library of the Python that runs this, then
the packages installed beside tokflow, until `MAX_BYTES` of text are together.
"""

import argparse
import io
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUM_PARTS = 4
"""Raw files, and so partitions: enough to see one rebuilt and the others left alone."""

MAX_BYTES = 60_000_000
"""Text in all parts together, in bytes of UTF-8."""

NOT_STDLIB = frozenset({"site-packages", "dist-packages"})
"""Folders inside the standard library's that hold other people's packages."""


def collect(
    folder: Path,
    roots: Mapping[str, Path] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
) -> Counter[str] | None:
    """Write `part-0.parquet` ... into `folder`; return counts, or None where all are there already.

    The parts have the columns `content` and `path` and about equal shares of the text. The
    order is that of `roots`, then of the paths, so the same libraries give the same bytes.
    Each part is written whole or not at all. Counted are `num_documents`, their `num_bytes`, and
    what is left out: `num_undecodable` files that are not text in the encoding that they declare,
    and `num_repeated` with the text of an earlier one, so that validation is not train once more.

    Raises: FileNotFoundError where the roots hold no source file.
    """
    paths = [folder / f"part-{part}.parquet" for part in range(NUM_PARTS)]
    if all(path.is_file() for path in paths):
        return None
    documents, counts = gather(roots or python_roots(), max_bytes=max_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    for path, part in zip(paths, _equal_parts(documents), strict=True):
        _write_part(path, part)
    return counts


def python_roots() -> dict[str, Path]:
    """Return the folders of the standard library and of the installed packages."""
    folders = sysconfig.get_paths()
    return {"stdlib": Path(folders["stdlib"]), "site-packages": Path(folders["purelib"])}


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


def gather(roots: Mapping[str, Path], *, max_bytes: int) -> tuple[dict[str, str], Counter[str]]:
    """Return the path of each text, until the next one would pass `max_bytes`, and the counts."""
    paths: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for path, source in read_sources(roots):
        content = decode_source(source)
        if content is None:
            counts["num_undecodable"] += 1
        elif content in paths:
            counts["num_repeated"] += 1
        elif counts["num_bytes"] + len(content.encode()) > max_bytes:
            break
        else:
            paths[content] = path
            counts["num_documents"] += 1
            counts["num_bytes"] += len(content.encode())
    if not paths:
        raise FileNotFoundError(
            f"{', '.join(map(str, roots.values()))}: expected Python source files, found none that "
            "can be read as text; use a Python that has its standard library as files"
        )
    return paths, counts


def _equal_parts(paths: Mapping[str, str]) -> list[list[dict[str, str]]]:
    """Divide the documents, in order, into parts of about equally many characters."""
    total = max(sum(map(len, paths)), 1)
    parts: list[list[dict[str, str]]] = [[] for _ in range(NUM_PARTS)]
    start = 0
    for content, path in paths.items():
        part = min(start * NUM_PARTS // total, NUM_PARTS - 1)
        parts[part].append({"content": content, "path": path})
        start += len(content)
    return parts


def _write_part(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    schema = pa.schema([("content", pa.string()), ("path", pa.string())])
    temporary = path.with_suffix(".temporary")
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, temporary, compression="zstd", row_group_size=1000)
    temporary.replace(path)


def main() -> None:
    """Collect the demo's raw files into the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    counts = collect(folder)
    if counts is None:
        print(f"{folder}: {NUM_PARTS} files, already there")
        return
    print(
        f"{folder}: {NUM_PARTS} files, {counts['num_documents']:,} documents, "
        f"{counts['num_bytes'] / 1e6:.1f} MB of Python source (left out: "
        f"{counts['num_undecodable']} that do not decode, {counts['num_repeated']} repeated)"
    )


if __name__ == "__main__":
    main()
