"""Chats and their loss mask on the way through all stages, and what is told of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.remade import verify_against_raw
from tokflow.audit.verify.tokens import verify_tokens
from tokflow.cli.closing_summary import left_out
from tokflow.exports.stage import parts_of
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.pools.pool import ignore
from tokflow.tokens.stage import TOKENS
from tokflow_tests.chats import CHATS, INJECTED, MARKED, chat, chat_dataset, write_chats
from tokflow_tests.outputs import problems_of, stored
from tokflow_tests.tiny import build, declare, tokenize
from tokflow_tests.tokenizers.chat.test_renderer import of_transformers, transformers_tokenizer


def many_chats(num: int) -> list[Any]:
    return [chat(f"q{'u' * (i % 7)}", f"a{'n' * (i % 5)}", *(["x", "y"] if i % 3 else []))
            for i in range(num)]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "tail"), [("concat", "pad"), ("concat", "drop"), ("one_document", "pad")]
)
def test_the_mask_goes_through_split_packing_tails_and_parquet(
    strategy: str, tail: str, tmp_path: Path
):
    for name, num in (("a", 11), ("b", 6), ("c", 1)):
        write_chats(tmp_path / f"raw/{name}.jsonl", many_chats(num))
    ranges = {"train": {"documents": 4}, "rest": {"start": 4, "documents": 99}}
    packing = {"strategy": strategy, "sequence_length": 7, "tail": tail, "pad_id": 9}
    dataset = chat_dataset(
        tmp_path, None, split={"parts": ranges}, packing=packing, exports=["parquet"]
    )
    export = build(dataset).export("parquet")

    # What must come out, made again from transformers' tokens and masks.
    made = of_transformers(tmp_path, MARKED, many_chats(11))
    in_files = {"train": [made[:4], made[:4], made[:1]], "rest": [made[4:11], made[4:6], []]}
    for part, of_files in in_files.items():
        ids, mask = expected_rows(of_files, strategy, tail, length=7, pad=9)
        table = pq.read_table(sorted(export.output.folder.glob(f"{part}-*.parquet")))
        assert table["input_ids"].to_pylist() == ids
        assert table["loss_mask"].to_pylist() == mask
        assert table["loss_mask"].type == pa.list_(pa.int8())
        assert export.manifest.counts[f"{part}.num_loss_tokens"] == sum(map(sum, mask))
    assert problems_of(dataset) == []


def expected_rows(
    of_files: list[Any], strategy: str, tail: str, *, length: int, pad: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Pack (tokens, mask) in the plainest way: list by list."""
    rows: list[list[tuple[int, int]]] = []
    tails: list[tuple[int, int]] = []
    for documents in of_files:
        streams = [list(zip(ids, mask, strict=True)) for ids, mask in documents]
        if strategy == "concat":
            joined = [token for stream in streams for token in stream]
            full = len(joined) // length * length
            rows += [joined[i : i + length] for i in range(0, full, length)]
            tails += joined[full:]
        else:
            rows += [s[i : i + length] for s in streams for i in range(0, len(s), length)]
    rows += [tails[i : i + length] for i in range(0, len(tails), length)]
    if strategy == "concat" and tail == "drop":
        rows = [row for row in rows if len(row) == length]
    padded = [[*row, *[(pad, 0)] * (length - len(row))] for row in rows]
    return [[i for i, _ in row] for row in padded], [[bit for _, bit in row] for row in padded]


def test_a_run_names_the_formats_that_lost_the_mask_or_where_chats_begin(tmp_path: Path):
    of_one = {"format": "jsonl", "columns": ["loss_mask"], "packing": {"strategy": "one_document"}}
    megatron = {"format": "megatron", "loss_mask": True}
    dataset = chat_dataset(tmp_path, exports=["parquet", "npy", "bin", megatron, of_one])

    mask, *warnings = left_out(dataset, build_dataset(dataset))

    assert mask == "without the loss mask of the chats: bin"
    names = [line.partition(":")[2].partition(": readers of")[0] for line in warnings]
    assert names == [" bin", " megatron"]


def test_a_run_warns_of_no_boundaries_between_texts(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["bin", "megatron"])

    assert not [line for line in left_out(dataset, build_dataset(dataset)) if "warning" in line]


@pytest.mark.parametrize("value", [0, 1, 7])
def test_a_mask_that_was_changed_is_found(value: int, tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["parquet"])
    build(dataset)
    graph = graph_of(dataset)
    shard = graph.open_tokens("chats.jsonl")
    path = shard.folder / "loss_mask.bin"
    mask = np.fromfile(path, dtype=np.uint8)
    position = int(np.flatnonzero(mask != value)[5])
    mask[position] = value
    path.chmod(0o644)
    mask.tofile(path)

    of_shard = verify_tokens(shard)
    raw = graph.raw("chats.jsonl")
    [of_raw] = verify_against_raw(raw, shard, dataset.documents, graph.encoding)
    output = graph.output("export", variant=dataset.exports[0].name)
    of_export = verify_export(stored(output.folder, output.manifest()), parts_of(output))

    wrong = f"{path}: token {position}: expected 0 or 1 in the loss mask, found 7"
    said = wrong if value == 7 else "expected num_loss_tokens"
    assert any(said in problem for problem in of_shard)
    assert "expected the loss mask of its loss spans" in of_raw
    assert value == 7 or any("loss mask of token" in problem for problem in of_export)


def test_a_limit_counts_the_characters_that_the_template_writes(tmp_path: Path):
    dataset = chat_dataset(tmp_path, documents={"limit": {"characters": 100}})

    shard = tokenize(dataset)

    rendered = transformers_tokenizer(tmp_path, MARKED).apply_chat_template(
        CHATS[0], tokenize=False
    )
    assert len(rendered) < 100
    assert shard.manifest.counts["num_documents"] == 2
    assert shard.documents()["num_chars"][0].as_py() == len(rendered)


def test_what_was_made_does_not_depend_on_the_batches(tmp_path: Path):
    dataset = chat_dataset(tmp_path, [*CHATS, *INJECTED] * 4)
    whole = tokenize(dataset)
    writer = TOKENS.writer(graph_of(dataset).tokens("chats.jsonl"))
    folder = tmp_path / "small"
    folder.mkdir()

    replace(writer, batch_bytes=200).write(None, folder, ignore)

    for name in ("tokens.bin", "loss_mask.bin", "documents.parquet", "_tokflow/manifest.json"):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes(), name
