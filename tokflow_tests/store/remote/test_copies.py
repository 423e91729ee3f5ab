"""Tokens that an export has as token shards have them are copied by the server."""

from pathlib import Path

import pytest

from tokflow_tests.object_store import UNIT, ObjectStore, let_parts_be_short
from tokflow_tests.tiny import build, declare


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    let_parts_be_short(monkeypatch)


@pytest.mark.parametrize(
    ("files", "fraction", "num_copies"),
    [
        pytest.param(["abcdefgh", "hgfedcba"], 0.7, 4, id="runs of two files, in two exports"),
        pytest.param(["abcdefg"], 1.0, 2, id="one whole file, in two exports"),
    ],
)
def test_exports_at_a_url_are_composed_of_token_shards(
    files: list[str], fraction: float, num_copies: int, tmp_path: Path, object_store: ObjectStore
) -> None:
    parts_of_split = {"train": {"fraction": fraction}}
    if fraction < 1:
        parts_of_split["rest"] = {"fraction": round(1 - fraction, 3)}
    texts = {f"{name}.jsonl": [letter * UNIT for letter in name] for name in files}
    fields = {"raw": {"files": "raw/*.jsonl"}, "split": {"parts": parts_of_split}}
    exports = ["bin", "megatron"]
    here = declare(tmp_path, texts, **fields, exports=exports)
    there = declare(tmp_path, **fields, exports=exports, store=f"{object_store.url}/store")
    build(here)

    with object_store.counted() as count:
        build(there)

    assert count["PART_COPY"] == num_copies
    assert _bins_there(object_store) == sorted(
        path.read_bytes() for path in (here.folder / "exports").rglob("*.bin")
    )


def _bins_there(store: ObjectStore) -> list[bytes]:
    """Return the files of exports that hold tokens."""
    contents = store.contents()
    names = [key for key in contents if "/exports/" in key and key.endswith(".bin")]
    return sorted(contents[name] for name in names)
