import os
from pathlib import Path

import fsspec
import pytest

from tokflow.errors import ConfigError, RawFileError
from tokflow.raw import RawConfig, RawSource, list_raw


def make_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def sources_of(folder: Path, *files: str, store: Path | None = None) -> dict[str, RawSource]:
    config = RawConfig(files=files)
    return list_raw(config, base=folder, store=store, format_of=lambda _: None).sources


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


def test_a_source_is_an_absolute_path_of_this_machine(tmp_path: Path):
    make_files(tmp_path, "raw/a.txt")

    source = sources_of(tmp_path, "raw/*.txt")["a.txt"]

    assert (source.url, source.is_local) == (f"{tmp_path}/raw/a.txt", True)
    assert repr(source) == "RawSource(key='a.txt', is_local=True)"


def test_keys_begin_below_the_folder_that_the_fixed_parts_of_all_patterns_share(tmp_path: Path):
    make_files(tmp_path, "x/en/a.txt", "x/de/sub/b.txt", "c.txt")

    assert keys(tmp_path, "x/en/*.txt") == ["a.txt"]
    assert keys(tmp_path, "x/en/*.txt", "x/de/**/*.txt") == ["de/sub/b.txt", "en/a.txt"]
    assert keys(tmp_path, "x/en/a.txt") == ["a.txt"]
    assert keys(tmp_path, "x/*/a.txt") == ["en/a.txt"]
    assert keys(tmp_path, "x/en/*", "c.txt") == ["c.txt", "x/en/a.txt"]


def test_a_key_does_not_depend_on_which_other_files_exist(tmp_path: Path):
    make_files(tmp_path, "x/en/a.txt")
    before = keys(tmp_path, "x/**/*.txt")

    make_files(tmp_path, "x/de/b.txt", "x/c.txt")

    assert before == ["en/a.txt"]
    assert keys(tmp_path, "x/**/*.txt") == ["c.txt", "de/b.txt", "en/a.txt"]


def test_a_file_that_two_patterns_match_is_listed_once(tmp_path: Path):
    make_files(tmp_path, "a.txt", "b.txt")

    assert keys(tmp_path, "*.txt", "a.txt", f"{tmp_path}/a*", f"file://{tmp_path}/a.txt") == [
        "a.txt",
        "b.txt",
    ]


def test_a_file_url_is_a_local_path_with_its_escapes_undone(tmp_path: Path):
    make_files(tmp_path, "a b.txt")

    sources = sources_of(tmp_path, (tmp_path / "a b.txt").as_uri())

    assert sources["a b.txt"].url == f"{tmp_path}/a b.txt"
    assert sources["a b.txt"].is_local


def test_brackets_of_the_base_folder_are_no_wildcards(tmp_path: Path):
    base = make_files(tmp_path / "[x]", "a.txt")

    assert keys(base, "*.txt") == ["a.txt"]


def test_links_are_followed_and_a_link_to_a_folder_above_ends_there(tmp_path: Path):
    make_files(tmp_path, "raw/d/a.txt", "elsewhere/b.txt")
    (tmp_path / "raw/d/up").symlink_to(tmp_path / "raw")
    (tmp_path / "raw/link").symlink_to(tmp_path / "elsewhere")

    assert keys(tmp_path, "raw/**/*.txt") == ["d/a.txt", "link/b.txt"]


def test_two_dots_lead_above_what_a_link_leads_to(tmp_path: Path):
    make_files(tmp_path, "there/a.txt", "there/in/b.txt", "here/c.txt")
    (tmp_path / "here/link").symlink_to(tmp_path / "there/in")

    assert keys(tmp_path / "here", "link/../*.txt") == ["a.txt"]


def test_only_regular_files_match(tmp_path: Path):
    make_files(tmp_path, "a.txt")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")

    assert keys(tmp_path, "*.txt") == ["a.txt"]


def test_a_matching_link_that_leads_nowhere_is_an_error(tmp_path: Path):
    make_files(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")

    assert "found a link that leads to no file" in message(RawFileError, tmp_path, "*.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path):
    make_files(tmp_path, "a.txt", "d/b.txt")
    (tmp_path / "d").chmod(0)

    assert "found Permission denied;" in message(RawFileError, tmp_path, "**")


def test_a_pattern_without_a_match_shows_what_is_there(tmp_path: Path):
    make_files(tmp_path, "d/a", "d/b", "d/c/x", "d/e", "d/f", "d/g", "d/h")
    (tmp_path / "empty").mkdir()

    found = "found 'a', 'b', 'c/', 'e', 'f', and 2 more;"
    assert found in message(ConfigError, tmp_path, "d/*", "d/*.txt")
    assert "found an empty folder;" in message(ConfigError, tmp_path, "empty/*")
    assert "found no such folder;" in message(ConfigError, tmp_path, "none/*")


def test_a_name_with_brackets_that_exists_is_pointed_out(tmp_path: Path):
    make_files(tmp_path, "[a].txt")

    assert "found '[a].txt';" in message(ConfigError, tmp_path, "[a].txt")
    assert keys(tmp_path, "[[]a].txt") == ["[a].txt"]


def test_what_stands_for_itself_is_no_wildcard(tmp_path: Path):
    make_files(tmp_path, "[d]/a*.txt", "[d]/ab.txt")

    for file in (tmp_path / "[d]/a*.txt", Path("[d]/a*.txt"), "[[]d]/a[*].txt"):
        assert RawConfig(files=(file,)).files[0].endswith("[[]d]/a[*].txt")  # type: ignore[arg-type]
        assert keys(tmp_path, file) == ["a*.txt"]  # type: ignore[arg-type]
    assert keys(tmp_path, "[[]d]/*.txt") == ["a*.txt", "ab.txt"]
    assert "found no such file;" in message(ConfigError, tmp_path, Path("[d]/*.md"))


def test_a_named_file_that_does_not_exist_is_an_error_in_the_config(tmp_path: Path):
    make_files(tmp_path, "d/a")

    assert "found no such file;" in message(ConfigError, tmp_path, "b.txt")
    assert "found a folder;" in message(ConfigError, tmp_path, "d/")


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path):
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("a")

    assert message(ConfigError, tmp_path, "*.txt").startswith(
        r"partition key 'a\udcff.txt': expected a path relative to the raw folder, in printable "
        "UTF-8, found a name that is not UTF-8;"
    )


def test_two_dots_after_a_wildcard_are_refused(tmp_path: Path):
    make_files(tmp_path, "a.txt")

    assert "found '..';" in message(ConfigError, tmp_path, "*/../*.txt")


def test_an_output_is_never_a_raw_file(tmp_path: Path):
    output = "store/baee51d275d986d6/b.txt"  # which no key may hold
    make_files(tmp_path, "a.txt", output)

    with pytest.raises(ConfigError) as raised:
        sources_of(tmp_path, "**/*.txt", store=tmp_path / "store")

    assert "found a pattern of raw.files that matches a file in it;" in str(raised.value)


def test_a_config_without_files_is_refused():
    for files in ((), "", ["a", " "], 5, ["a", 5], {"a"}):
        with pytest.raises(ConfigError) as raised:
            RawConfig(files=files)  # type: ignore[arg-type]

        assert f"found {files!r};" in str(raised.value)


def test_one_file_may_be_written_without_a_list():
    assert RawConfig(files="a").files == ("a",)  # type: ignore[arg-type]
    assert RawConfig(files=["a", Path("b")]).files == ("a", "b")  # type: ignore[arg-type]


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


def test_a_url_that_names_no_single_file_is_refused(tmp_path: Path):
    assert "found '*';" in message(ConfigError, tmp_path, "https://h/*.txt?key=1")
    assert "found '*';" in message(ConfigError, tmp_path, "memory://*/a.txt")
    assert "found a folder;" in message(ConfigError, tmp_path, "memory://b/x/")
    assert "found no host, or a user" in message(ConfigError, tmp_path, "https://user:pa/ss@h/a")
    assert "found a port above 65,535;" in message(ConfigError, tmp_path, "https://h:65536/a")
    assert message(ConfigError, tmp_path, "https://h/").startswith(
        "partition key '': expected a path relative to the raw folder, in printable UTF-8, found "
        "an empty name;"
    )
    assert "found a name that is not UTF-8" in message(ConfigError, tmp_path, "https://h/a%ff")
    assert "found the name '..'" in message(
        ConfigError, tmp_path, "https://h/x/a", "https://h/x/%2e%2e%2f%2e%2e"
    )


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


@pytest.mark.usefixtures("memory")
def test_a_pattern_of_an_object_store_without_a_match_shows_what_is_there(tmp_path: Path):
    assert "found '.h.txt', 'a.txt', 'd/';" in message(ConfigError, tmp_path, "memory://b/x/*.md")
    assert "found no such folder;" in message(ConfigError, tmp_path, "memory://b/z/*.md")


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


def test_a_pattern_of_keys_with_an_empty_name_is_refused(tmp_path: Path):
    assert "found '//'; remove one" in message(ConfigError, tmp_path, "s3://b/raw//*.txt")


def test_a_pattern_without_the_slashes_of_a_url_is_none_of_this_disk(tmp_path: Path):
    assert "give s3://b/*.txt as text" in message(ConfigError, tmp_path, "s3:/b/*.txt")


def test_a_protocol_that_nobody_knows_is_refused(tmp_path: Path):
    assert "found ValueError: Protocol not known: nope;" in message(
        ConfigError, tmp_path, "nope://user:pass@b/x/*"
    )
