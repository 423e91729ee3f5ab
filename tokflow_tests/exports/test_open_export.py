from pathlib import Path

import numpy as np
import pytest

import tokflow
from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow_tests.tiny import EOS, build, declare

FILES = {"a.jsonl": ["abc", "de"], "b.jsonl": ["f"]}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = declare(
        tmp_path_factory.mktemp("open"),
        FILES,
        split={"parts": {"train": {"documents": 2}, "validation": {"start": 2}}},
        exports=["bin", "npy", "parquet", "mds", "pickle"],
    )
    build(dataset)
    return dataset.folder / "exports"


@pytest.mark.parametrize(
    "inside", ["", "latest", "latest/train.bin", "latest/_tokflow/manifest.json"]
)
def test_an_export_is_opened_by_its_folder_its_link_or_a_file_in_it(inside: str, exports: Path):
    export = tokflow.open_export(exports / "bin" / inside)

    assert (export.format_name, export.layout.made_of) == ("bin", "stream")
    assert export.folder == (exports / "bin" / "latest").resolve()


def test_the_tokens_of_a_stream_are_read_as_they_were_written(exports: Path):
    export = tokflow.open_export(exports / "npy")

    [fields] = export.read("train")

    assert fields["token_ids"].tolist() == [*b"abc", EOS, *b"de", EOS, *b"f", EOS]
    assert fields["offsets"].tolist() == [0, 4, 7, 9]
    assert list(export.read("validation")) == []


def test_the_sequences_of_an_export_have_every_field(exports: Path):
    [fields] = tokflow.open_export(exports / "parquet").read("train")

    assert fields["token_ids"].tolist()[0] == [*b"abc", EOS]
    assert fields["segment_ids"][-1].tolist() == [1, 0, 0, 0]
    assert fields["loss_mask"][-1].tolist() == [True, False, False, False]
    assert (fields["token_ids"].dtype, fields["position_ids"].dtype) == (np.uint16, np.int32)


def test_what_cannot_be_read_says_so(exports: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="expected one of the parts train, validation"):
        tokflow.open_export(exports / "bin").read("test")
    with pytest.raises(ConfigError, match="pickle, which is written and never read"):
        tokflow.open_export(exports / "pickle").read("train")


def test_what_is_no_export_is_named_and_what_to_open_instead(exports: Path, tmp_path: Path):
    [shard] = (exports.parent / "tokens" / "a.jsonl").glob("[0-9a-f]*")
    others = ", ".join(str(exports / name) for name in ("bin", "mds", "npy", "parquet", "pickle"))

    def said(path: Path) -> str:
        with pytest.raises(MissingOutputError) as raised:
            tokflow.open_export(path)
        return str(raised.value)

    assert said(shard / "tokens.bin") == (
        f"{shard / 'tokens.bin'}: expected the folder of an export, found tokens of a.jsonl; "
        f"name one of {others}"
    )
    missing = exports / "bim"
    assert said(missing) == (
        f"{missing}: expected the folder of an export, found no 'bim' in {exports}, "
        f"which has bin, mds, npy, parquet, pickle; name one of {others}"
    )
    assert said(tmp_path) == (
        f"{tmp_path}: expected the folder of an export, found no _tokflow/manifest.json; "
        "name the folder of one, <store>/<dataset>/exports/<name>, which `tokflow run` makes"
    )


def test_an_export_of_which_a_file_is_cut_short_is_not_opened(tmp_path: Path):
    folder = build(declare(tmp_path, FILES, exports=["bin"])).export("bin").output.folder
    (folder / "train.bin").write_bytes(b"x")

    with pytest.raises(CorruptOutputError, match="expected 18 bytes, found 1"):
        tokflow.open_export(folder)
