"""Peers train on what the assistant says, where our exports of chats say that it does, and trainers
attend within chats that are packed into one row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.store.manifest import Manifest
from tokflow_tests.chats import CHATS, chat_dataset, write_chats
from tokflow_tests.interop.harness import assert_same, python_of, read_with, write_with
from tokflow_tests.outputs import content, documents_of, parts, token_lists
from tokflow_tests.tiny import build, tokenize

pytestmark = pytest.mark.interop


@dataclass(frozen=True, kw_only=True)
class KnownChats:
    """An export of CHATS, whose tokens and loss masks are those of the token shard."""

    folder: Path
    manifest: Manifest
    token_ids: list[list[int]]
    masks: list[list[int]]
    rows: Any
    """The sequences of 16 tokens; None for a format of the stream."""

    @property
    def mask(self) -> np.ndarray:
        return np.concatenate(self.masks)


def datatrove(known: KnownChats) -> Mapping[str, Any]:
    return {"token_ids": np.concatenate(known.token_ids), "loss_mask": known.mask}


def easydel(known: KnownChats) -> Mapping[str, Any]:
    token_ids = known.rows.token_ids.astype(int)  # numpy makes 65,436 of a uint16's -100
    is_label = known.rows.loss_mask & (known.rows.position_ids > 0)
    return {"rows": token_ids, "labels": np.where(is_label, token_ids, -100)}


def levanter(known: KnownChats) -> Mapping[str, Any]:
    """Expect a row for each chat, and the loss tokens."""
    return {**datatrove(known), "loss_tokens": np.concatenate(known.token_ids)[known.mask != 0]}


def longest(known: KnownChats) -> int:
    return max(map(len, known.token_ids))


def mds(known: KnownChats) -> Mapping[str, Any]:
    return {
        "tokens": known.rows.token_ids.astype(int),
        "loss_mask": known.rows.loss_mask.astype(int),
    }


def megatron_mask(known: KnownChats) -> Mapping[str, Any]:
    """Expect a number for each token, in the documents that the tokens have."""
    offsets = np.cumsum([0, *map(len, known.masks)])
    return {"token_ids": known.mask.astype(np.uint8), "offsets": offsets}


def olmo_rows(known: KnownChats) -> Mapping[str, Any]:
    mask = known.mask.astype(int)
    return {"label_mask": mask[: len(mask) // 16 * 16].reshape(-1, 16)}


def olmo_documents(known: KnownChats) -> Mapping[str, Any]:
    pairs = sorted(zip(known.token_ids, known.masks, strict=True))
    return {
        "token_ids": np.concatenate([ids for ids, _ in pairs]),
        "loss_mask": np.concatenate([mask for _, mask in pairs]).astype(int),
    }


@dataclass(frozen=True)
class Reading:
    """An export of chats, and how its peer reads it."""

    format: str
    expected: Callable[[KnownChats], Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    reader: Mapping[str, Any] = field(default_factory=dict)
    """Options of the peer's reader; a callable is given the known chats."""


OLMO = {
    "vocab_size": lambda known: known.manifest.details["vocab_size"],
    "eos_id": lambda known: known.manifest.details["eos_id"],
    "dtype": "uint16",
}

OLMO_WHOLE = {**OLMO, "sequence_length": 512, "from_lines": True}
MDS = {"columns": {"tokens": "token_ids", "loss_mask": "loss_mask"}}

READINGS = [
    Reading("datatrove", datatrove, reader={"has_loss": True}),
    Reading("easydel", easydel),
    Reading("levanter", levanter, reader={"form": "chat", "sequence_length": longest}),
    Reading("mds", mds, options=MDS),
    Reading("megatron", megatron_mask, options={"loss_mask": True}, reader={"of": "loss_mask"}),
    Reading("olmo", olmo_rows, reader={**OLMO, "sequence_length": 16}),
    Reading("olmo", olmo_documents, reader=OLMO_WHOLE),
]


def known_chats(folder: Path, format_: str, **options: Any) -> KnownChats:
    dataset = chat_dataset(folder, CHATS, exports=[{"format": format_, **options}])
    built = build(dataset).export(format_)
    token_ids, masks = zip(*documents_of(tokenize(dataset)), strict=True)
    [*rows] = parts(dataset, format_)["train"].sequences(1_000)
    assert 0 < np.concatenate(masks).sum() < len(np.concatenate(masks))
    return KnownChats(
        folder=built.output.folder,
        manifest=built.manifest,
        token_ids=[*token_ids],
        masks=[*masks],
        rows=rows[0] if rows else None,
    )


@pytest.mark.parametrize("case", READINGS, ids=lambda case: case.expected.__name__)
def test_a_peer_reads_the_loss_tokens(case: Reading, tmp_path: Path):
    python_of(case.format)
    known = known_chats(tmp_path, case.format, **case.options)

    reader = {n: value(known) if callable(value) else value for n, value in case.reader.items()}
    found = read_with(case.format, known.folder, "train", **reader)

    assert_same(found, case.expected(known))


READERS: dict[str, Mapping[str, Any]] = {
    "axolotl": {"sequence_length": 128},
    "megatron-bridge": {"sequence_length": 128, "eos_id": 1},
    "torchtune": {"sequence_length": 128},
    "trl": {},
}
"""The presets, and what each trainer's reader is given."""

TEXTS = ["a", "every token of a text is learnt", "größe 漢字", "but for the first"]


def documents_in(found: Mapping[str, np.ndarray]) -> list[tuple[list[int], list[int]]]:
    """Return the tokens and the loss of each document, sorted, since trainers have orders of
    their own."""
    edges = np.cumsum(found["lengths"])[:-1]
    split = (np.split(found[name], edges) for name in ("token_ids", "loss"))
    return sorted((ids.tolist(), loss.tolist()) for ids, loss in zip(*split, strict=True))


@pytest.mark.parametrize("kind", ["chats", "texts"])
@pytest.mark.parametrize("trainer", READERS)
def test_a_trainer_learns_what_is_meant_and_attends_within_documents(
    trainer: str, kind: str, tmp_path: Path
):
    python_of("trainers")
    packing = {"strategy": "best_fit", "sequence_length": 128}
    attributes = {"packing": packing, "exports": [{"preset": trainer}]}
    if kind == "texts":
        write_chats(tmp_path / "raw/texts.jsonl", TEXTS * 9, field="text")
        attributes["documents"] = {"messages": None}
    dataset = chat_dataset(tmp_path, CHATS * 5 if kind == "chats" else None, **attributes)
    folder = build(dataset).export(trainer).output.folder
    shard = tokenize(dataset)
    documents = documents_of(shard) if kind == "chats" else [(of, of) for of in token_lists(shard)]

    options = {"trainer": trainer, **READERS[trainer]}
    if trainer == "trl":
        options["tokenizer"] = str(tmp_path / "tok")
    found = read_with("trainers", folder, "train", **options)

    expected = [(ids, [0, *(int(of > 0) for of in mask[1:])]) for ids, mask in documents]
    if trainer == "axolotl":  # which leaves out documents without a loss
        expected = [(ids, loss) for ids, loss in expected if any(loss)]
    assert documents_in(found) == sorted(expected)
    assert sum(sum(loss) for _, loss in expected) > 100


@pytest.mark.parametrize(("peer", "options"), [("datatrove", {}), ("levanter", {"form": "chat"})])
def test_the_files_are_those_that_the_peer_writes(
    peer: str, options: dict[str, Any], tmp_path: Path
):
    python_of(peer)
    known = known_chats(tmp_path, peer)

    arrays = {"loss_mask": known.mask}
    write_with(peer, known.token_ids, tmp_path / "peer", arrays=arrays, **options)

    ours = {name.removeprefix("00000_"): b for name, b in content(known.folder / "train").items()}
    theirs = content(tmp_path / "peer" / ("train" if peer == "levanter" else ""))
    theirs.pop("train.ds.metadata", None)  # it names the tokenizer
    ours.pop("train.ds.metadata", None)
    assert ours == theirs
