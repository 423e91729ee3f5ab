import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest
import urllib3

from tokflow.errors import RawFileError
from tokflow.raw import RawSource
from tokflow_tests.raw.fetching import Server, read_raw_file, serving
from tokflow_tests.raw.servers import make_certificate, needs_openssl


@contextmanager
def serve(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with serving(Server(content=b"text")) as site:
        if tls is not None:
            site.wrap(tls)
        yield site


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("tokflow.raw.remote_version.NUM_TRIES", 1)
    with serve() as running:
        yield running


def fetched(url: str, store: Path) -> bytes:
    source = RawSource(key="a.txt", url=url, is_local=False)
    return read_raw_file(source, store=store).path.read_bytes()


def refusal(url: str, store: Path) -> str:
    with pytest.raises(RawFileError) as raised:
        fetched(url, store)
    return str(raised.value)


INNER_HOSTS = (
    "localhost", "127.0.0.2", "2130706433", "0.0.0.0", "10.0.0.1", "100.64.0.1", "169.254.169.254",
    "172.16.0.1", "192.168.1.1", "224.0.0.1", "[::1]", "[fe80::1]", "[fd00::1]", "[fec0::1]",
    "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[64:ff9b::10.0.0.1]", "[2002:a00:1::1]",
)  # fmt: skip


@pytest.mark.parametrize("host", INNER_HOSTS)
def test_a_redirect_into_ones_own_network_is_refused(host: str, site: Server, tmp_path: Path):
    site.moved_to = f"http://{host}:{site.port}/a.txt?key=secret"
    url = f"http://127.0.0.1:{site.port}/moved"

    told = refusal(url, tmp_path)

    assert told.startswith(f"{url}: expected redirects to public addresses, or to hosts that ")
    assert "secret" not in told
    assert site.asked == ["HEAD /moved"]


def test_a_redirect_to_the_host_that_is_named_is_followed(site: Server, tmp_path: Path):
    with serve() as other:
        site.moved_to = f"http://127.0.0.1:{other.port}/a.txt"

        assert fetched(f"http://127.0.0.1:{site.port}/moved", tmp_path) == b"text"


def lead_here(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let other.test have these addresses, one after another, and each connection end here.

    Returns the addresses that are connected to.
    """
    look_up, connect = socket.getaddrinfo, urllib3.util.connection.create_connection
    answers, connected = cycle(addresses), list[str]()

    def changing(host, *rest, **more):
        return look_up(next(answers) if host == "other.test" else host, *rest, **more)

    def here(address, *rest, **more):
        connected.append(address[0])
        return connect(("127.0.0.1", address[1]), *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    monkeypatch.setattr(urllib3.util.connection, "create_connection", here)
    return connected


def test_the_address_that_was_looked_at_is_the_one_connected_to(
    site: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    connected = lead_here(monkeypatch, "93.184.216.34", "127.0.0.1")
    site.moved_to = f"http://other.test:{site.port}/a.txt"

    told = refusal(f"http://127.0.0.1:{site.port}/moved", tmp_path)

    assert connected == ["127.0.0.1", "93.184.216.34", "127.0.0.1"]
    assert site.hosts[1] == f"other.test:{site.port}"
    assert "found one to other.test, which is 127.0.0.1; " in told


@needs_openssl
@pytest.mark.parametrize("name", ["other.test", "another.test"])
def test_the_certificate_at_that_address_must_be_of_the_name(
    name: str, site: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    connected = lead_here(monkeypatch, "93.184.216.34")
    certificate, tls = make_certificate(tmp_path, f"DNS:{name}")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    url = f"http://127.0.0.1:{site.port}/moved"

    with serve(tls) as secure:
        site.moved_to = f"https://other.test:{secure.port}/a.txt"
        if name == "other.test":
            assert fetched(url, tmp_path / "store") == b"text"
        else:
            assert "certificate that is not trusted (Hostname" in refusal(url, tmp_path / "store")

    assert connected[1] == "93.184.216.34"


def test_what_a_proxy_is_asked_for_is_looked_at_too(
    site: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{site.port}")
    look_up = socket.getaddrinfo

    def knows_no_name(host, *rest, **more):
        if host == "other.test":
            raise socket.gaierror
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", knows_no_name)

    site.moved_to = "http://other.test/a.txt"
    assert fetched("http://public.test/moved", tmp_path) == b"text"
    assert site.asked[:2] == ["HEAD http://public.test/moved", "HEAD http://other.test/a.txt"]

    site.moved_to = "http://169.254.169.254/credentials"
    assert "found one to 169.254.169.254; " in refusal("http://public.test/moved", tmp_path)


@needs_openssl
def test_a_redirect_from_https_to_http_is_refused(
    site: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    certificate, tls = make_certificate(tmp_path, "IP:127.0.0.1", "DNS:localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    with serve(tls) as secure:
        url = f"https://127.0.0.1:{secure.port}/moved"
        secure.moved_to = f"https://127.0.0.1:{secure.port}/a.txt"
        assert fetched(url, tmp_path) == b"text"
        secure.moved_to = f"https://localhost:{secure.port}/a.txt"
        assert "found one to localhost, which is " in refusal(url, tmp_path)
        secure.moved_to = f"HTTP://127.0.0.1:{site.port}/a.txt?key=secret"
        assert f"found one to http://127.0.0.1:{site.port}/a.txt;" in refusal(url, tmp_path)
    assert site.asked == []


def test_a_password_follows_a_redirect_only_on_its_own_host(site: Server, tmp_path: Path):
    url = f"http://user:pass@127.0.0.1:{site.port}/moved"

    with serve() as other:
        for to in (site, other):
            site.moved_to = f"http://127.0.0.1:{to.port}/a.txt"
            fetched(url, tmp_path / str(to.port))

    assert set(site.authorizations) == {"Basic dXNlcjpwYXNz"}
    assert set(other.authorizations) == {None}
    assert site.asked[:2] == ["HEAD /moved", "HEAD /a.txt"]
    assert other.asked == ["HEAD /a.txt", "GET /a.txt", "HEAD /a.txt"]


def test_a_server_that_leads_round_in_circles_is_left(site: Server, tmp_path: Path):
    url = f"http://127.0.0.1:{site.port}/moved"
    site.moved_to = "/#/moved"

    assert "found more than 10 redirects, one after another; " in refusal(url, tmp_path)
    assert len(site.asked) == 11
