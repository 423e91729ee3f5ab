"""Trainers' own readers of chats: what they predict with a loss, and what attends to what.

Each returns the tokens of all documents end to end, `loss`, 1 where a token is predicted with a
loss from the one before it in its document, and `lengths`, how many tokens attend to each other.
"""

import os
import sys
import types
from itertools import pairwise

os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"

import datasets
import numpy as np
import torch
from peer_command import run

datasets.disable_progress_bars()

NO_LABEL = -100

PAD = 2**20
"""An id that no token has."""


def found(token_ids, loss, edges):
    """Return a document for each two edges; the first token of one has no loss."""
    is_loss = np.asarray(loss, dtype=np.int64).copy()
    edges = np.unique(edges)
    assert not is_loss[edges[:-1]].any(), "a loss across documents"
    return {"token_ids": np.asarray(token_ids), "loss": is_loss, "lengths": np.diff(edges)}


def joined(batches):
    return {name: np.concatenate([of[name] for of in batches]) for name in batches[0]}


def read_trl(folder, part, tokenizer):
    """SFTTrainer with rows that are packed already, as its evaluation goes through them."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    rows = datasets.load_from_disk(str(folder))[part]
    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads))
    config = SFTConfig(
        output_dir=str(folder / "trl"),
        padding_free=True,
        packing=False,
        max_length=None,
        per_device_eval_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = SFTTrainer(
        model, config, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer
    )
    batches = []
    for batch in trainer.get_eval_dataloader():
        [labels], [token_ids] = batch["labels"].tolist(), batch["input_ids"].tolist()
        loss = np.array(labels) != NO_LABEL
        batches.append(found(token_ids, loss, batch["cu_seq_lens_q"].numpy()))
        assert_same_alone(model, batch, batches[-1])
    return joined(batches)


def assert_same_alone(model, batch, documents):
    """A model computes of packed documents what it computes of each alone."""
    with torch.no_grad():
        packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[0]
        edges = np.cumsum([0, *documents["lengths"]])
        for first, last in pairwise(edges):
            alone = model(input_ids=batch["input_ids"][:, first:last]).logits[0]
            torch.testing.assert_close(packed[first:last], alone, atol=1e-5, rtol=1e-4)


def read_axolotl(folder, part, sequence_length):
    """axolotl's packing of rows that are tokenized already: `sample_packing: true`."""
    sys.modules["posthog"] = types.ModuleType("posthog")  # its telemetry
    from axolotl.monkeypatch.utils import get_cu_seqlens_from_pos_ids, get_unpad_data
    from axolotl.utils.collators import V2BatchSamplerDataCollatorForSeq2Seq
    from axolotl.utils.data.shared import load_dataset_with_config
    from axolotl.utils.data.wrappers import get_dataset_wrapper
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.samplers import MultipackBatchSampler, get_dataset_lengths
    from axolotl.utils.trainer import process_datasets_for_packing
    from torch.utils.data import SequentialSampler

    config = DictDefault({"sample_packing": True, "sequence_len": sequence_length})
    declared = DictDefault({"path": str(folder), "split": part, "type": None})
    rows = load_dataset_with_config(declared, use_auth_token=False)
    taken, _ = get_dataset_wrapper(declared, None, config, None, rows)
    assert taken is rows
    rows, _ = process_datasets_for_packing(config, rows, None)
    sampler = MultipackBatchSampler(
        SequentialSampler(rows),
        batch_size=1,
        batch_max_len=sequence_length,
        lengths=get_dataset_lengths(rows),
        bin_size=100,
        drop_last=False,
        sequential=True,
        num_processes=1,
    )
    no_tokenizer = types.SimpleNamespace(padding_side="right", pad=lambda of, **_: of[0])
    collate = V2BatchSamplerDataCollatorForSeq2Seq(no_tokenizer)
    batches = []
    for batch in sampler:
        packed = collate([[rows[number] for number in row] for row in batch])
        positions = torch.tensor(packed["position_ids"])
        [edges], _ = get_cu_seqlens_from_pos_ids(positions)
        masks = torch.tensor(packed["attention_mask"])[None]
        assert get_unpad_data(masks)[1].tolist() == edges.tolist()
        loss = packed["labels"] != NO_LABEL
        batches.append(found(packed["input_ids"], loss, edges.numpy()))
    return joined(batches)


def read_torchtune(folder, part, sequence_length):
    """torchtune's PackedDataset of the rows, its collator, and the shift of its recipes."""
    from torchtune.data import padded_collate_packed
    from torchtune.datasets import PackedDataset

    files = sorted(map(str, folder.glob(f"{part}-*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train")
    packs = PackedDataset(rows, max_seq_len=sequence_length, padding_idx=PAD)
    batches = []
    for pack in packs:
        batch = padded_collate_packed([pack])
        [tokens], [labels], [mask] = (batch[name].numpy() for name in ("tokens", "labels", "mask"))
        is_token = tokens != PAD
        starts = np.flatnonzero(~np.append(False, mask.diagonal(-1)) & is_token)
        assert mask.sum() == sum(n * (n + 1) // 2 for n in pack["seq_lens"].tolist())
        loss = (labels != NO_LABEL)[is_token]
        batches.append(found(tokens[is_token], loss, [*starts, is_token.sum()]))
    return joined(batches)


def read_bridge(folder, part, sequence_length, eos_id):
    """Megatron-Bridge's dataset of packed parquet, and its collator."""
    import megatron

    # Without those __init__ and annotations that import all of Megatron, and Transformer Engine.
    for name in ("bridge", "bridge.data", "bridge.training", "bridge.training.tokenizers"):
        folders = [f"{path}/{name.replace('.', '/')}" for path in megatron.__path__]
        stand_in(f"megatron.{name}", __path__=folders)
    stand_in("megatron.bridge.training.tokenizers.tokenizer", MegatronTokenizer=object)
    stand_in("megatron.bridge.utils.common_utils", get_local_rank_preinit=int)
    from megatron.bridge.data.packing import PackedSequenceSpecs
    from megatron.bridge.data.packing.parquet import GPTSFTPackedParquetDataset

    files = f"{folder}/{part}-*.parquet"
    specs = PackedSequenceSpecs(packed_sequence_size=sequence_length, packed_train_data_path=files)
    packed = GPTSFTPackedParquetDataset(
        specs.packed_train_data_path,
        types.SimpleNamespace(eos_id=eos_id, eod=eos_id),
        max_seq_length=sequence_length,
        pad_seq_length_to_mult=1,
        prompt_template="{input} {output}",  # this and the next two are asked for and not used
        label_key="output",
        truncation_field="input",
    )
    batches = []
    for number in range(len(packed)):
        row = packed[number]
        starts = row["seq_boundaries"][:-1]
        packed.validate_row(number, row["input_ids"], row["loss_mask"], starts)
        batch = packed.collate_fn([row])
        [tokens], [labels], [loss], [edges] = (
            batch[name].numpy() for name in ("tokens", "labels", "loss_mask", "cu_seqlens_q")
        )
        for first, last in pairwise(edges):
            ids, is_loss = [*tokens[first:last], labels[last - 1]], [0, *loss[first:last]]
            batches.append(found(ids, is_loss, [0, len(ids)]))
    return joined(batches)


def stand_in(name, **names):
    """Put a module in the place of one that imports too much."""
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)


if __name__ == "__main__":
    readers = {
        "axolotl": read_axolotl,
        "megatron-bridge": read_bridge,
        "torchtune": read_torchtune,
        "trl": read_trl,
    }
    run(read=lambda folder, part, trainer, **options: readers[trainer](folder, part, **options))
