"""The files of each split of repositories drawn by chance are those that `datasets` finds.

REPOSITORIES=3000 draws as many; `datasets` opens half of them or more, and refuses the rest.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokflow.raw.globs import format_of_name, path_regex
from tokflow.raw.hub_repository import card_of
from tokflow.raw.source_splits import find_splits
from tokflow_tests.interop.harness import printed_by

pytestmark = pytest.mark.interop

NUM_REPOSITORIES = int(os.environ.get("REPOSITORIES", "200"))

FIND = """
import json, sys
from pathlib import Path
import datasets
datasets.disable_progress_bars()
datasets.logging.set_verbosity_error()

def splits_of(folder, config):
    try:
        builder = datasets.load_dataset_builder(str(folder), config)
    except Exception:
        return {}
    start = f"{folder.resolve()}/"
    return {
        str(split): sorted({path.removeprefix(start).removeprefix("./") for path in files})
        for split, files in builder.config.data_files.items()
    }

cases = json.loads(Path(sys.argv[1]).read_text())
found = [splits_of(Path(folder), config) for folder, config in cases]
Path(sys.argv[2]).write_text(json.dumps(found))
"""

FOLDERS = ["", "", "data/", "en/", "de/", "train/", "test/", "dev/", "my-train/", "x_test_2/"]
FOLDERS += ["a/b/", "a/b/", "Train/", "validation/en/", "__x__/", ".h/", "trainer/", "val/"]
STEMS = ["a", "b", "train", "test", "valid", "dev_1", "my-train", "train.part0", "x_eval"]
STEMS += ["training-2", "evaluation 3", "trains", "testing", "0", "part-00001", "TRAIN", ".hidden"]
STEMS += ["_meta", "val2", "train-00000-of-00002", "train-00001-of-00002", "x-00000-of-00001"]
STEMS += ["test-00000-of-00001-ab"]
SUFFIXES = [".jsonl", ".jsonl", ".jsonl", ".parquet", ".csv", ".txt", ".jsonl.gz", ".tsv"]
SUFFIXES += [".arrow"]
OTHERS = ["README.md", "LICENSE", "logo.bin", "config.json", "notes.rst"]
PATTERNS = ["**", "*", "*.jsonl", "data/*", "en/**", "**/train*", "*/*.csv", "**/*.parquet", "de"]
PATTERNS += ["data/train-*", "a.jsonl", "./en/*", "__x__/*", ".h/*", "**/[a-m]*", "**/?.txt"]


def repository(random: random.Random) -> tuple[list[str], str, str | None]:
    """Return the paths of a repository, its card, and the config asked for."""
    suffixes = random.choices(SUFFIXES, k=random.choice((1, 1, 1, 1, 2)))
    names = random.sample(STEMS, k=random.randint(1, 5))
    folders = random.sample(FOLDERS, k=random.randint(1, 4))
    paths = {
        random.choice(folders) + random.choice(names) + random.choice(suffixes)
        for _ in range(random.randint(1, 9))
    }
    paths |= set(random.sample(OTHERS, k=random.choice((0, 0, 1, 2))))
    configs: list[dict[str, Any]] = []
    for name in random.sample(["en", "de", "default", "all"], k=random.choice((0, 0, 0, 1, 2, 3))):
        fields: dict[str, Any] = {"config_name": name}
        if random.random() < 0.3:
            fields["data_dir"] = random.choice(["en", "data", "de/", "train"])
        if random.random() < 0.8:
            fields["data_files"] = data_files(random, sorted(paths))
        if random.random() < 0.3 and not any("default" in each for each in configs):
            fields["default"] = True
        configs.append(fields)
    card = f"---\n{yaml.safe_dump({'license': 'mit', 'configs': configs})}---\n" if configs else ""
    asked = [each["config_name"] for each in configs] if configs else ["default", "en", "data"]
    return sorted(paths), card, random.choice([None, None, None, *asked])


def data_files(random: random.Random, paths: list[str]) -> Any:
    """Return what a card may have for data_files; `datasets` refuses what matches no file."""
    known = [pattern for pattern in PATTERNS if any(map(path_regex(pattern).match, paths))]
    patterns = random.sample(known, k=min(len(known), random.randint(1, 3)))
    splits = random.sample(["train", "test", "validation", "mine"], k=len(patterns))
    listed = [{"split": split, "path": path} for split, path in zip(splits, patterns, strict=True)]
    forms = [patterns[0], patterns, listed, listed]
    forms.append([{"split": "train", "path": patterns}])
    return random.choice(forms)


def test_the_files_of_each_split_are_those_that_datasets_finds(tmp_path: Path):
    draw = random.Random(28)
    cases = [repository(draw) for _ in range(NUM_REPOSITORIES)]
    asked = []
    for number, (paths, card, config) in enumerate(cases):
        folder = tmp_path / "repositories" / str(number)
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(card if path == "README.md" else "")
        if card:
            (folder / "README.md").write_text(card)
        asked.append((str(folder), config))
    (tmp_path / "cases.json").write_text(json.dumps(asked))
    given = tmp_path / "cases.json", tmp_path / "found.json"
    printed_by("datasets", FIND, *given, home=tmp_path / "home", HF_HUB_OFFLINE="1")
    found = json.loads((tmp_path / "found.json").read_text())

    num_compared = 0
    for (paths, card, config), theirs in zip(cases, found, strict=True):
        if not any(theirs.values()):
            continue
        files = {*paths, "README.md"}
        ours = find_splits(files, card_of(card, where="here"), config, where="here")
        found_here = {split: sorted(paths) for split, paths in ours.files.items()}
        assert found_here == of_one_format(theirs), (paths, card, config)
        num_compared += 1
    assert num_compared > NUM_REPOSITORIES / 3, num_compared


def of_one_format(splits: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the files that can be read together: `datasets` takes those of other formats that a
    card's pattern matches, and fails on them; of csv and tsv it cuts all lines at tabs. A file that
    two patterns match it reads twice."""
    order = ["parquet", "arrow", "jsonl", "csv", "txt", "tsv"]
    formats = Counter(format_of_name(path) for files in splits.values() for path in files)
    first = min(filter(None, formats), key=lambda each: (-formats[each], order.index(each)))
    kept = {
        split: [path for path in files if format_of_name(path) == first]
        for split, files in splits.items()
    }
    return {split: files for split, files in kept.items() if files}
