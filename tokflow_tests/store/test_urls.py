import pytest

from tokflow.raw import redact
from tokflow.store.urls import safe_text

SHOWN = {
    "https://user:pass@host:8080/a/b.txt?token=1#part": "https://host:8080/a/b.txt",
    "https://host?token=1": "https://host",
    "https://host/a@b/c.txt": "https://host/a@b/c.txt",
    "https://user:p@ss@host/a": "https://host/a",
    "https://user:pa/ss@host/a": "https://...",
    "https://[::1]:80/a": "https://[::1]:80/a",
    "s3://bucket/part-?.txt": "s3://bucket/part-?.txt",
    "s3://bucket/a.txt?versionId=1": "s3://bucket/a.txt",
    "zip://a.txt::https://user:pass@host/a.zip": "zip://...",
    "/data/a?b@c.txt": "/data/a?b@c.txt",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_url_is_shown_without_userinfo_and_query(url: str, shown: str):
    assert redact(url) == shown


def test_an_error_is_shown_without_the_secrets_of_the_url():
    url = "https://user:pass%20word@host/a?token=abc"

    assert safe_text(OSError("refused"), url) == "OSError: refused"
    assert safe_text(OSError(f"cannot read {url}"), url) == "OSError: cannot read https://host/a"
    assert safe_text(OSError("bad token abc"), url) == "OSError"
    assert safe_text(OSError("bad login 'pass word'"), url) == "OSError"
    assert safe_text(OSError("at\nhttps://cdn/a?signature=1"), url) == "OSError: at https://cdn/a"
    assert safe_text(OSError(), url) == "OSError"
