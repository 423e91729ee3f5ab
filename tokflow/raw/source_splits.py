"""The files of each split of a folder or repository, as the `datasets` library finds them.

Source: huggingface/datasets at b7cb10b, data_files.py (patterns and what they pass over),
load.py lines 210-256 (the format that most files have), utils/metadata.py (the card).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokflow.errors import ConfigError, first_five, nearest
from tokflow.raw.globs import FormatOf, escaped, path_regex

CARD = "README.md"
"""The file that may say, between two lines of `---`, which configs there are."""

OF_NO_SPLIT = "a file of no split"
"""The reason why a file is left out whose name says no split, where others do."""

MAX_LETTERS = 2**22
"""Of what a card says: beyond any that there is, and little to keep in memory and in a store."""

_SHARDED = re.compile(r"data/([^./][^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
"""Files that `push_to_hub` writes."""
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""What a name has in it, by the split that it says."""
_IN_FOLDER = ("**/{0}/**", "**/{0}[{1}]*/**", "**/*[{1}]{0}/**", "**/*[{1}]{0}[{1}]*/**")
_IN_NAME = ("**/{0}[{1}]*", "**/*[{1}]{0}[{1}]*")
_BETWEEN_WORDS = "-._ 0-9"
_IGNORED = {
    CARD,
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
}
_FAVOURITES = ("parquet", "arrow", "jsonl", "csv", "txt", "tsv")
"""Formats: of two that as many files have the first is taken."""

_Patterns = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SourceSplits:
    """The data files of one config."""

    files: Mapping[str, tuple[str, ...]]
    """Their paths by split, in the order of the card, or train, validation, test."""
    left_out: Mapping[str, str]
    """Other files that look like data, and the reason why each is not read."""


def find_splits(
    paths: Iterable[str],
    card: Mapping[str, Any],
    config: str | None,
    *,
    where: str,
    format_of: FormatOf,
) -> SourceSplits:
    """Return the files of each split of a config, of those at `paths`.

    `card`: what `card_of` gave. Of a repository without `configs` there the splits are those that
    the names of folders or files say, and all is `train` where none does; `config` may then name
    a folder. Files are of one format: the one that most of them have.

    Raises: ConfigError, which names the configs that there are.
    """
    paths = sorted(paths)
    fields = _config_of(card, paths, config, where=where)
    folder = str(fields.get("data_dir") or "").strip("/")
    within = f"{folder}/" if folder else ""
    below = [path.removeprefix(within) for path in paths if path.startswith(within)]
    patterns = _patterns(fields.get("data_files"), below, where=where)
    found = {split: _matching(below, each) for split, each in patterns.items()}
    kept, left_out = _of_one_format(found, format_of)
    if not card.get("configs"):
        taken = {path for files in found.values() for path in files}
        others = (path for path in below if path not in taken and _name(path) not in _IGNORED)
        left_out |= {path: OF_NO_SPLIT for path in others if format_of(_name(path))}
    if not kept:
        raise ConfigError(
            where=where,
            expected="data files of a format that documents are read from",
            found=first_five(below) or "no file",
            remedy="name the files by a pattern, or set revision: refs/convert/parquet, where the "
            "hub has many datasets as parquet",
        )
    return SourceSplits(
        {split: tuple(within + path for path in files) for split, files in kept.items()},
        {within + path: reason for path, reason in left_out.items()},
    )


def divided(card: str) -> tuple[str, str]:
    """Return the lines between the first two of `---`, and what follows them; all of a card without
    these is what follows."""
    text = card.removeprefix("\ufeff")
    # With their ends; str.splitlines takes a form feed for one.
    lines = re.findall(r".*?(?:\r\n|\r|\n)|.+", text, re.DOTALL)
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    if len(ends) < 2 or ends[0] > 0:
        return "", card
    return "".join(lines[1 : ends[1]]), "".join(lines[ends[1] + 1 :])


def card_of(text: str, *, where: str) -> dict[str, Any]:
    """Return what a card says, between its first two lines of `---`; nothing where it has none.

    Raises: ConfigError for what is no YAML, and where its aliases, one of others, make a card of
    more than MAX_LETTERS.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(divided(text)[0])
        node = loader.get_single_node()
        if node is not None and _num_letters(node, {}) > MAX_LETTERS:
            raise yaml.YAMLError(f"aliases that stand for more than {MAX_LETTERS:,} letters")
        fields = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            where=f"{where}: {CARD}",
            expected="YAML between its first two lines of `---`",
            found=" ".join(str(error).split()),
            remedy="name another revision, or the files by a pattern",
        ) from None
    return fields if isinstance(fields, dict) else {}


def _num_letters(node: Any, known: dict[int, int]) -> int:
    """Return how many letters and values a node of YAML stands for, with each alias written out."""
    if id(node) not in known:
        known[id(node)] = MAX_LETTERS + 1  # of an alias within what it stands for
        if isinstance(node.value, str):
            known[id(node)] = 1 + len(node.value)
        else:
            pairs = (each if isinstance(each, tuple) else (each,) for each in node.value)
            known[id(node)] = 1 + sum(_num_letters(of, known) for pair in pairs for of in pair)
    return known[id(node)]


def _config_of(
    card: Mapping[str, Any], paths: Sequence[str], config: str | None, *, where: str
) -> Mapping[str, Any]:
    """Return the fields of a config: the one asked for, or the default."""
    listed = card.get("configs") or []
    known = {
        str(fields["config_name"]): fields
        for fields in (listed if isinstance(listed, list) else [])
        if isinstance(fields, dict) and "config_name" in fields
    }
    if not known:
        folders = {path.partition("/")[0] for path in paths if "/" in path}
        if config in (None, "default"):
            return {}
        if config in folders:
            return {"data_dir": config}
    elif config is None:
        defaults = [name for name, fields in known.items() if fields.get("default")]
        name = next(iter(known)) if len(known) == 1 else next(iter(defaults), "default")
        if name in known:
            return known[name]
    elif config in known:
        return known[config]
    names = list(known) or ["default"]
    asked = "" if config is None else nearest(config, names)
    raise ConfigError(
        where=f"{where}: raw.config",
        expected=f"one of {', '.join(names)}",
        found="none, and no default" if config is None else repr(config),
        remedy=asked or "name one of them",
    )


def _patterns(data_files: object, paths: Sequence[str], *, where: str) -> _Patterns:
    """Return the patterns of each split: those that a card has, or else what names say."""
    if data_files is None:
        return _by_name(paths)
    given = data_files if isinstance(data_files, list) else [data_files]
    if isinstance(data_files, dict):
        given = [{"split": split, "path": path} for split, path in data_files.items()]
    if all(isinstance(each, str) for each in given):
        given = [{"split": "train", "path": given}]
    patterns: dict[str, list[str]] = {}
    found = ""
    for each in given:
        if not isinstance(each, dict) or set(each) != {"split", "path"}:
            found = found or repr(each)
            continue
        split, listed = str(each["split"]), each["path"]
        found = found or f"{split!r} twice" * (split in patterns)
        patterns[split] = [str(path) for path in (listed if isinstance(listed, list) else [listed])]
    for pattern in (one for some in patterns.values() for one in some):
        if "://" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            found = found or f"{pattern!r}, a place elsewhere"
    if found:
        raise ConfigError(
            where=f"{where}: data_files in {CARD}",
            expected="a pattern, a list of them, or a list of {split, path}, each split once",
            found=found,
            remedy="name the files by a pattern instead, as hf://datasets/org/name/data/*.parquet",
        )
    return patterns


def _by_name(paths: Sequence[str]) -> _Patterns:
    """Return the patterns of each split that names of files or folders say."""
    sharded = sorted({match[1] for path in paths if (match := _SHARDED.fullmatch(path))})
    ends = "[0-9]" * 5
    of_shards = {
        split: [f"data/{escaped(split)}-{ends}-of-{ends}*.*"]
        for split in (*_WORDS, *sharded)
        if split in sharded
    }
    of_words = [
        {
            split: [form.format(word, _BETWEEN_WORDS) for word in words for form in forms]
            for split, words in _WORDS.items()
        }
        for forms in (_IN_FOLDER, _IN_NAME)
    ]
    for patterns in (of_shards, *of_words):
        if found := {split: each for split, each in patterns.items() if _matching(paths, each)}:
            return found
    return {"train": ["**"]}


def _matching(paths: Sequence[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that one of the patterns matches, each once, in the order of patterns."""
    found: dict[str, None] = {}
    for pattern in (each.removeprefix("./") for each in patterns):
        matches, num_hidden = path_regex(f"/{pattern}").match, _num_hidden(pattern)
        ignored = _IGNORED - {_name(pattern)}
        for path in paths:
            if matches(f"/{path}") and _num_hidden(path) == num_hidden:
                found |= {} if _name(path) in ignored else {path: None}
    return tuple(found)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _num_hidden(path: str) -> tuple[int, int]:
    """Return how many names begin with a dot, and how many folders with `__`, which are passed over
    as well: a pattern takes them where it has as many."""
    *folders, name = path.split("/")
    with_dot = (of.startswith(".") and of.strip(".") != "" for of in (*folders, name))
    return sum(with_dot), sum(of.startswith("__") for of in folders)


def _of_one_format(
    splits: Mapping[str, tuple[str, ...]], format_of: FormatOf
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the files of each split of the format that most have, and why others are left out."""
    formats = {path: format_of(_name(path)) for files in splits.values() for path in files}
    num_files = Counter(formats[path] for files in splits.values() for path in files)
    most = max(_FAVOURITES, key=lambda format_: num_files[format_])
    kept = {
        split: tuple(path for path in files if formats[path] == most)
        for split, files in splits.items()
    }
    left_out = {
        path: f"{format_}, where most files are {most}"
        for path, format_ in formats.items()
        if format_ not in (None, most)
    }
    return {split: files for split, files in kept.items() if files}, left_out
