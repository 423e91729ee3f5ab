import json
from pathlib import Path

import pytest

from tokflow.documents import ranges
from tokflow.tokens.shard_files import MAX_REASONS, OTHERS, REASONS, rejects_by_reason
from tokflow_tests.tiny import declare, tokenize

REJECT = {"on_bad_document": "reject"}


@pytest.mark.parametrize("range_bytes", [64_000_000, 40])  # one segment, and several
def test_a_shard_counts_its_rejects_by_reason(
    range_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)
    lines = [{"text": "good"}, {"text": None}, {"text": 5}, {"text": None}, {"text": 7}] * 4
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    shard = tokenize(declare(tmp_path, documents=REJECT))

    assert ("segments" in shard.manifest.details) is (range_bytes == 40)
    assert shard.manifest.details["rejects"] == {
        "a string in 'text', found null": 8,
        "a string in 'text', found the number …": 8,
    }


def test_rare_reasons_are_one_number():
    reasons = {f"reason {number:02}": 1 for number in range(MAX_REASONS + 2)} | {"most": 9}

    found = rejects_by_reason([reasons, {OTHERS: 4}])[REASONS]

    assert len(found) == MAX_REASONS + 1
    assert (next(iter(found)), found[OTHERS]) == ("most", 7)
