"""`verify` of a token shard that has segments: it names what is there, and reads it in batches."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tokflow.audit.verify import tokens
from tokflow.audit.verify.tokens import verify_tokens
from tokflow.documents import ranges
from tokflow.pipeline.mixture import graph_of
from tokflow.store.manifest import read_manifest
from tokflow.tokens.shard import TokenShard
from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.outputs import edit_manifest, stored
from tokflow_tests.tiny import build, copy_of

NUM_CHATS = 40


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    dataset = chat_dataset(folder, [chat("q" * (n % 7), f"a {n}") for n in range(NUM_CHATS)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE_BYTES", 500)
        build(dataset)
        return graph_of(dataset).open_tokens("chats.jsonl").folder


@pytest.fixture
def shard(template: Path, tmp_path: Path) -> TokenShard:
    """Chats in several segments; each ends with EOS and a line's end."""
    shard = TokenShard(stored(copy_of(template, tmp_path)))
    assert len(shard.segments) > 3
    return shard


def edit(shard: TokenShard, name: str, dtype: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the last segment's file."""
    path = shard.folder / shard.names(name)[-1]
    values = np.fromfile(path, dtype=dtype)
    change(values)
    path.chmod(0o644)
    values.tofile(path)


@pytest.mark.parametrize("tokens_at_once", [7, 8_000_000])
def test_chats_in_segments_are_well_however_many_tokens_are_read_at_once(
    tokens_at_once: int, shard: TokenShard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "TOKENS_AT_ONCE", tokens_at_once)

    assert verify_tokens(shard) == []


def test_a_chat_without_eos_is_found_in_the_folder_of_its_segments(
    shard: TokenShard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "TOKENS_AT_ONCE", 7)
    eos_id = shard.manifest.details["eos_id"]

    def change(token_ids: np.ndarray) -> None:
        token_ids[np.flatnonzero(token_ids == eos_id)[-2:]] = 0  # of both messages

    edit(shard, "tokens.bin", "<u2", change)

    num_eos = shard.manifest.counts["num_eos"]
    assert verify_tokens(shard) == [
        f"{shard.folder}: document {NUM_CHATS - 1}: expected the EOS id {eos_id} at its end "
        "(1 such)",
        f"{shard.folder}: expected num_eos {num_eos}, found {num_eos - 2}",
    ]


def test_the_first_wrong_value_of_a_loss_mask_is_found_by_its_place_in_the_shard(
    shard: TokenShard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "TOKENS_AT_ONCE", 7)
    position = shard.num_tokens - int(np.flatnonzero(shard.loss_mask().read()[::-1])[0]) - 1

    def change(mask: np.ndarray) -> None:
        mask[np.flatnonzero(mask)[-1]] = 7
        mask[-1] = 8
        mask[0] = 1

    edit(shard, "loss_mask.bin", "u1", change)

    num_loss_tokens = shard.manifest.counts["num_loss_tokens"]
    assert verify_tokens(shard) == [
        f"{shard.folder}: token {position}: expected 0 or 1 in the loss mask, found 7",
        f"{shard.folder}: expected num_loss_tokens {num_loss_tokens}, found {num_loss_tokens + 2}",
    ]


def test_documents_that_are_not_as_counted_are_told_of_the_folder(shard: TokenShard):
    edit_manifest(shard.folder, lambda fields: fields["counts"].update({"num_empty_documents": 3}))

    [problem] = verify_tokens(TokenShard(stored(shard.folder, read_manifest(shard.folder))))

    assert problem == f"{shard.folder}: expected num_empty_documents 3, found 0"


def test_memory_does_not_grow_with_the_tokens_of_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 50_000)
    monkeypatch.setattr(tokens, "TOKENS_AT_ONCE", 1_000)
    dataset = chat_dataset(tmp_path, [chat("q" * 5_000, "x" * 5_000) for _ in range(30)])
    build(dataset)
    shard = graph_of(dataset).open_tokens("chats.jsonl")
    assert verify_tokens(shard) == []  # what is loaded at first is loaded

    tracemalloc.start()
    verify_tokens(shard)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert shard.num_tokens > 250_000
    assert peak < shard.num_tokens // 4
