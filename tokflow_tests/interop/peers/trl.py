"""TRL's packer, and the collator that makes padding-free batches of what is packed."""

import datasets
import numpy as np
from peer_command import each, run
from trl import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

datasets.disable_progress_bars()


def read(folder, part, rows_per_batch=3, pad_id=0):
    """Load a part and collate it; return the batches end to end, and the rows as they are."""
    dataset = datasets.load_from_disk(str(folder))[part]
    collate = DataCollatorForLanguageModeling(pad_token_id=pad_id, padding_free=True)
    rows = [*dataset]
    batches = [
        collate(rows[start : start + rows_per_batch])
        for start in range(0, len(rows), rows_per_batch)
    ]
    arrays = {
        name: np.concatenate([batch[name].numpy().reshape(-1) for batch in batches])
        for name in ("input_ids", "labels", "position_ids")
    }
    lengths = [np.diff(batch["cu_seq_lens_q"].numpy()) for batch in batches]
    return {**arrays, "cu_seq_lens": np.concatenate(lengths), "num_rows": np.array(len(rows))}


def write(documents, folder, sequence_length, part="train", strategy="bfd_split"):
    """Pack documents and save the rows."""
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    rows = [token_ids.astype(np.int32) for token_ids in each(documents)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows}, features=features)
    packed = pack_dataset(dataset, sequence_length, strategy)
    datasets.DatasetDict({part: packed}).save_to_disk(str(folder))


if __name__ == "__main__":
    run(read=read, write=write)
