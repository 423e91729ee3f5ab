"""A second opinion on the sequences of many random datasets, found token by token."""

import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from tokflow.pipeline.graph import BuildGraph
from tokflow.sequences.packing import Strategy
from tokflow_tests.outputs import int64
from tokflow_tests.tiny import build, declare, ids


def random_packing(rng: random.Random, strategy: str) -> dict[str, Any]:
    length = rng.randrange(1, 9)
    overlong = rng.choice(["split", "truncate", "drop"])
    may_overlap = strategy == "concat" or overlong == "split"
    return {
        "strategy": strategy,
        "sequence_length": length,
        "overlong": overlong,
        "label_token": rng.random() < 0.3,
        "overlap": rng.randrange(length) if may_overlap else 0,
        "min_sample_length": rng.randrange(1, length + 1),
        "pool_size": rng.randrange(1, 5),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_every_token_of_a_part_is_in_one_segment_or_declared(
    strategy: str, seed: int, tmp_path: Path
):
    rng = random.Random(f"{strategy}{seed}")
    texts = ["xyz"[: rng.randrange(4)] * rng.randrange(1, 7) for _ in range(rng.randrange(1, 12))]
    packing = random_packing(rng, strategy)
    edge = rng.randrange(20)
    split = {
        "boundary": rng.choice(["document", "character"]),
        "parts": {"train": {"characters": edge}, "validation": {"start": edge}},
    }
    dataset = declare(tmp_path, {"a.jsonl": texts}, packing=packing, split=split)
    build(dataset)
    sequences = BuildGraph(dataset).open_sequences("a.jsonl")
    source, length = sequences.split.token_source(), packing["sequence_length"]
    length += packing["label_token"]
    rows = pq.read_table(sequences.folder / "segments.parquet").to_pylist()

    for part in sequences.split.parts:
        spans = sequences.split.spans(part)
        columns = (spans.document, spans.char_start, spans.token_start, spans.num_tokens)
        of_span = {
            (document, start): source.take(int64(first), int64(size)).tolist()
            for document, start, first, size in zip(*(c.tolist() for c in columns), strict=True)
        }
        for (document, start), tokens in of_span.items():
            num_chars = len(tokens) - 1  # a byte a character, and EOS
            assert tokens == ids(texts[document][start : start + num_chars])
        times: Counter[tuple[int, int, int]] = Counter()
        fill: Counter[int] = Counter()
        repeated = 0
        for row in (row for row in rows if row["part"] == part):
            begin, size = row["token_in_piece"], row["num_tokens"]
            key = (row["document"], row["char_start"])
            found = source.take(int64(row["token_start"]), int64(size)).tolist()
            assert found == of_span[key][begin : begin + size]
            times.update((*key, at) for at in range(begin, begin + size))
            fill[row["sequence"]] += size
            repeated += row["num_repeated"]
        num = sequences.num_sequences(part)
        tail = fill.pop(num, 0)
        assert sorted(fill) == list(range(num))
        assert all(packing["min_sample_length"] <= size <= length for size in fill.values())
        assert times.total() - len(times) == repeated
        counts = sequences.manifest.counts
        assert {name: counts[f"{part}.{name}"] for name in ("num_tokens", "num_padding")} == {
            "num_tokens": fill.total(),
            "num_padding": num * length - fill.total(),
        }
        assert counts[f"{part}.num_tail_tokens"] == tail
        assert counts[f"{part}.num_repeated_tokens"] == repeated
        dropped = sum(map(len, of_span.values())) - len(times)
        assert counts[f"{part}.num_dropped_tokens"] == dropped
