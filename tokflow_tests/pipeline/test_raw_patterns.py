from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.raw_patterns import name_of, patterns_of, shortened_to


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


@pytest.mark.parametrize(
    ("named", "expected", "name"),
    [
        (["raw/a.jsonl"], ["raw/a.jsonl"], "a"),
        (["raw/*.jsonl"], ["raw/*.jsonl"], "raw"),
        (["raw/a.jsonl", "raw/b.jsonl"], ["raw/*.jsonl"], "raw"),  # a glob that the shell resolved
        (["raw/a.jsonl", "raw/c.json"], ["raw/a.jsonl", "raw/c.json"], "raw"),
        (["few/a.txt", "few/b.txt"], ["few/a.txt", "few/b.txt"], "few"),  # not all of them
        (["few/b.txt", "few/b2.txt"], ["few/b*.txt"], "few"),
        (["set/1/x-00.txt", "set/2/x-07.txt"], ["set/*/*.txt"], "set"),
        (["raw/../raw/./a.jsonl"], ["raw/a.jsonl"], "a"),
        (["t.parquet"], ["t.parquet"], "t"),  # Spark's folder is read as one table
        (["deep"], ["deep/**/*.csv.gz"], "deep"),
        (["odd/[1].txt"], ["odd/[[]1].txt"], "1"),
        (["odd"], ["odd/*.txt"], "odd"),
        (["data"], ["data/*.csv", "data/x/**/*.csv"], "data"),  # and not data/**/*.csv
        (["data/*/*.csv"], ["data/*/*.csv"], "data"),
        (["~no"], ["~no/*.txt"], "no"),
        (["~no/*.txt"], ["~no/*.txt"], "no"),  # no home folder, for there is no such user
    ],
)
def test_patterns_are_those_that_a_person_would_write(
    tmp_path: Path, named: list[str], expected: list[str], name: str
):
    files(tmp_path, "raw/a.jsonl", "raw/b.jsonl", "raw/c.json", "t.parquet/part-0.parquet")
    files(tmp_path, "few/a.txt", "few/b.txt", "few/b2.txt", "set/1/x-00.txt", "set/2/x-07.txt")
    files(tmp_path, "deep/x/a.csv.gz", "deep/b.csv.gz", "deep/README", "odd/[1].txt", "~no/a.txt")
    files(tmp_path, "data/a.csv", "data/x/y/b.csv", "data/x/c.csv", "data/store/x/y/z.csv")

    patterns = patterns_of(named, here=tmp_path, store=tmp_path / "data/store")

    assert shortened_to(tmp_path, patterns) == expected
    assert name_of(patterns) == name


def test_of_a_folder_the_format_with_most_bytes_is_taken(tmp_path: Path):
    files(tmp_path, "README.txt", "a.parquet", "b.parquet")
    (tmp_path / "a.parquet").write_text("larger than the rest")

    patterns = patterns_of(["."], here=tmp_path, store=tmp_path / "store")

    assert shortened_to(tmp_path, patterns) == ["*.parquet"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("https://user:secret@host/a.jsonl", "found a URL; download one of the files"),
        ("empty", "found no file; name another folder"),
        ("data/store", "found no file; name another folder"),
        ("data/**/*.txt", "found a path or glob that matches files in it; name the folders"),
        ("*/*/*/*.txt", "found a path or glob that matches files in it"),
        ("*/store/**", "found a path or glob that matches files in it"),
        ("data/store/x/a.txt", "expected raw files outside of .*/data/store, where all outputs go"),
    ],
)
def test_what_cannot_be_looked_at_is_an_error(tmp_path: Path, named: str, message: str):
    (tmp_path / "empty").mkdir()
    files(tmp_path, "data/store/x/a.txt")

    with pytest.raises(ConfigError, match=message) as raised:
        patterns_of([named], here=tmp_path, store=tmp_path / "data/store")

    assert "secret" not in str(raised.value)
