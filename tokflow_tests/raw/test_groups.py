"""Groups of raw files: which of them a partition is made of."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.raw import GroupProposal, RawConfig, RawSource, partitions_of
from tokflow.raw.sources import check_key


def sources_in(folder: Path, sizes: Mapping[str, int]) -> dict[str, RawSource]:
    for key, size in sizes.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(b"x" * size)
    urls = {key: os.fspath(folder / key) for key in sizes}
    return {key: RawSource(key=key, url=url, is_local=True) for key, url in urls.items()}


def groups(
    sources: Mapping[str, RawSource],
    group: int | str | None,
    *,
    largest: int = 10**9,
    kind_of: Callable[[str], object] = lambda _: 0,
) -> dict[str, list[str]]:
    size = RawConfig(files="*", group=group).group
    found = partitions_of(
        sources, size, is_alone=lambda _, num_bytes: num_bytes > largest, kind_of=kind_of
    )
    return {key: [source.key for source in of] for key, of in found.items()}


SIZES = {"a": 3, "b": 3, "c/d": 4, "e": 9, "f": 1, "g": 1}


def test_neighbours_are_a_group_as_long_as_they_fit(tmp_path: Path):
    sources = sources_in(tmp_path, SIZES)
    ten = {"group/a": ["a", "b", "c/d"], "group/e": ["e", "f"], "group/g": ["g"]}

    assert groups(sources, None) == {key: [key] for key in SIZES}
    assert groups(sources, 4) == {"group/a": ["a", "b", "c/d", "e"], "group/f": ["f", "g"]}
    assert groups(sources, "10 B") == ten
    assert groups(sources, "1 B") == {f"group/{key}": [key] for key in SIZES}
    (tmp_path / "b").unlink()  # a file that is gone is in a group all the same
    assert groups(sources, "1 kB") == {"group/a": list(SIZES)}


def test_a_large_file_is_alone_and_so_is_another_kind(tmp_path: Path):
    sources = sources_in(tmp_path, SIZES)

    large = groups(sources, 100, largest=3)
    others = groups(sources, 100, kind_of=lambda key: key in "bg")

    assert list(large.values()) == [["a", "b"], ["c/d"], ["e"], ["f", "g"]]
    assert list(large) == ["group/a", "group/c/d", "group/e", "group/f"]
    assert list(others.values()) == [["a"], ["b"], ["c/d", "e", "f"], ["g"]]


def test_remote_files_are_grouped_by_number_alone():
    urls = [f"https://host/{number}.txt" for number in range(3)]
    sources = {url[-5:]: RawSource(key=url[-5:], url=url, is_local=False) for url in urls}

    assert groups(sources, 2) == {"group/0.txt": ["0.txt", "1.txt"], "group/2.txt": ["2.txt"]}
    with pytest.raises(ConfigError) as raised:
        groups(sources, "1 GB")
    assert raised.value.where == "raw.group"
    assert raised.value.found == "bytes, and the remote file 0.txt"


@pytest.mark.parametrize("group", [0, -1, True, 1.5, "", "10", "GB", "1 XB", "-1 GB", []])
def test_what_is_no_size_is_refused(group: object):
    with pytest.raises(ConfigError) as raised:
        RawConfig(files="*", group=group)

    assert f"found {group!r};" in str(raised.value)


def test_groups_of_many_small_files_are_proposed_with_what_they_save():
    assert str(GroupProposal.of(5_000, 30_000_000)) == (
        "5,000 files of 6.0 kB each: 5,000 partitions; `raw: {group: 250}` makes 20, "
        "which are built about 13 times as fast"
    )
    assert "`raw: {group: 500}` makes 200," in str(GroupProposal.of(100_000, 1))
    assert GroupProposal.of(999, 999) is None
    assert GroupProposal.of(1_000, 100_000_001) is None


REFUSED = {
    "": "an empty name",
    "a//b": "an empty name",
    "a/": "an empty name",
    "/a": "an absolute path",
    ".": "the name '.'",
    "a/../b": "the name '..'",
    "a...b": "'...', which separates the ends of a range of partitions",
    "a\nb": "the control character '\\n'",
    "a\x7fb": "the control character '\\x7f'",
    "a\u2028b": "the control character '\\u2028'",
    "a\\b": "a backslash",
    "a\udcff": "a name that is not UTF-8",
    "ä" * 128: "a name of 256 bytes, where file systems allow 255",
    "a/latest": "the name 'latest', which tokflow gives the link to the newest output",
    "a/Latest": "the name 'Latest', which tokflow gives the link to the newest output",
    "a/0123456789abcdef": (
        "the name '0123456789abcdef', 16 hexadecimal digits as of an output's folder"
    ),
    "a/.x.12.0a1b2c3d.tmp": (
        "the name '.x.12.0a1b2c3d.tmp', which tokflow gives its own temporary files"
    ),
    "a/.blocks-0": "the name '.blocks-0', which tokflow gives its own temporary files",
    "a/.source.json": "the name '.source.json', which tokflow gives its own temporary files",
    "a/.lock": "the name '.lock', which tokflow gives its own temporary files",
}


@pytest.mark.parametrize(("key", "found"), REFUSED.items())
def test_a_key_that_could_leave_the_store_or_clash_in_it_is_refused(key: str, found: str):
    with pytest.raises(ConfigError) as raised:
        check_key(key)

    assert f"found {found};" in str(raised.value)


@pytest.mark.parametrize(
    "key",
    ["a.txt", "en/wiki/part 1.jsonl.gz", "..a", "a..b", ".hidden", "日本/ä.txt", "0123456789abcde",
     "latest.txt", "a,b|c:d", "_tokflow", "x" * 255],
)  # fmt: skip
def test_any_other_path_is_a_key(key: str):
    check_key(key)


def test_a_name_that_the_locale_cannot_read_names_the_locale(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")

    check_key("a.jsonl")
    with pytest.raises(ConfigError, match="found one of ascii; set LC_ALL"):
        check_key("größe.jsonl")
