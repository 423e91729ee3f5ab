"""levanter's TreeCache and what it trains from: TokenSeqDataset, of chats MultiturnChatDataset.

Rows are read one batch after another, never the same row twice in a batch: levanter 1.2.dev1644
cuts row 0 short if it is asked for it twice.
"""

import asyncio

import haliax
import jax
import numpy as np
from levanter.data.text import MultiturnChatDataset, TokenSeqDataset, cached_token_count
from levanter.store.cache import SerialCacheWriter, TreeCache
from peer_command import each, run

ROWS_PER_BATCH = 3

EXEMPLARS = {
    "text": {"input_ids": np.zeros(0, dtype=np.int32)},
    "chat": {
        "input_ids": np.zeros(0, dtype=np.int32),
        "assistant_masks": np.zeros(0, dtype=np.int32),
    },
}
"""What levanter's own processors of texts and of chats name as their output."""


def read(folder, part, *, form="text", sequence_length=8):
    """Return the documents, and the examples that levanter makes of them."""
    jax.config.update("jax_platforms", "cpu")
    cache = TreeCache.load(str(folder / part), EXEMPLARS[form])
    rows = [
        row
        for start in range(0, len(cache), ROWS_PER_BATCH)
        for row in cache.get_batch_sync(range(start, min(start + ROWS_PER_BATCH, len(cache))))
    ]
    lengths = [len(row["input_ids"]) for row in rows]
    found = {
        "token_ids": joined(rows, "input_ids"),
        "offsets": np.cumsum([0, *lengths]),
        "num_tokens": np.array(cached_token_count(str(folder / part))),
        "again": joined([cache[number] for number in range(len(cache))], "input_ids"),
    }
    if form == "chat":
        found["loss_mask"] = joined(rows, "assistant_masks")
        return found | chat_examples(cache, sequence_length)
    dataset = TokenSeqDataset(cache, sequence_length)
    return found | {"blocks": np.array(examples(dataset))}


def joined(rows, field):
    return np.concatenate([row[field] for row in rows])


def examples(dataset):
    async def get():
        return await dataset.get_batch(range(await dataset.async_len()))

    return asyncio.run(get())


def chat_examples(cache, sequence_length):
    """Return the loss tokens: each is the label of the one before it."""
    made = examples(MultiturnChatDataset(cache, haliax.Axis("position", sequence_length)))
    sequences = np.array([example.tokens.array for example in made])
    loss_masks = np.array([example.loss_mask.array for example in made])
    return {"loss_tokens": np.roll(sequences, -1, axis=1)[loss_masks.astype(bool)]}


def write(documents, folder, *, form="text"):
    """Write a cache with the writer that needs no cluster."""
    jax.config.update("jax_platforms", "cpu")
    fields = {"input_ids": each(documents)}
    if form == "chat":
        fields["assistant_masks"] = each(documents, "loss_mask")
    fields = {name: [row.astype(np.int32) for row in rows] for name, rows in fields.items()}
    with SerialCacheWriter(str(folder / "train"), EXEMPLARS[form]) as writer:
        for start in range(0, len(fields["input_ids"]), ROWS_PER_BATCH):
            some = slice(start, start + ROWS_PER_BATCH)
            writer.write_batch({name: rows[some] for name, rows in fields.items()})


if __name__ == "__main__":
    run(read=read, write=write)
