"""Which files are of which split, as `load_dataset` has it."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from fsspec.utils import glob_translate

from tokflow.errors import ConfigError, RawFileError
from tokflow.raw import Listing, RawConfig, list_raw
from tokflow.raw.globs import path_regex
from tokflow.raw.hub_repository import card_of
from tokflow.raw.source_splits import SourceSplits, find_splits
from tokflow_tests.raw.test_sources import make_files
from tokflow_tests.reading import texts_of

GLUE = """---
license: mit
configs:
- config_name: cola
  data_files:
  - split: train
    path: cola/train-*
- config_name: sst2
  default: true
  data_files:
  - split: train
    path: sst2/train-*
  - split: test
    path:
    - sst2/test-*
    - sst2/more/test.parquet
---
# GLUE
"""
GLUE_FILES = (
    "README.md",
    "cola/train-00000-of-00001.parquet",
    "sst2/more/test.parquet",
    "sst2/test-00000-of-00001.parquet",
    "sst2/train-00000-of-00001.parquet",
)


def splits(*paths: str, card: str = "", config: str | None = None) -> SourceSplits:
    fields = card_of(card, where="here")
    return find_splits(paths, fields, config=config, where="here")


def refusal(*paths: str, card: str = "", config: str | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        splits(*paths, card=card, config=config)
    return str(raised.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            (f"data/{of}-00000-of-00001.parquet" for of in ("test", "extra")),
            {"test": 0, "extra": 1},
        ),
        (("a/train/0.jsonl", "a/dev_set/0.jsonl", "b.jsonl"), {"train": 0, "validation": 1}),
        (("my-train.csv", "my.val.csv", "eval 2.csv"), {"train": 0, "validation": 1, "test": 2}),
        (("texts.txt", "__other__/a.txt", ".hidden/b.txt"), {"train": 0}),
        (("trainer.txt",), {"train": 0}),
    ],
)
def test_names_say_the_splits_where_no_card_does(files: tuple[str, ...], expected: dict[str, int]):
    files = tuple(files)
    found = splits("README.md", *files, card="# no fields").files

    assert found == {split: (files[number],) for split, number in expected.items()}
    assert list(found) == list(expected)


def test_the_card_says_the_configs_and_their_splits():
    assert splits(*GLUE_FILES, card=GLUE).files == {
        "train": ("sst2/train-00000-of-00001.parquet",),
        "test": ("sst2/test-00000-of-00001.parquet", "sst2/more/test.parquet"),
    }
    assert splits(*GLUE_FILES, card=GLUE, config="cola").files == {
        "train": ("cola/train-00000-of-00001.parquet",)
    }


@pytest.mark.parametrize(
    "fields",
    [
        "data_files: en/*.jsonl",
        "data_files: [en/a.jsonl, en/b.jsonl]",
        "data_dir: en",
        "data_dir: en/\n  data_files: '*'",
        "data_files: {train: en/*}",
    ],
)
def test_data_files_and_data_dir_are_written_in_several_ways(fields: str):
    card = f"---\nconfigs:\n- config_name: en\n  {fields}\n---\n"

    found = splits("en/a.jsonl", "en/b.jsonl", "de/a.jsonl", card=card)

    assert found == SourceSplits({"train": ("en/a.jsonl", "en/b.jsonl")}, {})


def test_an_unknown_config_is_refused_with_those_that_there_are():
    card = GLUE.replace("  default: true\n", "")

    assert "found 'sst';" in refusal(*GLUE_FILES, card=GLUE, config="sst")
    assert "found none, and no default;" in refusal(*GLUE_FILES, card=card)


def test_a_config_is_a_folder_where_no_card_names_configs():
    """As in the branch refs/convert/parquet of every dataset."""
    found = splits("sst2/train/0000.parquet", "cola/train/0000.parquet", config="sst2")

    assert found.files == {"train": ("sst2/train/0000.parquet",)}


def test_the_format_that_most_files_have_is_read_and_the_others_are_named():
    found = splits("train.jsonl", "test.jsonl", "train.csv", "extra.jsonl", "logo.png")

    assert found.files == {"train": ("train.jsonl",), "test": ("test.jsonl",)}
    assert found.left_out == {
        "train.csv": "csv, where most files are jsonl",
        "extra.jsonl": "a file of no split",
    }


def test_what_holds_no_documents_is_refused_by_name():
    assert "found README.md, train/cat.png;" in refusal("README.md", "train/cat.png")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ("data_files: [{split: train}]", "{'split': 'train'}"),
        ("data_files: hf://datasets/a/b/*", "'hf://datasets/a/b/*', outside of the dataset"),
        ("data_files: ../secret.txt", "'../secret.txt', outside of the dataset"),
        ("data_files: [{split: train, path: a}, {split: train, path: b}]", "'train' twice"),
    ],
)
def test_a_card_that_cannot_be_followed_is_refused(fields: str, found: str):
    card = f"---\nconfigs:\n- config_name: en\n  {fields}\n---\n"

    assert f"found {found};" in refusal("a.jsonl", card=card)


ALIASES = "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'a'}]\n" for n in range(9)
)
MERGES = "".join(
    f"x{n}: &x{n} {{a{n}: b, <<: [{f'*x{n - 1}, ' * 10 * (n > 0)}]}}\n" for n in range(9)
)


@pytest.mark.parametrize("fields", [ALIASES, MERGES, "configs: &all [*all]\n"])
def test_a_card_whose_aliases_multiply_is_refused(fields: str):
    with pytest.raises(ConfigError, match="found aliases that stand for more than 4,194,304 lett"):
        card_of(f"---\n{fields}---\n", where="here")


def test_a_card_may_have_aliases_and_be_no_deeper_than_can_be_read():
    assert card_of("---\na: &a [1]\nb: *a\n---\n", where="here") == {"a": [1], "b": [1]}
    for deep in ("[", "[" * 1_000):
        with pytest.raises(ConfigError, match=r"README.md: expected YAML"):
            card_of(f"---\na: {deep}\n---\n", where="here")


@pytest.mark.parametrize("pattern", ["*a" * 50 + "*b", "**/*a/" * 50 + "b"])
def test_no_pattern_of_a_card_takes_long(pattern: str):
    """As fsspec translates them neither came to an end in a minute."""
    card = f"---\nconfigs:\n- config_name: en\n  data_files: ['{pattern}', 'b.txt']\n---\n"
    paths = ("a" * 200, "a/" * 100 + "a", "b.txt")

    assert splits(*paths, card=card).files == {"train": ("b.txt",)}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a"]),
        ("**", ["a", "x/a", "x/y/b.c"]),
        ("**/a", ["a", "x/a"]),
        ("x/**", ["x/a", "x/y/b.c"]),
        ("x/**/?.c", ["x/y/b.c"]),
        ("**/y/**/[!a]*", ["x/y/b.c"]),
        ("x/*/*", ["x/y/b.c"]),
        ("x", []),
    ],
)
def test_a_pattern_matches_paths_as_in_fsspec(pattern: str, expected: list[str]):
    paths = ["a", "x/a", "x/y/b.c"]
    regex = re.compile(glob_translate(pattern))

    found = [path for path in paths if path_regex(pattern).match(path)]

    assert found == expected == [path for path in paths if regex.match(path)]


def save(folder: Path, *texts: str, split: str | None = None, num_files: int = 2) -> None:
    """Write the files of a Dataset as `datasets` 4 does: streams of Arrow, state and info."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{num_files:05d}.arrow" for number in range(num_files)]
    for number, name in enumerate(names):
        table = pa.table({"text": list(texts[number::num_files])})
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0123456789abcdef",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": split,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text("{}")


def save_splits(folder: Path) -> None:
    for split, texts in {"train": ("a", "b"), "unsupervised": ("c",)}.items():
        save(folder / split, *texts, split=split, num_files=1)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "unsupervised"]}')


def listed(folder: Path, files: str = "saved", **fields: object) -> Listing:
    config = RawConfig(files=files, **fields)
    return list_raw(config, base=folder)


def splits_of(listing: Listing) -> dict[str, str | None]:
    return {key: source.source_split for key, source in listing.sources.items()}


def refused(kind: type[Exception], folder: Path, **fields: object) -> str:
    with pytest.raises(kind) as raised:
        listed(folder, **fields)
    return str(raised.value)


def test_a_saved_dataset_is_read_from_the_files_that_it_names(tmp_path: Path):
    save(tmp_path / "saved", "a", "b", "c", split="validation")
    make_files(tmp_path / "saved", "cache-0f3a.arrow")

    listing = listed(tmp_path)

    named = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    assert splits_of(listing) == dict.fromkeys(named, "validation")
    texts = [texts_of(Path(source.url)) for source in listing.sources.values()]
    assert texts == [["a", "c"], ["b"]]
    assert [(left.path, left.found) for left in listing.left_out] == [
        (f"{tmp_path}/saved/cache-0f3a.arrow", "a file that state.json does not name")
    ]


def test_a_saved_dict_has_a_folder_for_each_split(tmp_path: Path):
    save_splits(tmp_path / "saved")
    of_train = {"train/data-00000-of-00001.arrow": "train"}

    other = {"unsupervised/data-00000-of-00001.arrow": "unsupervised"}
    assert splits_of(listed(tmp_path)) == {**of_train, **other}
    assert splits_of(listed(tmp_path, split="train")) == of_train
    assert splits_of(listed(tmp_path, files="saved/train/")) == {
        "data-00000-of-00001.arrow": "train"
    }
    assert "found 'test';" in refused(ConfigError, tmp_path, split="test")
    assert "found 'en';" in refused(ConfigError, tmp_path, config="en")


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

    said = refused(RawFileError, tmp_path)
    assert said.startswith(f"{tmp_path}/saved/state.json: expected ")
    assert f", found {found}" in said


def test_a_folder_is_read_as_load_dataset_reads_it(tmp_path: Path):
    make_files(tmp_path / "imdb", "train/0.jsonl", "test/0.jsonl", "test/0.csv")

    listing = listed(tmp_path, files="imdb", split="test")

    assert splits_of(listing) == {"test/0.jsonl": "test"}
    assert [left.found for left in listing.left_out] == ["csv, where most files are jsonl"]


def test_the_order_of_patterns_decides_no_split(tmp_path: Path):
    make_files(tmp_path, "imdb/train/0.jsonl", "imdb/test/0.jsonl")

    for other in ("imdb/train/0.jsonl", "imdb/train/*", "imdb/**"):
        for files in (["imdb", other], [other, "imdb"]):
            found = splits_of(listed(tmp_path, files=files))
            assert found == {"test/0.jsonl": "test", "train/0.jsonl": "train"}
    for files in (["imdb", "imdb/test"], ["imdb/test", "imdb"]):  # all is `train` in the latter
        assert "found 'test/0.jsonl' of" in refused(ConfigError, tmp_path, files=files)


def test_a_folder_of_which_some_files_would_be_passed_over_is_refused(tmp_path: Path):
    make_files(tmp_path / "texts", "a.jsonl", "b.jsonl", "my_test.jsonl")

    told = refused(ConfigError, tmp_path, files="texts")

    assert "found files that match no split: a.jsonl, b.jsonl;" in told
