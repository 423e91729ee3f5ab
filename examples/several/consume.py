"""Read rows, decode them and count them: a document in each, or several, told by segment_ids."""

from pathlib import Path

import tiktoken
import tokenizers

from tokflow.loaders import Loader, open_rows

for store, name in (("store", "articles"), ("store_of_code", "code"), ("store", "both")):
    folder = Path("data", store, name)
    rows = open_rows(folder / "exports/parquet/latest", part="train")
    tokens = documents = 0
    with Loader(rows, batch_size=64, num_epochs=1) as loader:
        for batch in loader:
            tokens += (batch["segment_ids"] > 0).sum()  # 0 is padding
            documents += batch["segment_ids"].max(axis=1).sum()
    print(f"{name}: {len(rows)} rows, {tokens} tokens, {documents} segments")
    decode = tiktoken.get_encoding("gpt2").decode
    for own in folder.glob("tokenizer/*/tokenizer.json"):  # it was trained
        decode = tokenizers.Tokenizer.from_file(str(own)).decode
    print(f"    {decode(rows[0]['input_ids'][:20].tolist())!r}")
