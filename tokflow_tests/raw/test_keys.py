import sys

import pytest

from tokflow.errors import ConfigError
from tokflow.raw.listing import check_key

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
