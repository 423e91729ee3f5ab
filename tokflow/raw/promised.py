"""The digest of a raw file that was read from its first byte to its last, compared with the one
that its source tells: sha256 of the hub's large files, MD5 of what was put into S3 at once."""

import hashlib
import re
from typing import TYPE_CHECKING

from tokflow.errors import FetchError
from tokflow.raw.remote import remote_error
from tokflow.store.urls import split_url

if TYPE_CHECKING:
    from tokflow.raw.lazy import RemoteVersion

AGAIN_BYTES = 2**23
"""Read at once where a file is read again."""

_others: set[str] = set()
"""Buckets of this process with ETags that look like MD5 and are not, as of objects encrypted with
keys of KMS."""


def promised_md5(version: "RemoteVersion") -> str | None:
    """Return the ETag of an object of S3, if it may be the MD5 of the content."""
    etag = version.validator.bare().etag
    if etag is None or not re.fullmatch("[0-9a-f]{32}", etag) or version.sha256 is not None:
        return None
    bucket = _bucket(version)
    return etag if bucket.startswith("s3://") and bucket not in _others else None


def check_promise(version: "RemoteVersion", sha256: str, md5: str | None) -> None:
    """Compare what was read with what the source tells.

    An ETag that is not the MD5 may be another kind of ETag: then all is read again, once in a
    process for a bucket, and is right if the sha256 is the same.

    Raises: FetchError.
    """
    if version.sha256 not in (None, sha256):
        raise _damaged(version, f"sha256 {sha256[:16]}… where its source says {version.sha256}")
    promised = promised_md5(version)
    if md5 is None or promised in (None, md5):
        return
    again = hashlib.sha256()
    for start in range(0, version.num_bytes, AGAIN_BYTES):
        again.update(version.fetch_range(start, min(start + AGAIN_BYTES, version.num_bytes)))
    if again.hexdigest() != sha256:
        raise _damaged(version, f"MD5 {md5} where its ETag is {promised}")
    _others.add(_bucket(version))


def _bucket(version: "RemoteVersion") -> str:
    return split_url(version.url).origin


def _damaged(version: "RemoteVersion", found: str) -> FetchError:
    error = remote_error(
        version.url,
        found,
        expected="the content that its source tells the digest of",
        remedy="run again, which reads it again; if it stays so, see what lies between",
    )
    return FetchError(**error.fields())
