"""Show what TRL and axolotl train on: the rows of each, and the labels of the first chat."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

store = Path("data/store/chats")
[file, *_] = store.glob("tokenizer/*/tokenizer.json")
tokenizer = Tokenizer.from_file(str(file))

folder = store / "exports/trl/latest/train"  # datasets.load_from_disk gives the same columns
[lengths] = [pa.ipc.open_stream(of).read_all()["seq_lengths"] for of in folder.glob("data-*")]
print(f"trl: {len(lengths)} rows of {sum(map(len, lengths))} chats")

files = sorted((store / "exports/axolotl/latest").glob("train-*.parquet"))
chats = [labels for path in files for labels in pq.read_table(path)["labels"].to_pylist()]
print(f"axolotl: {len(chats)} rows of one chat, the longest {max(map(len, chats))}")

said = [token for token in chats[0] if token != -100]
print(f"supervised: {tokenizer.decode(said, skip_special_tokens=False)!r}")
