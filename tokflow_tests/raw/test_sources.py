import os
import stat
from pathlib import Path

import fsspec
import pytest

from tokflow.errors import ConfigError, RawFileError
from tokflow.raw import Listing, RawConfig, RawSource, list_raw
from tokflow.raw.buckets import find_keys
from tokflow.raw.globs import path_regex


def make_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def sources_of(folder: Path, *files: str, store: Path | None = None) -> dict[str, RawSource]:
    config = RawConfig(files=files)
    return list_raw(config, base=folder, store=store).sources


def keys(folder: Path, *files: str) -> list[str]:
    return list(sources_of(folder, *files))


def message(error: type[Exception], folder: Path, *files: str) -> str:
    with pytest.raises(error) as raised:
        keys(folder, *files)
    return str(raised.value)


GLOBS = {
    "*.txt": ["a.txt", "b.txt"],
    "?.txt": ["a.txt", "b.txt"],
    "[a].txt": ["a.txt"],
    "[!a]*.txt": ["b.txt"],
    "d/*": ["c.txt"],
    "*/*.txt": ["d/c.txt"],
    "**": ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt"],
    "**/*.txt": ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt"],
    "**/e/*.txt": ["d/e/f.txt"],
    "**/**/f.txt": ["d/e/f.txt"],
    "./d//e/./*": ["f.txt"],
    "d/../*.txt": ["a.txt", "b.txt"],
    ".*": [".h.txt"],
    ".g/*": ["i.txt"],
    "*/.j.txt": ["d/.j.txt"],
}


@pytest.mark.parametrize(("pattern", "expected"), GLOBS.items())
def test_a_glob_lists_what_a_shell_lists_sorted_by_key(
    pattern: str, expected: list[str], tmp_path: Path
):
    make_files(tmp_path, "b.txt", "a.txt", "d/c.txt", "d/e/f.txt", ".h.txt", ".g/i.txt", "d/.j.txt")

    assert keys(tmp_path, pattern) == expected


def test_keys_begin_below_the_folder_that_the_fixed_parts_of_all_patterns_share(tmp_path: Path):
    make_files(tmp_path, "x/en/a.txt", "x/de/sub/b.txt", "c.txt")

    assert keys(tmp_path, "x/en/*.txt") == ["a.txt"]
    assert keys(tmp_path, "x/en/*.txt", "x/de/**/*.txt") == ["de/sub/b.txt", "en/a.txt"]
    assert keys(tmp_path, "x/en/a.txt") == ["a.txt"]
    assert keys(tmp_path, "x/*/a.txt") == ["en/a.txt"]
    assert keys(tmp_path, "x/en/*", "c.txt") == ["c.txt", "x/en/a.txt"]
    before = keys(tmp_path, "x/**/*.txt")
    make_files(tmp_path, "x/d.txt")
    assert (
        keys(tmp_path, "x/**/*.txt") == ["d.txt", *before] == ["d.txt", "de/sub/b.txt", "en/a.txt"]
    )


def test_a_file_that_two_patterns_match_is_listed_once(tmp_path: Path):
    make_files(tmp_path, "a.txt", "b.txt")

    found = keys(tmp_path, "*.txt", "a.txt", f"{tmp_path}/a*", f"file://{tmp_path}/a.txt")
    assert found == ["a.txt", "b.txt"]


def test_links_are_followed_and_a_link_to_a_folder_above_ends_there(tmp_path: Path):
    make_files(tmp_path, "raw/d/a.txt", "elsewhere/b.txt")
    (tmp_path / "raw/d/up").symlink_to(tmp_path / "raw")
    (tmp_path / "raw/link").symlink_to(tmp_path / "elsewhere")

    assert keys(tmp_path, "raw/**/*.txt") == ["d/a.txt", "link/b.txt"]


def test_two_dots_lead_above_what_a_link_leads_to(tmp_path: Path):
    make_files(tmp_path, "there/a.txt", "there/in/b.txt", "here/c.txt")
    (tmp_path / "here/link").symlink_to(tmp_path / "there/in")

    assert keys(tmp_path / "here", "link/../*.txt") == ["a.txt"]


def test_a_matching_link_that_leads_nowhere_is_an_error(tmp_path: Path):
    make_files(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")

    assert "found a link that leads to no file" in message(RawFileError, tmp_path, "*.txt")


def test_what_stands_for_itself_is_no_wildcard(tmp_path: Path):
    make_files(tmp_path, "[d]/a*.txt", "[d]/ab.txt")

    for file in (tmp_path / "[d]/a*.txt", Path("[d]/a*.txt"), "[[]d]/a[*].txt"):
        assert RawConfig(files=(file,)).files[0].endswith("[[]d]/a[*].txt")  # type: ignore[arg-type]
        assert keys(tmp_path, file) == ["a*.txt"]  # type: ignore[arg-type]
    assert keys(tmp_path, "[[]d]/*.txt") == ["a*.txt", "ab.txt"]
    assert "found no such file;" in message(ConfigError, tmp_path, Path("[d]/*.md"))


REFUSED = {
    ("d/*", "d/*.txt"): "'a', 'b', 'c/', 'e', 'f', and 2 more",
    ("empty/*",): "an empty folder",
    ("none/*",): "no such folder",
    ("z/[z].txt",): "'[z].txt'",  # which the remedy says how to write
    ("b.txt",): "no such file",
    ("d/",): "a folder",
    ("*/../*.txt",): "'..'",
    ("https://h/*.txt?key=1",): "'*'",
    ("memory://*/a.txt",): "'*'",
    ("memory://b/x/",): "a folder",
    ("memory://b/x/*.md",): "'.h.txt', 'a.txt', 'd/'",
    ("memory://b/z/*.md",): "no such folder",
    ("https://user:pa/ss@h/a",): "no host, or a user name or password with a bare '/'",
    ("https://h:65536/a",): "a port above 65,535",
    ("https://h/",): "an empty name",
    ("https://h/a%ff",): "a name that is not UTF-8",
    ("https://h/x/a", "https://h/x/%2e%2e%2f%2e%2e"): "the name '..'",
    ("s3://b/raw//*.txt",): "'//'",
    ("s3:/b/*.txt",): "one slash, which is also what a Path makes of a URL",
    ("nope://user:pass@b/x/*",): "ValueError: Protocol not known: nope",
}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("files", "found"), REFUSED.items())
def test_a_pattern_that_names_no_file_is_refused(
    files: tuple[str, ...], found: str, tmp_path: Path
):
    make_files(tmp_path, "d/a", "d/b", "d/c/x", "d/e", "d/f", "d/g", "d/h", "z/[z].txt")
    (tmp_path / "empty").mkdir()

    told = message(ConfigError, tmp_path, *files)

    assert f"found {found}; " in told
    assert "pass" not in told.partition("found")[0]


def test_an_output_is_never_a_raw_file(tmp_path: Path):
    output = "store/baee51d275d986d6/b.txt"  # which no key may hold
    make_files(tmp_path, "a.txt", output)

    with pytest.raises(ConfigError) as raised:
        sources_of(tmp_path, "**/*.txt", store=tmp_path / "store")

    assert "found a pattern of raw.files that matches a file in it;" in str(raised.value)


def test_a_config_without_files_is_refused():
    assert RawConfig(files="a").files == ("a",)  # type: ignore[arg-type]
    for files in ((), "", ["a", " "], 5, ["a", 5], {"a"}):
        with pytest.raises(ConfigError) as raised:
            RawConfig(files=files)  # type: ignore[arg-type]

        assert f"found {files!r};" in str(raised.value)


URLS = {
    ("https://h/x/a.txt?key=1",): ["a.txt"],
    ("https://h/x/a%20b.txt",): ["a b.txt"],
    ("https://h/x/a[1].txt",): ["a[1].txt"],
    ("https://h/x/en/a.txt", "https://h/x/de/b.txt"): ["de/b.txt", "en/a.txt"],
    ("https://u:p@h/a.txt", "https://h/b.txt"): ["a.txt", "b.txt"],
    ("https://h/x/a.txt", "https://i:1/x/a.txt"): ["h/x/a.txt", "i:1/x/a.txt"],
    ("https://h/x/a.txt", "s3://bucket/y/a.txt"): ["bucket/y/a.txt", "h/x/a.txt"],
    ("https://h/x/a.txt", "d/b.txt"): ["b.txt", "h/x/a.txt"],
}


@pytest.mark.parametrize(("files", "expected"), URLS.items())
def test_the_key_of_a_url_is_its_path_below_what_all_share(
    files: tuple[str, ...], expected: list[str], tmp_path: Path
):
    make_files(tmp_path, "d/b.txt")

    assert keys(tmp_path, *files) == expected


def test_two_files_with_one_key_are_refused(tmp_path: Path):
    make_files(tmp_path, "h/a.txt")

    urls = "https://h/a.txt?x=1", "https://h/a.txt?x=2"
    assert "(they differ only in what is not shown);" in message(ConfigError, tmp_path, *urls)
    told = message(ConfigError, tmp_path, "*/a.txt", "https://h/a.txt")
    assert f"found 'h/a.txt' for both {tmp_path}/h/a.txt and https://h/a.txt;" in told


@pytest.fixture
def memory():
    file_system = fsspec.filesystem("memory")
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]
    for name in ("/b/x/a.txt", "/b/x/d/c.txt", "/b/x/.h.txt", "/b/y/n.md"):
        file_system.pipe(name, name.encode())
    yield file_system
    file_system.store.clear()


@pytest.mark.usefixtures("memory")
def test_a_glob_lists_an_object_store_as_it_lists_this_machine(tmp_path: Path):
    sources = sources_of(tmp_path, "memory://b/x/**")

    assert {key: source.url for key, source in sources.items()} == {
        "a.txt": "memory://b/x/a.txt",
        "d/c.txt": "memory://b/x/d/c.txt",
    }
    assert not sources["a.txt"].is_local
    assert keys(tmp_path, "memory://b/x/?.txt") == ["a.txt"]
    assert keys(tmp_path, "memory://b/x/.*") == [".h.txt"]
    assert keys(tmp_path, "memory://b/*/*.txt", "memory://b/y/n.md") == ["x/a.txt", "y/n.md"]


def test_brackets_stand_for_themselves_in_an_object_store_too(memory, tmp_path: Path):
    memory.pipe("/b/[z]/a.txt", b"")

    assert keys(tmp_path, "memory://b/[[]z]/*.txt") == ["a.txt"]
    (source,) = sources_of(tmp_path, "memory://b/[[]z]/a.txt").values()
    assert source.url == "memory://b/[z]/a.txt"


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hidden@b/*.txt",
        "s3://me:hidden@b/a.txt",
        "s3://b/a.txt?X-Amz-Algorithm=hidden",
        "az://b/a.txt?sv=1&sig=hidden",
    ],
)
def test_credentials_in_a_url_of_an_object_store_are_refused_before_it_is_asked(
    url: str, tmp_path: Path
):
    refused = message(ConfigError, tmp_path, url)

    assert "put credentials into the environment" in refused
    assert "hidden" not in refused


SPARK = (
    "raw/x.parquet/part-00000-1f.c000.snappy.parquet",
    "raw/x.parquet/date=1/part-00001-1f.c000.snappy.parquet",
    "raw/x.parquet/_hidden=1/part-00002-1f.c000.snappy.parquet",
    "raw/x.parquet/_SUCCESS",
    "raw/x.parquet/_metadata",
    "raw/x.parquet/_temporary/0/part-00003-1f.c000.snappy.parquet",
    "raw/x.parquet/.part-00000-1f.c000.snappy.parquet.crc",
)
PART_FILES = [
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

    assert list(listing(tmp_path, pattern).sources) == [*PART_FILES, "y.parquet"]
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
    to_folders = [f"raw/x.parquet/{name}" for name in ("again", "disk", "up")]
    told = dict.fromkeys(to_folders, "a link to a folder")
    told["raw/x.parquet/c.parquet"] = "a link that leads nowhere"
    assert left_out(tmp_path, "raw/*") == told
    (tmp_path / "raw/x.parquet/c.parquet").unlink()  # no name that ** matches may lead nowhere
    (tmp_path / "raw/x.parquet/_d").unlink()
    assert list(listing(tmp_path, "raw/**").sources) == files


def test_such_a_folder_may_be_named(tmp_path: Path):
    make_files(tmp_path, *SPARK, "raw/empty.parquet/_SUCCESS")

    assert list(listing(tmp_path, "raw/x.parquet/").sources) == PART_FILES
    with pytest.raises(ConfigError, match=r"expected the file .*, found a folder;"):
        listing(tmp_path, "raw/empty.parquet")


def test_whatever_else_a_pattern_matches_is_told(tmp_path: Path):
    make_files(tmp_path, "raw/a.txt", "raw/sub/b.txt", "raw/x.parquet/_SUCCESS")
    os.mkfifo(tmp_path / "raw/pipe")
    os.mknod(tmp_path / "raw/socket", stat.S_IFSOCK)

    told = {"raw/pipe": "a fifo", "raw/socket": "a socket", "raw/sub": "a folder"}
    told["raw/x.parquet"] = "a folder without a parquet file"
    assert left_out(tmp_path, "raw/*") == told


@pytest.mark.parametrize("pattern", ["raw/*/*.txt", "raw/**/*.txt"])
def test_a_link_that_leads_to_no_folder_is_told(pattern: str, tmp_path: Path):
    make_files(tmp_path, "raw/sub/a.txt")
    (tmp_path / "raw/disk").symlink_to(tmp_path / "gone")

    assert left_out(tmp_path, pattern) == {"raw/disk": "a link that leads nowhere"}


def test_what_another_pattern_reads_is_not_left_out(tmp_path: Path):
    make_files(tmp_path, "raw/a.txt", "raw/sub/b.txt")

    assert left_out(tmp_path, "raw/*", "raw/sub/*.txt") == {}
    assert left_out(tmp_path, "raw/**") == {}


KEYS = [
    *(f"raw/d{number:03}/s/{name}.txt" for number in range(40) for name in "ab"),
    *(f"raw/d000/deep/{number:03}/x.txt" for number in range(50)),
    "raw/d000/s.txt", "raw/d001/s0", "raw/d002/s/", "raw/d003/s/a.txt/part", "raw/e?/s/é.txt",
    "raw/d004/s/[x].txt", "raw/d.txt", "raws/d0/s/a.txt",
]  # fmt: skip


def pages(Prefix: str, Delimiter: str = ""):  # noqa: N803
    """Yield ten keys of a bucket by a page."""
    keys = sorted(key for key in KEYS if key.startswith(Prefix))
    for start in range(0, len(keys), 10):
        yield {"Contents": [{"Key": of, "Size": 1, "ETag": "e"} for of in keys[start : start + 10]]}


@pytest.mark.parametrize(
    "pattern", ["*/s/*.txt", "d*/s/a.txt", "*/*", "*/s", "e[?]/s/*", "d00?/s/[[]x].txt", "none*/a"]
)
def test_every_match_is_found_whatever_the_pages(pattern: str):
    paths = {key.removeprefix("raw/") for key in KEYS if key.startswith("raw/")}
    above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    kinds = dict.fromkeys(above, "directory") | dict.fromkeys(paths, "file")
    is_match = path_regex(pattern).match

    found = find_keys(pages, "raw/", pattern.split("/"))

    assert {path: of["type"] for path, of in found.items()} == {
        path: kind for path, kind in kinds.items() if path[-1] != "/" and is_match(path)
    }
