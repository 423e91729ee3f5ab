"""Read rows, decode them and check them: a document in each, or several, told by segment_ids."""

from pathlib import Path

import pyarrow.dataset as ds
import tiktoken
import tokenizers

for store, name in (("store", "articles"), ("store_of_code", "code"), ("store", "both")):
    folder = Path("data", store, name)
    rows = ds.dataset(sorted(folder.glob("exports/parquet/latest/train-*.parquet"))).to_table()
    ids, masks, segments = (
        rows[column].to_pylist() for column in ("input_ids", "attention_mask", "segment_ids")
    )
    assert all(len(row) == len(mask) <= 2048 for row, mask in zip(ids, masks, strict=True))
    [*own] = folder.glob("tokenizer/*/tokenizer.json")
    gpt2 = tiktoken.get_encoding("gpt2")
    decode = tokenizers.Tokenizer.from_file(str(own[0])).decode if name == "code" else gpt2.decode
    tokens, documents = sum(map(sum, masks)), sum(map(max, segments))
    print(f"{name}: {len(ids)} rows, {tokens} tokens, {documents} segments")
    print(f"    {decode(ids[0])[:60]!r}")
