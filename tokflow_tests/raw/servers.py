"""Servers of these tests: on this machine, in threads, with certificates of their own."""

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes a certificate with openssl"
)


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients of these tests break off on purpose."""


@contextmanager
def running(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[QuietServer]:
    """Yield a server that answers until the block ends."""
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:  # or the thread keeps the process alive
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Let the files of `folder` be fetched until the block ends; yield the URL of the folder."""
    with running(partial(QuietHandler, directory=str(folder))) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def make_certificate(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """Return a self-signed certificate for these names, and what a server shows it with."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=here",
         "-addext", f"subjectAltName={','.join(names)}"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
