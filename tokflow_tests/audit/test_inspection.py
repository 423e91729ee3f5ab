from pathlib import Path

import pytest

from tokflow.audit.inspection import Inspection, inspect_output
from tokflow.errors import CorruptOutputError
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import write_manifest
from tokflow_tests.outputs import make_manifest, make_recipe
from tokflow_tests.tiny import copy_of, declare_small

STORE = Path("store/small")


@pytest.fixture
def store(built_small: Path, tmp_path: Path) -> Path:
    return copy_of(built_small, tmp_path) / STORE


def texts(inspection: Inspection) -> list[list[tuple[str | None, str | None]]]:
    return [
        [(segment.document, segment.text) for segment in excerpt.segments]
        for excerpt in inspection.excerpts
    ]


def test_a_shard_shows_its_documents_apart(store: Path):
    inspection = inspect_output(store / "tokens/a.jsonl")

    assert texts(inspection) == [
        [
            ("a.jsonl:0", "one<eos>"),
            ("a.jsonl:1", "two and a half<eos>"),
            ("a.jsonl:2", "drei €<eos>"),
            ("a.jsonl:3", "<eos>"),
        ]
    ]
    assert inspection.excerpts[0].name == "tokens 0 to 29"


@pytest.mark.parametrize("path", ["exports/parquet", "exports/pickle/latest", "sequences/a.jsonl"])
def test_sequences_show_where_documents_begin(path: str, store: Path):
    inspection = inspect_output(store / path, num_sequences=2)

    assert texts(inspection) == [
        [("a.jsonl:0", "one<eos>"), ("a.jsonl:1", "two ")],
        [("a.jsonl:1", "and a ha")],
    ]
    assert [excerpt.name for excerpt in inspection.excerpts] == [
        "train: sequence 0",
        "train: sequence 1",
    ]


@pytest.mark.parametrize(("side", "place"), [("right", -1), ("left", 0)])
def test_a_row_that_is_not_full_has_its_padding_on_its_side(side: str, place: int, tmp_path: Path):
    packing = {"sequence_length": 50, "padding_side": side}
    build_dataset(declare_small(tmp_path, packing=packing))

    segments = list(inspect_output(tmp_path / STORE / "exports/parquet").excerpts[1].segments)

    padding = segments.pop(place)
    assert (padding.is_padding, padding.token_ids) == (True, (256,) * 28)
    assert not any(segment.is_padding for segment in segments)


@pytest.mark.parametrize("path", ["exports/bin", "exports/bin/latest/train.bin", "split/a.jsonl"])
def test_a_stream_shows_its_first_tokens(path: str, store: Path):
    inspection = inspect_output(store / path, num_sequences=1)

    assert texts(inspection)[0][:2] == [
        ("a.jsonl:0", "one<eos>"),
        ("a.jsonl:1", "two and a half<eos>"),
    ]


def test_a_file_that_is_cut_short_is_named(store: Path):
    [shard] = (store / "tokens/a.jsonl").iterdir()
    (shard / "documents.parquet").write_bytes(b"cut")

    with pytest.raises(CorruptOutputError, match=r"documents\.parquet: expected .* bytes, found 3"):
        inspect_output(shard)


def test_a_raw_file_that_was_fetched_is_shown_without_tokens(tmp_path: Path):
    recipe = make_recipe(stage="raw", config={}, parents={"content": "0" * 64})
    write_manifest(tmp_path, make_manifest(recipe=recipe), run={})

    inspection = inspect_output(tmp_path)

    assert (inspection.excerpts, inspection.notes) == ((), ())
