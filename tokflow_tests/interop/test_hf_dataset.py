"""`datasets` loads our folder as its own, and saves the same rows as the same files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokflow_tests.interop.harness import known_dataset, read_with, write_with
from tokflow_tests.interop.row_columns import COLUMNS, PARTS, assert_columns, flat

pytestmark = pytest.mark.interop


def features(columns: dict[str, str]) -> dict[str, Any]:
    return {
        name: {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "List"}
        for name, dtype in columns.items()
    }


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("ids", "kind"), [("many", "List"), ("bytes", "Sequence")])
def test_load_from_disk_gives_every_row_and_column(ids: str, kind: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "hf_dataset", ids=ids, feature_type=kind, sequences_per_file=5)

    found = read_with("datasets", known.folder, part)

    assert found["parts"].tolist() == list(PARTS)
    assert found["split"] == part
    assert json.loads(str(found["features"])) == features(COLUMNS)
    assert_columns(found, flat(known, part), COLUMNS)


def test_documents_of_no_tokens_leave_no_trace_in_rows(tmp_path: Path):
    known = known_dataset(tmp_path, "hf_dataset", with_eos=False)

    found = read_with("datasets", known.folder, "train")

    assert_columns(found, flat(known, "train"), COLUMNS)


@pytest.mark.parametrize("part", PARTS)
def test_rows_for_trl_have_lengths_and_labels_and_no_padding(part: str, tmp_path: Path):
    columns = ["labels", "seq_lengths"]
    known = known_dataset(tmp_path, "hf_dataset", columns=columns, padding=False)

    found = read_with("datasets", known.folder, part)

    assert_columns(found, flat(known, part, padding=False), ["input_ids", *columns])
    assert found["seq_lengths"].sum() == len(known.token_ids(part)) == len(found["input_ids"])


@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_save_to_disk_of_the_same_rows_writes_the_same_files(ids: str, tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "hf_dataset", ids=ids)
    expected = {part: flat(known, part) for part in PARTS}
    arrays = {f"{part}.{name}": values for part in PARTS for name, values in expected[part].items()}

    write_with(
        "datasets", [], tmp_path / "peer", arrays=arrays, columns=dict.fromkeys(PARTS, COLUMNS)
    )

    names = sorted(
        path.relative_to(tmp_path / "peer").as_posix()
        for path in (tmp_path / "peer").rglob("*")
        if path.is_file()
    )
    assert len(names) == 7
    assert {*names} <= {*known.manifest.files}
    for name in names:
        ours, theirs = (known.folder / name).read_bytes(), (tmp_path / "peer" / name).read_bytes()
        if name.endswith("state.json"):  # its fingerprint is random
            assert without_fingerprint(ours) == without_fingerprint(theirs)
        else:
            assert ours == theirs, name


def without_fingerprint(data: bytes) -> bytes:
    state = json.loads(data)
    fingerprint = state["_fingerprint"]
    assert len(fingerprint) == 16
    return data.replace(fingerprint.encode(), b"")


def test_shards_of_the_peer_hold_the_same_table(tmp_path: Path):
    known = known_dataset(tmp_path / "ours", "hf_dataset", sequences_per_file=4)
    arrays = {f"train.{name}": values for name, values in flat(known, "train").items()}

    write_with(
        "datasets",
        [],
        tmp_path / "peer",
        arrays=arrays,
        columns={"train": COLUMNS},
        num_shards={"train": 3},
    )

    assert table_of(tmp_path / "peer/train").equals(table_of(known.folder / "train"))


def table_of(folder: Path) -> pa.Table:
    state = json.loads((folder / "state.json").read_text())
    shards = [folder / each["filename"] for each in state["_data_files"]]
    assert len(shards) > 1
    tables = [pa.ipc.open_stream(shard.read_bytes()).read_all() for shard in shards]
    assert tables[0].schema.metadata
    return pa.concat_tables(tables).combine_chunks()


def test_a_part_with_a_dash_is_loaded_too(tmp_path: Path):
    split = {"parts": {"train": {"files": "train-*"}, "validation-b": {"files": "validation-*"}}}
    known = known_dataset(tmp_path, "hf_dataset", attributes={"split": split})

    found = read_with("datasets", known.folder, "validation-b")

    assert_columns(found, flat(known, "validation"), COLUMNS)
