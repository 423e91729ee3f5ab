from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline.mixture import graph_of
from tokflow.split import stage
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow_tests.tiny import build, declare

TEXT = "größe 漢字 👍🏽 don't stop\n\n  12,345 <|endoftext|> and on " * 9


def cut_every(num_chars: int, num_parts: int) -> dict[str, Any]:
    starts = {f"from_{start}": start for start in range(0, num_chars * num_parts, num_chars)}
    parts = {name: {"start": start, "characters": num_chars} for name, start in starts.items()}
    return {"boundary": "character", "parts": parts}


@pytest.mark.parametrize("batch_bytes", [stage.BATCH_BYTES, 50])
def test_many_spans_of_one_document_have_the_reference_s_tokens_of_each(
    batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["before", TEXT, "after"]},
        tokenizer={"kind": "trained", "vocab_size": 300},
        split=cut_every(7, 50),
    )
    monkeypatch.setattr(stage, "BATCH_BYTES", batch_bytes)

    build(dataset)

    graph = graph_of(dataset)
    split, tokenizer = graph.open_split("a.jsonl"), graph.tokenizer
    whole = "before" + TEXT
    sides = [whole[start : start + 7] for start in range(7, 350, 7)]
    expected = open_reference(tokenizer).encode(to_texts(["before", TEXT[:1], *sides]))
    cut = [[*expected.document(side).tolist(), tokenizer.eos_id] for side in range(1, 51)]
    assert split.cut_tokens().tolist() == [token for side in cut for token in side]
