"""Draw a batch as nanoGPT's get_batch does: random windows of a memory-mapped file of uint16."""

from tokflow.loaders import Loader, open_rows, open_tokens

for name in ("tinystories", "tinystories_eos"):
    export = f"data/store/{name}/exports/bin/latest"
    for split in ("train", "validation"):
        rows = open_rows(export, part=split, sequence_length=128)
        with Loader(rows.random_windows(seed=1337), batch_size=32) as loader:
            batch = next(loader)  # labels too; torch tensors with arrays="torch"
        x, size = batch["input_ids"], len(open_tokens(export, part=split))
        print(f"{name} {split}: {size:,} tokens, a batch {x.shape}, {(x == 50256).sum()} ends")
