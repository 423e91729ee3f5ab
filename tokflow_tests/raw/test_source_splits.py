"""Which files are of which split, as `load_dataset` has it."""

import re

import pytest
from fsspec.utils import glob_translate

from tokflow.errors import ConfigError
from tokflow.raw.globs import path_regex
from tokflow.raw.hub_repository import card_of
from tokflow.raw.source_splits import SourceSplits, find_splits

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
            ("data/test-00000-of-00001.parquet", "data/extra-00000-of-00001.parquet"),
            {"test": 0, "extra": 1},
        ),
        (("a/train/0.jsonl", "a/dev_set/0.jsonl", "b.jsonl"), {"train": 0, "validation": 1}),
        (("my-train.csv", "my.val.csv", "eval 2.csv"), {"train": 0, "validation": 1, "test": 2}),
        (("texts.txt", "__other__/a.txt", ".hidden/b.txt"), {"train": 0}),
        (("trainer.txt",), {"train": 0}),
    ],
)
def test_names_say_the_splits_where_no_card_does(files: tuple[str, ...], expected: dict[str, int]):
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
        (
            "data_files: hf://datasets/other/name/*",
            "'hf://datasets/other/name/*', outside of the dataset",
        ),
        ("data_files: ../secret.txt", "'../secret.txt', outside of the dataset"),
        (
            "data_files: [{split: train, path: en/*}, {split: train, path: de/*}]",
            "'train' twice",  # of which `datasets` reads none
        ),
    ],
)
def test_a_card_that_cannot_be_followed_is_refused(fields: str, found: str):
    card = f"---\nconfigs:\n- config_name: en\n  {fields}\n---\n"

    assert f"found {found};" in refusal("a.jsonl", card=card)


def test_a_card_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match=r"here: README.md: expected YAML between its first two"):
        card_of("---\na: [\n---\n", where="here")


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
    with pytest.raises(ConfigError, match=r"README.md: expected YAML"):
        card_of(f"---\na: {'[' * 1_000}\n---\n", where="here")


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
