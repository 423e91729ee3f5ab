"""Folders that are named as they are: of `save_to_disk`, and of part files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, RawFileError
from tokflow.raw import Listing, RawConfig, list_raw
from tokflow_tests.raw.test_listing import make_files
from tokflow_tests.reading import read_documents


def save(folder: Path, *texts: str, split: str | None = None, num_files: int = 2) -> None:
    """Write the files of a Dataset as `datasets` 4 does: streams of Arrow, state and info."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{num_files:05d}.arrow" for number in range(num_files)]
    for number, name in enumerate(names):
        table = pa.table({"text": list(texts[number::num_files])})
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text("{}")


def save_splits(folder: Path) -> None:
    for split, texts in {"train": ("a", "b"), "unsupervised": ("c",)}.items():
        save(folder / split, *texts, split=split, num_files=1)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "unsupervised"]}')


def listed(folder: Path, files: str = "saved", **fields: object) -> Listing:
    config = RawConfig(files=files, **fields)
    return list_raw(config, base=folder)


def splits(listing: Listing) -> dict[str, str | None]:
    return {key: source.source_split for key, source in listing.sources.items()}


def refusal(kind: type[Exception], folder: Path, **fields: object) -> str:
    with pytest.raises(kind) as raised:
        listed(folder, **fields)
    return str(raised.value)


def test_a_saved_dataset_is_read_from_the_files_that_it_names(tmp_path: Path):
    save(tmp_path / "saved", "a", "b", "c", split="validation")
    make_files(tmp_path / "saved", "cache-0f3a.arrow")

    listing = listed(tmp_path)

    assert splits(listing) == {
        "data-00000-of-00002.arrow": "validation",
        "data-00001-of-00002.arrow": "validation",
    }
    texts = [
        text
        for source in listing.sources.values()
        for batch in read_documents(Path(source.url), DocumentsConfig())
        for text in batch.texts.to_pylist()
    ]
    assert texts == ["a", "c", "b"]
    assert [(left.path, left.found) for left in listing.left_out] == [
        (f"{tmp_path}/saved/cache-0f3a.arrow", "a file that state.json does not name")
    ]


def test_a_saved_dict_has_a_folder_for_each_split(tmp_path: Path):
    save_splits(tmp_path / "saved")
    of_train = {"train/data-00000-of-00001.arrow": "train"}

    assert splits(listed(tmp_path)) == {
        **of_train,
        "unsupervised/data-00000-of-00001.arrow": "unsupervised",
    }
    assert splits(listed(tmp_path, split="train")) == of_train
    assert splits(listed(tmp_path, files="saved/train/")) == {"data-00000-of-00001.arrow": "train"}
    assert "found 'test';" in refusal(ConfigError, tmp_path, split="test")
    assert "found 'en';" in refusal(ConfigError, tmp_path, config="en")


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("{", "JSONDecodeError: "),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "no file 'gone.arrow'"),
        ('{"_data_files": [{"filename": "../a.arrow"}]}', "no file '../a.arrow'"),
        ('{"_data_files": ["a"]}', "files without a filename"),
        ('{"_data_files": [], "_indices_files": [{"filename": "i"}]}', "rows that are selected by"),
    ],
)
def test_a_saved_folder_that_is_not_whole_is_refused(state: str, found: str, tmp_path: Path):
    save(tmp_path / "saved", "a")
    make_files(tmp_path, "a.arrow")
    (tmp_path / "saved" / "state.json").write_text(state)

    said = refusal(RawFileError, tmp_path)

    assert said.startswith(
        f"{tmp_path}/saved/state.json: expected what save_to_disk writes, with all its files, "
        f"found {found}"
    )
    assert said.endswith(", or name its files by a pattern")


def test_a_folder_is_read_as_load_dataset_reads_it(tmp_path: Path):
    make_files(tmp_path / "imdb", "train/0.jsonl", "test/0.jsonl", "test/0.csv")

    listing = listed(tmp_path, files="imdb", split="test")

    assert splits(listing) == {"test/0.jsonl": "test"}
    assert [left.found for left in listing.left_out] == ["csv, where most files are jsonl"]


def test_the_order_of_patterns_decides_no_split(tmp_path: Path):
    make_files(tmp_path, "imdb/train/0.jsonl", "imdb/test/0.jsonl")

    for other in ("imdb/train/0.jsonl", "imdb/train/*", "imdb/**"):
        for files in (["imdb", other], [other, "imdb"]):
            assert splits(listed(tmp_path, files=files)) == {
                "test/0.jsonl": "test",
                "train/0.jsonl": "train",
            }
    for files in (["imdb", "imdb/test"], ["imdb/test", "imdb"]):  # all is `train` in the latter
        assert refusal(ConfigError, tmp_path, files=files).startswith(
            "raw.files: expected folders that agree on the split of a file, found 'test/0.jsonl' of"
        )


def test_a_folder_of_which_some_files_would_be_passed_over_is_refused(tmp_path: Path):
    make_files(tmp_path / "texts", "a.jsonl", "b.jsonl", "my_test.jsonl")

    told = refusal(ConfigError, tmp_path, files="texts")

    assert "found files that match no split: a.jsonl, b.jsonl;" in told
