"""OLMo-core's NumpyFSLDataset and NumpyPackedFSLDataset; it has no writer that runs by itself.

read gives token ids and label mask of the first, file after file, as rows of `sequence_length`,
and of the second every document of every instance, sorted by its tokens, with offsets.
`from_lines`: boundaries are taken from the .csv.gz.
"""

import tempfile

import numpy as np
from olmo_core.data.numpy_dataset import NumpyFSLDataset, NumpyPackedFSLDataset
from olmo_core.data.types import LongDocStrategy
from peer_command import run


def read(folder, part, *, dtype, sequence_length, vocab_size, eos_id, from_lines=False):
    paths = sorted((folder / part).glob("part-*.npy"))
    masks = sorted((folder / part).glob("labels_mask-*.npy")) or None
    settings = {
        "sequence_length": sequence_length,
        "pad_token_id": vocab_size,
        "eos_token_id": eos_id,
        "vocab_size": vocab_size + 1,
        "dtype": getattr(np, dtype),
        "label_mask_paths": masks,
        "generate_doc_lengths": True,
    }
    whole = NumpyFSLDataset(*paths, **settings)
    packed = NumpyPackedFSLDataset(
        *paths,
        **settings,
        long_doc_strategy=LongDocStrategy.fragment,
        use_array_if_local=False if from_lines else None,
    )
    with tempfile.TemporaryDirectory() as temporary:
        for dataset in (whole, packed):
            dataset.work_dir = temporary
            dataset.prepare()
        rows = [whole[ordinal] for ordinal in range(len(whole))]
        instances = [packed[ordinal] for ordinal in range(len(packed))]
    found = {
        "blocks": _stacked([row["input_ids"].numpy() for row in rows], sequence_length),
        **_documents(instances, pad_id=vocab_size),
    }
    if masks:
        found["label_mask"] = _stacked([row["label_mask"].numpy() for row in rows], sequence_length)
    return found


def _documents(instances, *, pad_id):
    documents, masks = [], []
    for instance in instances:
        is_token = instance["input_ids"] != pad_id
        ends = np.cumsum(instance["doc_lens"].numpy())
        ends = ends[ends <= int(is_token.sum())]
        documents += np.split(instance["input_ids"][is_token].numpy(), ends[:-1])
        masks += np.split(instance["label_mask"][is_token].numpy(), ends[:-1])
    pairs = sorted((d.tolist(), mask.tolist()) for d, mask in zip(documents, masks, strict=True))
    documents, masks = zip(*pairs, strict=True)
    return {
        "token_ids": np.concatenate(documents),
        "loss_mask": np.concatenate(masks),
        "offsets": np.cumsum([0, *map(len, documents)]),
    }


def _stacked(rows, length):
    return np.array(rows).reshape(-1, length)


if __name__ == "__main__":
    run(read=read)
