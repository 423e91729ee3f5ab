"""torchtitan: HuggingFaceTextDataset in its ParallelAwareDataloader, of texts that are a row."""

from pathlib import Path

from datasets import load_dataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataset

from benchmarks.loader_peers.command import Resumed, run

SEED = 1


class Digits:
    """A tokenizer of bytes with an EOS, so that inputs of a document are its digits."""

    def encode(self, text, *, add_bos, add_eos):
        return [*text.encode(), 256]


def load(path):
    files = sorted(map(str, Path(path).glob("*/*.jsonl")))
    return load_dataset("json", data_files=files, split="train").shuffle(seed=SEED)


def ranks(request):
    """Return ParallelAwareDataloader of one rank; a checkpoint holds the states of all ranks."""
    DATASETS["ids"] = DatasetConfig(
        path=str(Path(request.folder).parent / "raw"),
        loader=load,
        sample_processor=lambda sample: sample["text"],
    )
    dataset = HuggingFaceTextDataset(
        "ids", None, Digits(), request.sequence_length, request.rank, request.world_size
    )
    loader = ParallelAwareDataloader(
        dataset,
        dp_rank=request.rank,
        dp_world_size=request.world_size,
        batch_size=request.rank_batch_size,
        num_workers=request.workers,
    )
    return Resumed(request, loader, lambda batch: batch[0]["input"])


if __name__ == "__main__":
    run(resume={"ParallelAwareDataloader": ranks})
