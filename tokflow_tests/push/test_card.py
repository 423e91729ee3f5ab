import re
from pathlib import Path

import pytest
import yaml

from tokflow import open_export
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.push.contents import card_config, card_section, merged_card
from tokflow.push.repository import Target, read_target
from tokflow.raw.hub_repository import card_of
from tokflow_tests.tiny import TEXTS, build, declare

ROOT = read_target("hf://datasets/team/texts")
FOLDER = read_target("hf://datasets/team/texts/more")
TARGET = read_target("hf://datasets/team/texts/rows")
LOADED = {"parquet", "jsonl", "arrow", "hf_dataset", "webdataset"}

OWN = """---
# of ours
license: mit   # as agreed
configs:
- config_name: old
  data_files: old/*.csv

# the languages
language: [de, en]
---
# Our texts

Written by hand.
"""


def config_of(target, path="train.parquet"):
    return {"config_name": target.config, "data_files": [{"split": "train", "path": [path]}]}


def header_of(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_that_is_there_keeps_its_text_and_a_new_one_has_the_section():
    new = merged_card("", ROOT, config_of(ROOT), "About it.\n")
    assert header_of(new) == {"tags": ["tokflow"], "configs": [config_of(ROOT)]}
    assert "\n# texts\n" in new
    assert "\nAbout it.\n" in new

    card = merged_card(OWN, ROOT, config_of(ROOT), "About it.")

    old = {"config_name": "old", "data_files": "old/*.csv"}
    assert header_of(card)["configs"] == [old, config_of(ROOT)]
    assert card.startswith("---\n# of ours\nlicense: mit   # as agreed\nconfigs:\n")
    assert "\n\n# the languages\nlanguage: [de, en]\n---\n# Our texts\n\nWritten by hand.\n" in card


@pytest.mark.parametrize(
    "header",
    [
        *("a: [", "- a", "configs: 7", "configs: [a]"),
        "configs: [{config_name: default, data_files: mine.csv}]",  # which no push wrote
    ],
)
def test_a_header_that_has_no_fields_or_that_config_is_refused(header: str):
    with pytest.raises(ConfigError) as raised:
        merged_card(f"---\n{header}\n---\n", ROOT, config_of(ROOT), "About it.")

    assert raised.value.where == f"{ROOT.url}: README.md"


@pytest.mark.parametrize("text", ["", OWN, "Only text.\n", "---\n{license: mit}\n---\n", "---\nx"])
def test_a_card_that_has_it_is_the_same(text: str):
    once = merged_card(text, ROOT, config_of(ROOT), "About it.")
    both = merged_card(once, FOLDER, config_of(FOLDER), "More.")

    assert merged_card(both, ROOT, config_of(ROOT), "About it.") == both
    assert merged_card(both, FOLDER, config_of(FOLDER), "More.") == both


def test_marks_of_a_section_in_the_name_of_a_column_end_none():
    begin, end = (f"<!-- {of}tokflow: /" for of in ("", "end of "))
    section = f"columns: ['{end} -->', '{begin}; each push writes this anew, up to its end -->']"

    card = merged_card("", ROOT, config_of(ROOT), section)

    assert card.count(begin) == card.count(end) == 1
    assert merged_card(card, ROOT, config_of(ROOT), section) == card


def test_another_push_writes_its_own_section_alone():
    once = merged_card(OWN, ROOT, config_of(ROOT), "About it.")
    both = merged_card(once, FOLDER, config_of(FOLDER), "More.") + "\nAt the end.\n"

    card = merged_card(both, ROOT, config_of(ROOT, "b.parquet"), "New.")

    assert card == both.replace("About it.", "New.").replace("- train.parquet", "- b.parquet", 1)


def test_a_config_without_a_name_stays_beside_one_that_is_pushed_again():
    text = "---\nconfigs:\n- data_files: mine.csv\n---\nMine.\n"
    once = merged_card(text, ROOT, config_of(ROOT), "About it.")

    card = merged_card(once, ROOT, config_of(ROOT, "b.parquet"), "About it.")

    assert header_of(card)["configs"] == [{"data_files": "mine.csv"}, config_of(ROOT, "b.parquet")]


@pytest.mark.parametrize("header", ["'configs': []", '"configs" :', "configs: []\nconfigs: []"])
def test_configs_are_never_twice_in_a_header_however_their_key_is_written(header: str):
    card = merged_card(f"---\na: b  # c\n{header}\n---\n", ROOT, config_of(ROOT), "About it.")

    assert header_of(card) == {"a": "b", "configs": [config_of(ROOT)]}
    assert card.count("configs") == 1


def test_many_blank_lines_behind_configs_are_passed_over_at_once():
    blank = "\n" * 60
    text = f"---\nconfigs: []\n{blank}license: mit  # as agreed\n---\n"

    card = merged_card(text, ROOT, config_of(ROOT), "About it.")

    assert header_of(card) == {"configs": [config_of(ROOT)], "license": "mit"}
    assert f"{blank}license: mit  # as agreed\n" in card


def test_an_alias_of_what_is_in_configs_can_still_be_read():
    configs = "configs:\n- config_name: other\n  data_files: &files q.csv\n"
    text = f"---\n{configs}more: *files\n---\nMine.\n"

    fields = card_of(merged_card(text, ROOT, config_of(ROOT), "About it."), where="card")

    assert fields["more"] == "q.csv"
    assert [of["config_name"] for of in fields["configs"]] == ["other", "default"]


def test_two_folders_are_never_one_config():
    text = merged_card("", read_target(f"{ROOT.url}/a/b"), config_of(FOLDER), "About it.")
    text = text.replace("config_name: more", "config_name: a-b")
    other = read_target(f"{ROOT.url}/a-b")

    with pytest.raises(ConfigError, match="or of another folder"):
        merged_card(text, other, config_of(other, "a-b/train.parquet"), "More.")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the exports of a dataset whose raw files do not begin alike."""
    dataset = declare(tmp_path_factory.mktemp("made"), TEXTS, exports=[*FORMATS])
    build(dataset)
    return dataset.folder / "exports"


def recipes(section: str) -> dict[str, dict[str, object]]:
    [block] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    return yaml.safe_load(block)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_has_lines_that_load_it(format_: str, made: Path):
    export = open_export(made / format_)

    section = card_section(export, TARGET)

    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        compile(block, "README.md", "exec")
    assert ("load_dataset" in section) == (format_ in LOADED)
    assert ("open_rows" in section) == export.is_read
    splits = [of["split"] for of in card_config(export, TARGET)["data_files"]]
    assert splits == (["train"] if format_ in LOADED else ["index"])


def test_the_recipe_goes_down_to_the_tokenizer(made: Path):
    section = card_section(open_export(made / "parquet"), TARGET)

    found = recipes(section)
    assert [*found] == ["export", "sequences", "split", "tokens", "tokenizer"]
    assert found["tokenizer"] == {"version": 2, "kind": "bytes"}
    assert "| train | 52 | 13 |" in section


def test_without_its_store_an_export_has_its_own_recipe(made: Path, tmp_path: Path):
    export = open_export(made / "bin")
    copy = export.folder.rename(tmp_path / export.folder.name)
    try:
        section = card_section(open_export(copy), TARGET)
    finally:
        copy.rename(export.folder)

    assert [*recipes(section)] == ["export"]


@pytest.mark.parametrize(
    ("url", "expected", "config"),
    [
        ("hf://datasets/a/b", Target(name="a/b"), "default"),
        ("hf://datasets/a/b/", Target(name="a/b"), "default"),
        ("hf://datasets/a/b/c/d/", Target(name="a/b", folder="c/d/"), "c-d"),
        ("hf://datasets/a/b@dev/c", Target(name="a/b", revision="dev", folder="c/"), "c"),
        ("hf://datasets/a/b@refs/pr/3", Target(name="a/b", revision="refs/pr/3"), "default"),
    ],
)
def test_a_url_names_repository_revision_and_folder(url: str, expected: Target, config: str):
    assert read_target(url) == expected
    assert read_target(expected.url) == expected
    assert expected.config == config


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("hf://datasets/a/b@dev", "'dev' and 'main'"),
        ("hf://datasets/b", "hf://datasets/b"),
        ("hf://a/b", "hf://a/b"),
        ("s3://a/b", "s3://a/b"),
        ("data/exports", "data/exports"),
        ("hf://datasets/a/b/..", "'..'"),
        ("hf://datasets/a/b/.git/x", "'.git/x'"),
        ("hf://datasets/a/b/a b", "'a b'"),
        (f"hf://datasets/a/b@{'0' * 40}", f"the commit {'0' * 40}"),
    ],
)
def test_any_other_url_is_refused(url: str, found: str):
    with pytest.raises(ConfigError) as raised:
        read_target(url, revision="main" if url.endswith("@dev") else None)

    assert raised.value.found == found
