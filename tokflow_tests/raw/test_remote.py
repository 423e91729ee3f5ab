"""Servers that are busy, refuse, or answer with something else."""

import base64
import gzip
import hashlib
import json
import logging
from pathlib import Path

import pytest

from tokflow.errors import RawFileError
from tokflow_tests.raw.fetching import (
    CONTENT,
    SHA256,
    Server,
    fetched,
    read_raw_file,
    refusal,
    source_of,
)
from tokflow_tests.raw.servers import make_certificate, needs_openssl


@pytest.mark.parametrize("status", [500, 503])
def test_a_busy_server_is_asked_again(status: int, server: Server, tmp_path: Path, caplog):
    server.statuses = [status, 200, status]

    assert fetched(server, tmp_path).sha256 == SHA256
    assert server.requests == ["HEAD", "HEAD", "GET", "HEAD", "GET", "HEAD"]
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(f"{server.url}: HTTP status {status} (")
    assert caplog.messages[0].endswith("; trying again in 0.0 s")


def test_a_server_is_left_alone_for_as_long_as_it_asks(server: Server, tmp_path: Path, caplog):
    server.statuses = [429]

    fetched(server, tmp_path)

    assert caplog.messages == [
        f"{server.url}: HTTP status 429 (Too Many Requests); trying again in 1.0 s"
    ]


@pytest.mark.parametrize(
    ("status", "found", "remedy", "requests"),
    [
        (404, "404 (Not Found)", "", ["HEAD"]),
        (401, "401 (Unauthorized)", "give credentials that may read it, or ", ["HEAD"]),
        (403, "403 (Forbidden)", "give credentials that may read it, or ", ["HEAD", "GET"]),
    ],
)
def test_a_refusal_is_not_tried_again(
    status: int, found: str, remedy: str, requests: list[str], server: Server, tmp_path: Path
):
    server.statuses = [status] * 9

    assert refusal(server, tmp_path) == (
        f"{server.url}: expected a file that can be read, found HTTP status {found}; "
        f"{remedy}correct the URL under raw.files"
    )
    assert server.requests == requests


def test_a_server_that_refuses_head_is_asked_by_get(server: Server, tmp_path: Path):
    server.has_head = False

    copies = [fetched(server, tmp_path), fetched(server, tmp_path)]

    assert copies[0] == copies[1]
    assert server.requests == ["HEAD", "GET", "GET", "HEAD", "GET", "HEAD", "GET"]


def test_an_answer_whose_end_cannot_be_told_from_a_break_is_refused(server: Server, tmp_path: Path):
    server.has_length = False

    assert "found neither;" in refusal(server, tmp_path)


def test_a_gz_file_that_a_server_declares_as_encoded_is_kept_as_it_is(
    server: Server, tmp_path: Path
):
    server.content, server.encoding = gzip.compress(CONTENT), "gzip"
    source = source_of(server.url.replace("a.txt", "a.txt.gz"), key="a.txt.gz")

    copy = read_raw_file(source, store=tmp_path)

    assert copy.path.read_bytes() == server.content


def test_a_server_that_compresses_unasked_is_refused(server: Server, tmp_path: Path):
    server.content, server.encoding = gzip.compress(CONTENT), "gzip"

    assert "found the content encoded as 'gzip';" in refusal(server, tmp_path)


def test_no_secret_of_a_url_is_written_or_shown(server: Server, tmp_path: Path, caplog):
    url = server.url.replace("//", "//user:pass%2Fword@") + "?token='hidden"
    server.password = f"Basic {base64.b64encode(b'user:pass/word').decode()}"
    server.breaks, server.statuses = [3000], [500]
    caplog.set_level(logging.DEBUG)

    raw = read_raw_file(source_of(url), store=tmp_path)
    server.statuses = [404]
    with pytest.raises(RawFileError) as raised:
        read_raw_file(source_of(url), store=tmp_path)

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = "\n".join([caplog.text, str(raised.value), repr(raised.value.__context__)])
    assert raw.path.read_bytes() == CONTENT
    known = json.loads((tmp_path / "raw/en/a.txt/.source.json").read_text())
    assert known["url"] == server.url
    assert known["url_sha256"] == hashlib.sha256(f"{server.url}?token='hidden".encode()).hexdigest()
    for secret in ("pass", "word", "hidden", "user:", server.password[6:]):
        assert not [content for content in written if secret.encode() in content]
        assert secret not in told


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_not_tried_again(server: Server, tmp_path: Path):
    _, context = make_certificate(tmp_path, "IP:127.0.0.1")
    server.wrap(context)
    url = server.url.replace("http:", "https:")

    with pytest.raises(RawFileError) as raised:
        read_raw_file(source_of(url), store=tmp_path)

    assert "found a certificate that is not trusted (self-signed certificate);" in str(raised.value)
