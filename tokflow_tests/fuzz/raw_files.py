"""Raw files of random records, good and bad, in every format and compression."""

import bz2
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow_tests.fuzz.chats import CHAT_STARTS, is_chat, random_record
from tokflow_tests.fuzz.model import RawFile
from tokflow_tests.fuzz.texts import random_text

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMATS = ("jsonl", "jsonl", "csv", "tsv", "txt", "parquet", "arrow")

Record = dict[str, str | None] | None

Writer = Callable[[Random, Sequence[str], list[Record], bool], bytes]
"""Writes records, and where there are to be bad ones spoils some of them."""


def random_file(
    random: Random, stem: str, file_format: str, config: Mapping[str, Any], *, has_bad: bool
) -> RawFile:
    """Return a raw file; `stem` is its name without suffixes."""
    columns = config["columns"]
    suffix = {"arrow": random.choice((".arrow", ".feather", ".ipc"))}.get(file_format)
    suffix = suffix or f".{file_format}"
    if file_format == "txt":
        content = _txt(random, has_bad=has_bad)
        data, packed = _compressed(random, content)
        return RawFile(key=stem + suffix + packed, data=data, records=None, content=content)
    num_records = random.choice((0, 1, 1, 2, 3, 5, 8, 13, 30))
    if random.random() < 0.03:
        num_records = 200
    records: list[Record] = [
        random_record(random, config)
        if is_chat(config)
        else {name: random_text(random) for name in columns}
        for _ in range(num_records)
    ]
    written = _WRITERS[file_format](random, columns, records, has_bad)
    if file_format in ("parquet", "arrow"):
        data, packed = written, ""
    else:
        data, packed = _compressed(random, written)
    key = stem + suffix + packed
    return RawFile(key=key, data=data, records=tuple(records), content=b"")


def _compressed(random: Random, content: bytes) -> tuple[bytes, str]:
    """Return the content, compressed as the suffix says; sometimes of two streams."""
    suffix = random.choice(("", "", "", *_COMPRESS))
    if not suffix:
        return content, ""
    cut = random.choice((0, random.randrange(len(content) + 1)))
    streams = [content[:cut], content[cut:]] if cut else [content]
    return b"".join(map(_COMPRESS[suffix], streams)), suffix


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": zstd.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def _txt(random: Random, *, has_bad: bool) -> bytes:
    pieces = [random_text(random).encode() for _ in range(random.choice((0, 1, 2, 6)))]
    if has_bad:
        pieces.insert(random.randrange(len(pieces) + 1), b"x\xff\xfe" + random.randbytes(2))
    joint = random.choice((b"\n", b"\n\n", b"", b"---", b"\r\n"))
    return joint.join(pieces) + random.choice((b"", joint))


def _spoil(random: Random, record: dict[str, str | None]) -> str:
    """Take the text of a column away; return which."""
    column = random.choice(list(record))
    record[column] = None
    return column


def _jsonl(random: Random, columns: Sequence[str], records: list[Record], has_bad: bool) -> bytes:
    lines = [b"\xef\xbb\xbf"] if random.random() < 0.1 else []
    ending = random.choice((b"\n", b"\n", b"\r\n"))
    for number, record in enumerate(records):
        assert record is not None
        if random.random() < 0.05:
            lines.append(random.choice((b"", b" ", b"\t")) + ending)  # takes no row
        is_bad = has_bad and random.random() < 0.3
        if is_bad and random.random() < 0.4:
            records[number] = None
            lines.append(
                random.choice((b'{"', b"[1, 2]", b"5", b"null", b"{]", b"nothing")) + ending
            )
            continue
        replaced = {}
        if is_bad:
            column = _spoil(random, record)
            kinds = ("missing", "null", "number", "list", "utf-8", "surrogate")
            replaced[column] = random.choice(kinds)
        lines.append(_json_line(random, record, replaced) + ending)
    data = b"".join(lines)
    return data.removesuffix(ending) if records and random.random() < 0.3 else data


_BAD_JSON: dict[str, Any] = {"null": None, "number": 5, "list": ["x"], "surrogate": "a\ud800b"}


def _json_line(
    random: Random, record: Mapping[str, str | None], replaced: Mapping[str, str]
) -> bytes:
    fields: dict[str, Any] = {"id": random.randrange(100), "note": "other \u00e9"}
    mark = "UTF-8 THAT IS NONE"
    for column, text in record.items():
        kind = replaced.get(column, "")
        if kind == "missing":
            continue
        value = text if column not in replaced else _BAD_JSON.get(kind, mark)
        if str(text).startswith(CHAT_STARTS) and column not in replaced and random.random() < 0.5:
            value = json.loads(str(text))
        *above, name = column.split(".")
        at = fields
        for key in above:
            at = at.setdefault(key, {})
        at[name] = value
    order = random.sample(list(fields), len(fields))
    is_ascii = random.random() < 0.5 or "surrogate" in replaced.values()
    line = json.dumps({name: fields[name] for name in order}, ensure_ascii=is_ascii)
    return line.encode().replace(mark.encode(), b"a\xe9\xff")


def _delimited(delimiter: str) -> Writer:
    def write(
        random: Random, columns: Sequence[str], records: list[Record], has_bad: bool
    ) -> bytes:
        header = random.sample([*columns, "id"], len(columns) + 1)
        ending = random.choice(("\n", "\r\n"))
        out = bytearray(b"\xef\xbb\xbf" if random.random() < 0.1 else b"")
        out += (delimiter.join(header) + ending).encode()
        there: list[Record] = []
        for number, record in enumerate(records, start=1):
            assert record is not None
            if random.random() < 0.05:
                out += ending.encode()  # an empty line takes no row
            fields = {"id": b"7", **{name: _field(random, record[name]) for name in columns}}
            row = [fields[name] for name in header]
            found: list[Record] = [record]
            if has_bad and random.random() < 0.3:
                if random.random() < 0.5:
                    few = row[:-1] if any(row[:-1]) else [b"few"]
                    opened = [*few, b'"to the end\nof the file']
                    row = random.choice(
                        (few, [*row, b"more"], opened if number == len(records) else few)
                    )
                    # Every line of such a record is one that is none.
                    found = [None] * (delimiter.encode().join(row).count(b"\n") + 1)
                else:
                    row[header.index(_spoil(random, record))] = b"a\xe9\xff"
            there += found
            out += delimiter.encode().join(row) + ending.encode()
        records[:] = there
        return bytes(out.removesuffix(ending.encode()) if random.random() < 0.3 else out)

    def _field(random: Random, text: str | None) -> bytes:
        data = (text or "").encode()
        if random.random() < 0.3 or any(mark in data for mark in f'{delimiter}"\r\n'.encode()):
            return b'"' + data.replace(b'"', b'""') + b'"'
        return data

    return write


def _table(random: Random, names: Sequence[str], records: list[Record], has_bad: bool) -> pa.Table:
    """Return records as columns of random types; a dotted name is a field of a struct."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(len(records)), pa.int32())}
    types = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
             pa.dictionary(pa.int32(), pa.string())]  # fmt: skip
    values: dict[str, list[bytes | None]] = {name: [] for name in names}
    for record in records:
        assert record is not None
        column = _spoil(random, record) if has_bad and random.random() < 0.3 else None
        for name in names:
            text = record[name]
            values[name].append(None if name == column or text is None else text.encode())
    for name in names:
        type_ = random.choice(types)
        if has_bad and random.random() < 0.5:
            type_ = pa.binary()
            values[name] = [b"a\xe9\xff" if v is None and random.random() < 0.5 else v
                            for v in values[name]]  # fmt: skip
        is_binary = pa.types.is_binary(type_) or pa.types.is_large_binary(type_)
        strings = [v if is_binary or v is None else v.decode() for v in values[name]]
        array = pa.array(strings, pa.string() if pa.types.is_dictionary(type_) else type_)
        array = array.dictionary_encode() if pa.types.is_dictionary(type_) else array
        top, *below = name.split(".")
        for field in reversed(below):
            array = pa.StructArray.from_arrays([array], [field])
        columns[top] = array
    return pa.table({name: columns[name] for name in random.sample(list(columns), len(columns))})


def _parquet(random: Random, columns: Sequence[str], records: list[Record], has_bad: bool) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        _table(random, columns, records, has_bad),
        sink,
        row_group_size=random.choice((1, 3, 100)),
        compression=random.choice(("none", "snappy", "zstd")),
        data_page_size=random.choice((64, 1_000_000)),
    )
    return sink.getvalue()


def _arrow(random: Random, columns: Sequence[str], records: list[Record], has_bad: bool) -> bytes:
    sink = io.BytesIO()
    table = _table(random, columns, records, has_bad)
    options = pa.ipc.IpcWriteOptions(
        compression=random.choice((None, "lz4", "zstd")), unify_dictionaries=True
    )
    new = random.choice((pa.ipc.new_file, pa.ipc.new_stream))
    with new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=random.choice((1, 4, 1000)))
    return sink.getvalue()


_WRITERS: dict[str, Writer] = {
    "jsonl": _jsonl,
    "csv": _delimited(","),
    "tsv": _delimited("\t"),
    "parquet": _parquet,
    "arrow": _arrow,
}
