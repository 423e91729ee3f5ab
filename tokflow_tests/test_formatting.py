import pytest

from tokflow.errors import ConfigError
from tokflow.formatting import duration, printable, redact

SHOWN = {
    "https://user:pass@host:8080/a/b.txt?token=1#part": "https://host:8080/a/b.txt",
    "https://host?token=1": "https://host",
    "https://host/a@b/c.txt": "https://host/a@b/c.txt",
    "https://user:p@ss@host/a": "https://host/a",
    "https://user:p'ss@host/a": "https://host/a",
    "https://user:pa/ss@host/a": "https://...",
    "https://user:12/34@host/a": "https://...",
    "https://user:pa": "https://...",
    "https://[::1]:80/a": "https://[::1]:80/a",
    "https:/user:pass@host/a": "https:/host/a",
    "s3:/bucket/a.txt?X-Amz-Signature=1": "s3:/bucket/a.txt",
    "s3:user:pass@bucket/a": "s3:bucket/a",
    "s3://bucket/part-?.txt": "s3://bucket/part-?.txt",
    "s3://bucket/a.txt?versionId=1": "s3://bucket/a.txt",
    "sftp://user:pass@host/a": "sftp://host/a",
    "hf://datasets/user:pass@org/name": "hf://datasets/org/name",
    "hf://datasets/token@org/name": "hf://datasets/org/name",
    "hf://datasets/user:pa/ss@org/name": "hf://...",
    "hf:/datasets/user:pass@org/name": "hf:/datasets/org/name",
    "hf://datasets/org/name@main/a.txt": "hf://datasets/org/name@main/a.txt",
    "zip://a.txt::https://user:pass@host/a.zip": "zip://...",
    "simplecache::https://user:pass@host/a": "simplecache::https://host/a",
    "/data/a?b@c.txt": "/data/a?b@c.txt",
    "notes:12:30@home.txt": "notes:12:30@home.txt",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_url_is_shown_without_userinfo_and_query_also_in_any_part_of_an_error(
    url: str, shown: str
):
    text = f"{url!r}, ({url}); {url}: "

    error = ConfigError(where=text, expected=text, found=text, remedy=text)

    assert redact(url) == shown
    told = f"{shown!r}, ({shown}); {shown}: ".replace('"', "'")
    assert [of.replace('"', "'") for of in error.fields().values()] == [told] * 4


def test_the_request_that_urllib3_names_is_shown_without_its_query():
    error = ConfigError(where="a", expected="b", found="with url: /a?sig=1 (Caused)", remedy="c")

    assert error.found == "with url: /a (Caused)"


def test_what_shows_nothing_or_turns_the_direction_of_text_is_escaped():
    assert printable("a\u202egpj.exe\x1b[2J\n\udcff") == r"a\u202egpj.exe\x1b[2J\n\udcff"
    assert printable("a\nb\tc\x07", keep="\n\t") == "a\nb\tc\\x07"
    assert printable("名\u3000前 ك\u200cه 👩\u200d💻") == "名\u3000前 ك\u200cه 👩\u200d💻"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.84, "0.8 s"),
        (7, "7 s"),
        (59.97, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (7_500, "2 h 5 min"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str):
    assert duration(seconds) == text
