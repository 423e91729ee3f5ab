"""Folders that a pattern matches, and what else it matches that is no file."""

import os
import stat
from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.raw import Listing, RawConfig, list_raw
from tokflow_tests.raw.test_listing import make_files

SPARK = (
    "raw/x.parquet/part-00000-1f.c000.snappy.parquet",
    "raw/x.parquet/date=1/part-00001-1f.c000.snappy.parquet",
    "raw/x.parquet/_hidden=1/part-00002-1f.c000.snappy.parquet",
    "raw/x.parquet/_SUCCESS",
    "raw/x.parquet/_metadata",
    "raw/x.parquet/_temporary/0/part-00003-1f.c000.snappy.parquet",
    "raw/x.parquet/.part-00000-1f.c000.snappy.parquet.crc",
)
KEYS = [
    "x.parquet/_hidden=1/part-00002-1f.c000.snappy.parquet",
    "x.parquet/date=1/part-00001-1f.c000.snappy.parquet",
    "x.parquet/part-00000-1f.c000.snappy.parquet",
]


def listing(folder: Path, *files: str) -> Listing:
    return list_raw(RawConfig(files=files), base=folder)


def left_out(folder: Path, *files: str) -> dict[str, str]:
    found = listing(folder, *files).left_out
    return {left.path.removeprefix(f"{folder}/"): left.found for left in found}


@pytest.mark.parametrize("pattern", ["raw/*.parquet", "raw/*", "raw/**", "raw/**/*.parquet"])
def test_a_folder_of_data_files_stands_for_them(pattern: str, tmp_path: Path):
    make_files(tmp_path, *SPARK, "raw/y.parquet")

    assert list(listing(tmp_path, pattern).sources) == [*KEYS, "y.parquet"]
    assert left_out(tmp_path, pattern) == {}


def test_links_in_such_a_folder_are_read_if_they_lead_to_files_and_else_told(tmp_path: Path):
    make_files(tmp_path, "raw/x.parquet/a.parquet", "other/b.parquet")
    for name, target in {
        "up": "..", "again": ".", "disk": "../../other", "c.parquet": "gone", "_d": "gone",
        "e.parquet": "../../other/b.parquet",
    }.items():  # fmt: skip
        (tmp_path / "raw/x.parquet" / name).symlink_to(target)
    files = ["x.parquet/a.parquet", "x.parquet/e.parquet"]

    assert list(listing(tmp_path, "raw/*").sources) == files
    assert left_out(tmp_path, "raw/*") == {
        "raw/x.parquet/again": "a link to a folder",
        "raw/x.parquet/c.parquet": "a link that leads nowhere",
        "raw/x.parquet/disk": "a link to a folder",
        "raw/x.parquet/up": "a link to a folder",
    }
    (tmp_path / "raw/x.parquet/c.parquet").unlink()  # no name that ** matches may lead nowhere
    (tmp_path / "raw/x.parquet/_d").unlink()
    assert list(listing(tmp_path, "raw/**").sources) == files


def test_such_a_folder_may_be_named(tmp_path: Path):
    make_files(tmp_path, *SPARK, "raw/empty.parquet/_SUCCESS")

    assert list(listing(tmp_path, "raw/x.parquet/").sources) == KEYS
    with pytest.raises(ConfigError, match=r"expected the file .*, found a folder;"):
        listing(tmp_path, "raw/empty.parquet")


def test_whatever_else_a_pattern_matches_is_told(tmp_path: Path):
    make_files(tmp_path, "raw/a.txt", "raw/sub/b.txt", "raw/x.parquet/_SUCCESS")
    os.mkfifo(tmp_path / "raw/pipe")
    os.mknod(tmp_path / "raw/socket", stat.S_IFSOCK)

    assert left_out(tmp_path, "raw/*") == {
        "raw/pipe": "a fifo",
        "raw/socket": "a socket",
        "raw/sub": "a folder",
        "raw/x.parquet": "a folder without a parquet file",
    }


@pytest.mark.parametrize("pattern", ["raw/*/*.txt", "raw/**/*.txt"])
def test_a_link_that_leads_to_no_folder_is_told(pattern: str, tmp_path: Path):
    make_files(tmp_path, "raw/sub/a.txt")
    (tmp_path / "raw/disk").symlink_to(tmp_path / "gone")

    assert left_out(tmp_path, pattern) == {"raw/disk": "a link that leads nowhere"}


def test_what_another_pattern_reads_is_not_left_out(tmp_path: Path):
    make_files(tmp_path, "raw/a.txt", "raw/sub/b.txt")

    assert left_out(tmp_path, "raw/*", "raw/sub/*.txt") == {}
    assert left_out(tmp_path, "raw/**") == {}
