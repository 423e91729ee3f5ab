from pathlib import Path

import pyarrow as pa
import pytest

from tokflow.exports.formats import hf_dataset
from tokflow.exports.reading import open_export
from tokflow_tests.exports.exporting import export_as
from tokflow_tests.tiny import EOS


def exported(folder: Path, texts: list[str], **options) -> Path:
    return export_as("arrow", folder, texts, **options)[0]


def open_shard(path: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_arrow_is_compressed_as_asked_for_and_mapped_if_not(compression: str, tmp_path: Path):
    folder = exported(tmp_path, ["x" * 4_000], compression=compression)
    path = folder / "train-00000-of-00001.arrow"

    before = pa.total_allocated_bytes()
    batch = open_shard(path).get_batch(0)
    num_copied = pa.total_allocated_bytes() - before

    assert (path.stat().st_size < 13 * 4_000) == (compression != "none")
    assert (num_copied < 1_000) == (compression == "none")
    assert batch.num_rows == 1_000


@pytest.mark.parametrize("name", ["arrow", "hf_dataset"])
def test_what_was_read_of_a_batch_stays_without_its_file_and_holds_none_open(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hf_dataset, "MAX_BATCH_ROWS", 1)
    options = {"sequences_per_batch": 1} if name == "arrow" else {}
    export = open_export(export_as(name, tmp_path, ["ab", "cdefgh"], **options)[0])

    portions = export.portions("train")
    fields = [portion.read() for portion in portions]
    for portion in portions:
        portion.path.unlink(missing_ok=True)

    assert [of["token_ids"].tolist() for of in fields] == [
        [[*b"ab", EOS, *b"c"]],
        [[*b"defg"]],
        [[*b"h", EOS, EOS, EOS]],
    ]
    held = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [path for path in held if path.is_relative_to(tmp_path)]
