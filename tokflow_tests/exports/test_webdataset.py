import gzip
import tarfile
from pathlib import Path

from tokflow_tests.exports.exporting import export_as


def exported(folder: Path, texts: list[str], **options) -> Path:
    return export_as("webdataset", folder, texts, **options)[0]


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_a_member_is_a_row_of_json_and_the_manifest_names_each_shard(tmp_path: Path):
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
