"""The dataloader of docs/loaders.md is one of torchtitan's, and its checkpoints go on anywhere."""

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint
from torchtitan.components.dataloader import BaseDataLoader

from tokflow.loaders.samples import with_cu_seqlens
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.loaders.documentation import run_sections
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import build, tokenize

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("torchtitan")
    return {
        "folder": folder,
        **run_sections(folder, "Rows", "Batches, ranks and resume", "torchtitan"),
    }


def dataloader(code: dict[str, Any], *, rank: int = 0, world_size: int = 1, **options: Any) -> Any:
    """Return the dataloader that torchtitan's Trainer builds, with all that it gives."""
    path = code["folder"] / "data/store/web/exports/bin/latest"
    config = code["TokflowDataLoader"].Config(dataset_path=str(path), **options)
    return config.build(
        dp_rank=rank,
        dp_world_size=world_size,
        tokenizer=None,
        seq_len=16,
        local_batch_size=6 // world_size,
        snapshot_every_n_steps=1,
    )


def in_turn(ranks: list[Any], *, num_batches: int) -> list[torch.Tensor]:
    """Return the labels of the next batches, of one rank after another."""
    batches = zip(*(islice(rank, num_batches) for rank in ranks), strict=True)
    return [labels for of_ranks in batches for _, labels in of_ranks]


def test_torchtitan_gets_inputs_and_labels(code: dict[str, Any]):
    found = dataloader(code)

    inputs, labels = next(iter(found))

    expected = found.loader.samples.gather(np.arange(6))
    assert isinstance(found, BaseDataLoader)
    assert inputs["input"].dtype == labels.dtype == torch.int64
    assert inputs["input"].tolist() == expected["input_ids"].tolist()
    assert labels.tolist() == expected["labels"].tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torchtitan imports
def test_torchtitan_learns_of_chats_what_is_meant_and_attends_within_them(
    code: dict[str, Any], tmp_path: Path
):
    from torchtitan.models.common.attention import create_varlen_metadata_for_document

    packing = {"strategy": "best_fit", "sequence_length": 128}
    preset = [{"preset": "torchtitan"}]
    dataset = chat_dataset(tmp_path, CHATS * 5, packing=packing, exports=preset)
    config = code["TokflowDataLoader"].Config(
        dataset_path=str(build(dataset).export("torchtitan").folder)
    )
    sizes = {"dp_rank": 0, "dp_world_size": 1, "seq_len": 128, "local_batch_size": 4}
    found = config.build(**sizes, tokenizer=None)

    inputs, labels = next(iter(found))

    batch = with_cu_seqlens(found.loader.samples.gather(np.arange(4)))
    edges, is_padding = batch["cu_seqlens"], batch["segment_ids"].reshape(-1) == 0
    # To torchtitan each token of padding is a document.
    of_torchtitan = create_varlen_metadata_for_document(inputs["positions"]).cu_seq_q.numpy()
    assert of_torchtitan.tolist() == np.union1d(edges, np.flatnonzero(is_padding)).tolist()
    tokens, losses = inputs["input"].reshape(-1), labels.reshape(-1) != -100
    learnt = {
        tuple(tokens[first:last].tolist()): losses[first:last].tolist()
        for first, last in pairwise(edges.tolist())
        if not is_padding[first]
    }
    meant = {
        tuple(ids): [*map(bool, mask[1:]), False] for ids, mask in documents_of(tokenize(dataset))
    }
    # The last token of a row is a label alone.
    meant |= {ids[:-1]: loss[:-1] for ids, loss in meant.items()}
    assert learnt == {ids: meant[ids] for ids in learnt}
    assert len(learnt) > 2
    assert not losses[torch.from_numpy(is_padding)].any()


def test_a_checkpoint_goes_on_with_another_number_of_ranks(code: dict[str, Any], tmp_path: Path):
    first = [dataloader(code, rank=rank, world_size=2) for rank in range(2)]
    found = in_turn(first, num_batches=3)
    checkpoint.save({"dataloader": first[0]}, checkpoint_id=tmp_path)

    second = [dataloader(code, rank=rank, world_size=3) for rank in range(3)]
    for rank in second:
        checkpoint.load({"dataloader": rank}, checkpoint_id=tmp_path)
    found += in_turn(second, num_batches=3)

    expected = first[0].loader.samples.gather(np.arange(36))
    assert torch.cat(found).tolist() == expected["labels"].tolist()


def test_samples_skipped_before_a_checkpoint_are_skipped_behind_it(
    code: dict[str, Any], tmp_path: Path
):
    first, second = dataloader(code), dataloader(code)
    first.loader.skip(range(8, 20))
    next(iter(first))
    checkpoint.save({"dataloader": first}, checkpoint_id=tmp_path)
    checkpoint.load({"dataloader": second}, checkpoint_id=tmp_path)

    _, labels = next(iter(second))

    expected = first.loader.samples.gather(np.array([6, 7, 20, 21, 22, 23]))
    assert labels.tolist() == expected["labels"].tolist()


def test_a_checkpoint_of_another_seed_is_refused(code: dict[str, Any], tmp_path: Path):
    checkpoint.save({"dataloader": dataloader(code, seed=2)}, checkpoint_id=tmp_path)

    with pytest.raises(Exception, match="expected a state of seed 1, found 2"):
        checkpoint.load({"dataloader": dataloader(code)}, checkpoint_id=tmp_path)
