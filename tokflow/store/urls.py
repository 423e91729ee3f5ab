"""The parts of a URL, and an error of a library without what is secret in them."""

import re
import urllib.parse
from dataclasses import dataclass, field

from tokflow.errors import ConfigError
from tokflow.formatting import redacted

OF_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Schemes of URLs whose names no folder has."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"([^\s@:\[]*|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d+))?")
_HUB = re.compile(
    r"hf://datasets/([^/@*?[]+/[^/@*?[]+)(?:@(refs/(?:convert|pr)/[^/*?[]+|[^/*?[]+))?(/.*)?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Url:
    """A URL in parts. Only http and https have a query; in others `?` belongs to the path."""

    scheme: str
    userinfo: str = field(repr=False)
    host: str
    """Host and port, bucket, or whatever stands between `://` and the next `/`."""
    path: str
    """The path as written, with its leading `/`."""
    query: str = field(repr=False)

    @property
    def origin(self) -> str:
        """Scheme and host, without userinfo."""
        return f"{self.scheme}://{self.host}"


def is_url(text: str) -> bool:
    """Return whether `text` has a scheme; anything else is a path of this machine."""
    return _SCHEME.match(text) is not None


def check_slashes(path: str) -> None:
    """Raise ConfigError for a URL of an object store, the web or the hub without the two slashes
    after its scheme; any other path is one."""
    scheme, _, rest = path.partition(":")
    is_meant = scheme in OF_OBJECT_STORES or (scheme in {"http", "https", "hf"} and "/" in rest)
    if not is_meant or is_url(path) or not path.startswith(f"{scheme}:"):
        return
    slashes = "one slash, which is also what a Path makes of a URL"
    raise ConfigError(
        where=path,
        expected="a path, or a URL with two slashes",
        found=slashes if rest.startswith("/") else "none",
        remedy=f"give {scheme}://{rest.lstrip('/')} as text",
    )


def split_url(url: str) -> Url:
    """Return the parts of `url`.

    Raises: ValueError, which does not show the URL, if it has no clear host (as with a bare
    `/` in a password) or is several URLs chained with `::`.
    """
    scheme, rest = url.split("://", 1)
    scheme, query = scheme.lower(), ""
    if scheme in {"http", "https"}:
        rest, _, query = rest.partition("#")[0].partition("?")
    authority, slash, path = rest.partition("/")
    userinfo, _, host = authority.rpartition("@")
    if "::" in rest.partition("?")[0] and not host.startswith("["):
        raise ValueError("several URLs chained with '::'")
    match = _HOST.fullmatch(host)
    if match is None or (not host and scheme in {"http", "https"}):
        raise ValueError("no host, or a user name or password with a bare '/'")
    if int(match["port"] or 0) > 65_535:
        raise ValueError("a port above 65,535")  # the system would take it modulo 65,536
    return Url(scheme=scheme, userinfo=userinfo, host=host, path=slash + path, query=query)


def hub_url(url: str) -> tuple[str, str | None, str] | None:
    """Return the name `org/name`, the revision if it has one, and the path in it of a URL that
    names a dataset of the Hugging Face hub, or files in one; None for any other."""
    match = _HUB.fullmatch(url)
    if match is None:
        return None
    return match[1], urllib.parse.unquote(match[2] or "") or None, (match[3] or "").strip("/")


def safe_text(error: BaseException, url: str) -> str:
    """Return type and text of `error` without the secrets of `url` or of any URL in it.

    Where a secret of `url` is in the text in any other way, the type alone.
    """
    name = type(error).__name__
    text = " ".join(redacted(str(error)).split())
    if not text or any(secret in text for secret in _secrets(url)):
        return name
    return f"{name}: {text}"


def _secrets(url: str) -> set[str]:
    try:
        parts = split_url(url)
    except ValueError:
        return {""}
    secrets = [parts.userinfo, *parts.userinfo.split(":", 1), parts.query]
    secrets += [value for _, value in urllib.parse.parse_qsl(parts.query)]
    if "?" in parts.path:
        secrets.append(parts.path.partition("?")[2])
    return {form for secret in secrets for form in (secret, urllib.parse.unquote(secret)) if form}
