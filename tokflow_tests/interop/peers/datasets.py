"""Hugging Face datasets: folders on disk, files by their builders, and tiktoken through map; and
DuckDB and polars, which read the same files by a pattern.
"""

import json
import tempfile
from itertools import pairwise

import datasets
import duckdb
import numpy as np
import polars
import pyarrow as pa
from peer_command import run

datasets.disable_progress_bars()

OF_POLARS = {
    ".parquet": polars.read_parquet,
    ".arrow": polars.read_ipc,
    ".jsonl": polars.read_ndjson,
}


def read(folder, part, how="disk", files=None):
    """Read a part.

    how: disk is load_from_disk, folder is load_dataset of the folder alone, duckdb and polars
    take the pattern that `files` has for the part, any other is the name of a builder, with
    `files` by part (patterns) or, without, all that it finds in the folder.
    """
    if how in ("duckdb", "polars"):
        pattern = folder / files[part]
        if how == "duckdb":
            table = duckdb.sql(f"FROM '{pattern}'").to_arrow_table()
        else:
            table = OF_POLARS[pattern.suffix](pattern).to_arrow()
        return columns_of({name: table[name].to_pylist() for name in table.column_names})
    with tempfile.TemporaryDirectory() as cache:
        if how == "disk":
            found = datasets.load_from_disk(str(folder))
        elif how == "folder":
            found = datasets.load_dataset(str(folder), cache_dir=cache)
        else:
            given = {name: str(folder / pattern) for name, pattern in (files or {}).items()}
            where = {"data_files": given} if given else {"data_dir": str(folder)}
            found = datasets.load_dataset(how, cache_dir=cache, **where)
        dataset = found[part]
        arrays = {
            "parts": np.array([*found]),
            "split": np.array(str(dataset.split)),
            "features": np.array(json.dumps(dataset.features.to_dict())),
            "num_rows": np.array(len(dataset)),
        }
        rows = dataset.with_format("numpy")
        return arrays | columns_of({name: [*rows[name]] for name in dataset.column_names})


def columns_of(columns):
    """Return the lists of each column end to end, and as `<name>.lengths` how long each is."""
    arrays = {}
    for name, lists in columns.items():
        arrays[name] = np.concatenate([np.zeros(0, dtype=np.int64), *lists])
        arrays[f"{name}.lengths"] = np.array([*map(len, lists)])
    return arrays


def write(documents, folder, how="save", **options):
    {"save": save, "map": tokenize}[how](documents, folder, **options)


def save(documents, folder, columns, feature_type="List", **options):
    """Save rows: for each part and column, `<part>.<column>` and `<part>.<column>.lengths`."""
    saved = {}
    for part, types in columns.items():
        table = pa.table(
            {
                name: pa.ListArray.from_arrays(
                    np.cumsum([0, *documents[f"{part}.{name}.lengths"]], dtype=np.int32),
                    pa.array(documents[f"{part}.{name}"], type=dtype),
                )
                for name, dtype in types.items()
            }
        )
        saved[part] = datasets.Dataset(table, split=datasets.NamedSplit(part))
    datasets.DatasetDict(saved).save_to_disk(str(folder), **options)


def tokenize(documents, folder, encoding=None):
    """Tokenize as most projects do, EOS behind each document; save tokens end to end.

    encoding: tiktoken's; without one a token is a byte of UTF-8, and 256 is EOS.
    """
    utf8, edges = documents["utf8"].tobytes(), documents["edges"].tolist()
    texts = [utf8[start:stop].decode() for start, stop in pairwise(edges)]
    if encoding is None:
        encode, eos = lambda text: [*text.encode()], 256
    else:
        import tiktoken

        tokenizer = tiktoken.get_encoding(encoding)
        encode, eos = tokenizer.encode_ordinary, tokenizer.eot_token

    def of_document(document):
        return {"ids": [*encode(document["text"]), eos]}

    with tempfile.TemporaryDirectory() as cache:
        dataset = datasets.Dataset.from_dict({"text": texts})
        mapped = dataset.map(
            of_document, remove_columns=["text"], cache_file_name=f"{cache}/mapped.arrow"
        )
        ids = mapped.with_format("numpy")["ids"]
        lengths = [len(document) for document in ids]
        np.save(folder / "token_ids.npy", np.concatenate([*ids]).astype(np.int64))
        np.save(folder / "offsets.npy", np.cumsum([0, *lengths]))


if __name__ == "__main__":
    run(read=read, write=write)
