import pickle
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports.formats.modalities import INDEX_START, INDEX_STOP, _index
from tokflow_tests.exports.exporting import export_as, read
from tokflow_tests.outputs import content, int64

NO_EOS = {"tokenizer": {"kind": "bytes", "eos": "none"}}

export = partial(export_as, "modalities")


def test_a_file_is_header_tokens_and_index(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "c"], "b.jsonl": [""]})

    data = (folder / "train.pbin").read_bytes()

    assert data[:12] == struct.pack("<QI", 12, 2)
    assert data[12:24] == b"a\0b\0\0\1c\0\0\1\0\1"
    assert pickle.loads(data[24:]) == [(0, 6), (6, 4), (10, 2)]
    assert sorted(content(folder)) == [
        "_tokflow/index.parquet",
        "_tokflow/manifest.json",
        "train.pbin",
    ]
    assert manifest.counts["train.num_documents"] == 3


def test_the_index_holds_bytes_past_4_gib():
    index = pickle.loads(b"".join(_index(int64(3, 2**32 + 2, 1, 2**40))))

    assert index == [(0, 3), (3, 2**32 + 2), (2**32 + 5, 1), (2**32 + 6, 2**40)]


def test_documents_without_tokens_are_in_the_index(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["", "ab", "", "c", ""]}, attributes=NO_EOS)

    index = pickle.loads((folder / "train.pbin").read_bytes()[12 + 6 :])
    [own] = read(folder, manifest)

    assert index == [(0, 0), (0, 4), (4, 0), (4, 2), (6, 0)]
    assert own["offsets"].tolist() == [0, 0, 2, 2, 3, 3]


class Harmful:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_an_index_that_is_not_ours_is_refused_and_not_loaded(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab"]})
    path, touched = folder / "train.pbin", tmp_path / "touched"
    harm = pickle.dumps([(0, 6), Harmful(touched)])
    padding = b"." * (-(len(harm) - len(INDEX_START + INDEX_STOP)) % 21)
    path.write_bytes(path.read_bytes()[: 12 + 6] + harm + padding)

    with pytest.raises(CorruptOutputError, match="an index that tokflow did not write"):
        read(folder, manifest)

    assert not touched.exists()
    pickle.loads(harm)
    assert touched.exists()


def test_data_that_the_index_does_not_fit_is_refused(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "c"]})
    path = folder / "train.pbin"
    data = path.read_bytes()
    path.write_bytes(struct.pack("<QI", 8, 2) + data[12:20] + data[22:])  # a token less

    with pytest.raises(CorruptOutputError, match="data that it does not fit"):
        read(folder, manifest)


def test_an_index_of_which_a_byte_is_wrong_is_refused(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "c"]})
    path = folder / "train.pbin"
    whole = path.read_bytes()
    for at in (2, 10, 22, 41):
        data = bytearray(whole)
        data[12 + 10 + len(INDEX_START) + at] ^= 1
        path.write_bytes(data)

        with pytest.raises(CorruptOutputError, match="an index that tokflow did not write"):
            read(folder, manifest)
