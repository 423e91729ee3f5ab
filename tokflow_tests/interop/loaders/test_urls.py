"""torch's DataLoader over an export at a URL: the batches of the loader, in workers of any kind."""

import shutil
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from tokflow.loaders import Loader, collate, open_rows
from tokflow_tests.tiny import build, declare

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # fork, from 3.12 on
]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_an_export_at_a_url(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "cache"))
    exports = [{"format": "npy", "shard_size": 80}]
    url, texts = f"file://{tmp_path}/there", [f"text {number}" for number in range(50)]
    build(declare(tmp_path, {"a.jsonl": texts}, exports=exports, store=url))
    shutil.rmtree(tmp_path / "cache")
    rows = open_rows(f"{url}/tiny/exports/npy", sequence_length=8)

    loader = Loader(rows, batch_size=4, seed=1, num_epochs=1)
    batches = DataLoader(
        loader.samples_dataset,
        batch_sampler=loader.sampler(),
        collate_fn=collate,
        num_workers=2,
        multiprocessing_context=start,
    )
    found = [batch["input_ids"].tolist() for batch in batches]

    assert found == [batch["input_ids"].tolist() for batch in loader]
    assert len(found) == -(-len(rows) // 4)
