"""`datasets` and pyarrow read our IPC files, by name and by folder."""

from pathlib import Path

import pytest

from tokflow_tests.interop.harness import known_dataset, read_with
from tokflow_tests.interop.row_columns import COLUMNS, PARTS, assert_columns, flat

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("ids", "compression"), [("many", "none"), ("bytes", "lz4"), ("bytes", "zstd")]
)
def test_the_builder_of_arrow_reads_every_row_and_column(
    ids: str, compression: str, part: str, tmp_path: Path
):
    known = known_dataset(tmp_path, "arrow", ids=ids, compression=compression, sequences_per_file=5)

    files = {name: f"{name}-*.arrow" for name in PARTS}
    found = read_with("datasets", known.folder, part, how="arrow", files=files)

    assert_columns(found, flat(known, part), COLUMNS)


@pytest.mark.parametrize("part", PARTS)
def test_the_folder_alone_is_a_dataset_of_both_parts(part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "arrow", sequences_per_batch=3)

    found = read_with("datasets", known.folder, part, how="folder")

    assert found["parts"].tolist() == list(PARTS)
    assert_columns(found, flat(known, part), COLUMNS)
