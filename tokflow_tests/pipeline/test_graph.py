from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline import raw_files
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store import manifest
from tokflow_tests.tiny import declare

FILES = {"a.jsonl": ["one"], "b.jsonl": ["two"], "c.jsonl": ["three"]}
EXPORTS = ["bin", "parquet", "pickle"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each manifest is read, and how often raw files are looked for."""
    counts: Counter[str] = Counter()
    parsed, list_raw = manifest._parsed, raw_files.list_raw

    def counted_parsed(path: str, data: bytes) -> dict[str, Any]:
        counts[path] += 1
        return parsed(path, data)

    def counted_list(*arguments: Any, **named: Any) -> Any:
        counts["list_raw"] += 1
        return list_raw(*arguments, **named)

    monkeypatch.setattr(manifest, "_parsed", counted_parsed)
    monkeypatch.setattr(raw_files, "list_raw", counted_list)
    return counts


def test_a_plan_and_its_build_look_for_raw_files_and_read_each_manifest_once(
    tmp_path: Path, reads: Counter[str]
):
    dataset = declare(tmp_path, FILES, exports=EXPORTS)

    built = build_dataset(dataset, graph=make_plan(dataset).graph)

    assert len(built.made) == 1 + 3 * 3 + 3
    assert set(reads.values()) == {1}
    assert len(reads) == len(built.made) + 1

    reads.clear()
    assert make_plan(dataset).is_up_to_date
    assert set(reads.values()) == {1}
