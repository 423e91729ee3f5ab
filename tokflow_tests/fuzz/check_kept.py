"""Compare the columns that an export's index keeps of each document with its record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tokflow_tests.fuzz.difference import same
from tokflow_tests.fuzz.model import Documents, RawFile


def check_kept(
    folder: Path,
    config: Mapping[str, Any],
    files: Sequence[RawFile],
    documents: Mapping[str, Documents],
) -> None:
    """Compare each row of the index with the record that its document is of, by `config` of the
    documents; a value that is no text is left alone."""
    names = config.get("keep_columns", ())
    records = {file.key: file.records or () for file in files}
    text = config.get("text", "text")
    is_one = isinstance(text, str) or "join" in config
    num_each = 1 if is_one else len(text)
    for found in pq.read_table(folder / "_tokflow/index.parquet").to_pylist() if names else ():
        key, row = found["raw_file"], found["row"]
        record = row // num_each
        if "transform" in config:
            rows = [row for row, _ in documents[key].accepted]
            record = documents[key].records[rows.index(row)]
        for name in names:
            if (value := (records[key][record] or {}).get(name)) is not None:
                same(f"{folder}: {key}, row {row}: {name}", expected=value, found=found[name])
