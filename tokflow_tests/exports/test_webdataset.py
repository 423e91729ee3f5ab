import gzip
import tarfile
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow_tests.exports.exporting import export_as, read


def exported(folder: Path, texts: list[str], **options) -> Path:
    return export_as("webdataset", folder, texts, **options)[0]


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_a_member_is_a_row_of_json_and_the_manifest_names_each_shard(
    tmp_path: Path,
):
    folder = exported(tmp_path, ["abcde", "fg"], shards=2)

    found = [members(folder / "train" / f"shard_{number:08d}.tar") for number in range(2)]

    assert [{name: gzip.decompress(data) for name, data in shard.items()} for shard in found] == [
        {
            "00000000_00000000.json.gz": b"[97,98,99,100]",
            "00000000_00000001.json.gz": b"[101,256,102,103]",
        },
        {"00000001_00000000.json.gz": b"[256,256,256,256]"},
    ]
    assert found[0]["00000000_00000000.json.gz"][:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
    assert (folder / "train/manifest.jsonl").read_text() == (
        '{"num_sequences":2,"shard":"shard_00000000"}\n'
        '{"num_sequences":1,"shard":"shard_00000001"}\n'
    )


@pytest.mark.parametrize(
    ("start", "data"),
    [
        (0, b"x"),  # the header's checksum is another
        (512, b"x"),  # no gzip member
        (520, bytes(20)),  # no such deflated data
    ],
)
def test_a_damaged_shard_is_an_error_that_names_it(start: int, data: bytes, tmp_path: Path):
    folder = exported(tmp_path, ["abc"])
    path = folder / "train/shard_00000000.tar"
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)

    with pytest.raises(CorruptOutputError) as raised:
        read(folder)

    assert str(raised.value).startswith(f"{path}: expected what its format says, found ")
