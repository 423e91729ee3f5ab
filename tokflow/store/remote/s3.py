"""Objects of S3, and of servers that speak as it does, by their keys."""

import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from tokflow.store.failures import S3Error
from tokflow.store.remote.entry import Entry, Piece, Upload
from tokflow.store.remote.parts import (
    COPIED_BYTES,
    Part,
    is_copied,
    parts_of,
    ranges_of,
)
from tokflow.store.s3_client import S3Client

_PARTS_AT_ONCE = 8
"""Of large files: requests under way at the same time, with so many parts in memory, twice. A
gigabyte costs a second of a core, both ways."""
_SMALL_BYTES = 1 << 20
"""Of files that do not count among those."""
_DELETED_AT_ONCE = 1_000
"""The most that one request takes."""


class S3Objects:
    """The objects of a bucket below a prefix."""

    def __init__(self, url: str) -> None:
        self._client = S3Client(url)
        self._prefix = f"{self._client.path}/" if self._client.path else ""
        self._room = BoundedSemaphore(_PARTS_AT_ONCE)
        """For files of one part."""
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="tokflow-objects")

    def read(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of an object between two positions.

        Raises: FileNotFoundError.
        """
        return self._client.read(self._prefix + key, start, stop)

    def put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Put an object. Raises: FileExistsError where there is one and it must be new."""
        if_none = {"IfNoneMatch": "*"} if is_new else {}
        try:
            self._ask("put_object", Key=key, Body=data, **if_none)
        except S3Error as error:
            if not is_new or error.status != 412:
                raise
            raise FileExistsError(key) from error

    def put_file(self, path: Path, key: str, copies: Mapping[int, Piece]) -> None:
        """Put a file of this disk, in parts if it is large; of `copies`, by where in the file they
        begin, long ones are copied on the server.

        Raises: FileNotFoundError where an object that is to be copied is not there, or has
        other bytes than the file, as far as the server tells.
        """
        with path.open("rb") as file:
            descriptor = file.fileno()
            num_bytes = os.fstat(descriptor).st_size
            parts = parts_of(_with_copies(num_bytes, copies))
            if len(parts) <= 1 and not any(map(is_copied, parts)):
                with self._room_for(num_bytes):
                    self.put(key, file.read())
                return

            def put(part: Part, start: int, **upload: Any) -> str:
                if is_copied(part):
                    answer = self._copy_part(part, **upload)
                    _check_copy(answer, _md5(descriptor, start, _length(part)))
                    return _etag(answer)
                return self._put_part(os.pread(descriptor, _length(part), start), **upload)

            starts = itertools.accumulate(map(_length, parts), initial=0)
            puts = [partial(put, part, start) for part, start in zip(parts, starts, strict=False)]
            self._put_parts(key, num_bytes, puts)

    def get_file(self, key: str, path: Path, num_bytes: int) -> None:
        """Write the first so many bytes of an object to a file, by many requests if it is large.

        Raises: FileNotFoundError where there is no object.
        """
        ranges = list(ranges_of(num_bytes))
        with path.open("wb") as file:
            if len(ranges) <= 1:
                self._client.read_to(file.fileno(), self._prefix + key)
                return
            file.truncate(num_bytes)

            read = partial(self._client.read_to, file.fileno(), self._prefix + key)
            self._at_once([partial(read, *each) for each in ranges])

    def copy(self, source: str, key: str, num_bytes: int) -> None:
        """Put a copy of an object. Raises: FileNotFoundError."""
        if num_bytes <= COPIED_BYTES:
            self._ask("copy_object", Key=key, CopySource=self._source(source))
            return

        def put(part: Part, **upload: Any) -> str:
            return _etag(self._copy_part(part, **upload))

        parts = parts_of([Piece(source, 0, num_bytes)])
        self._put_parts(key, num_bytes, [partial(put, part) for part in parts])

    def listed(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with a prefix, in order."""
        for page in self._pages("list_objects_v2", prefix, "ContinuationToken"):
            for each in page.get("Contents", []):
                etag = each.get("ETag", "").strip('"')
                yield Entry(
                    key=each["Key"][len(self._prefix) :],
                    num_bytes=int(each["Size"]),
                    modified_ns=_nanoseconds(each["LastModified"], etag),
                    etag=etag,
                )

    def names(self, prefix: str) -> set[str]:
        """Return the next parts of the keys that begin with a prefix."""
        start = len(self._prefix) + len(prefix)
        pages = self._pages("list_objects_v2", prefix, "ContinuationToken", Delimiter="/")
        names = set()
        for page in pages:
            names |= {each["Key"][start:] for each in page.get("Contents", [])}
            names |= {each["Prefix"][start:-1] for each in page.get("CommonPrefixes", [])}
        return names

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error."""
        batches = [keys[i : i + _DELETED_AT_ONCE] for i in range(0, len(keys), _DELETED_AT_ONCE)]
        self._at_once([partial(self._remove, batch) for batch in batches])

    def _remove(self, keys: Sequence[str]) -> None:
        names = {"Quiet": True, "Objects": [{"Key": self._prefix + key} for key in keys]}

        self._client.ask("delete_objects", Delete=names)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield the uploads in parts below a prefix that were begun and not finished."""
        for page in self._pages("list_multipart_uploads", prefix, "KeyMarker", "UploadIdMarker"):
            for each in page.get("Uploads", []):
                begun_ns = int(each["Initiated"].timestamp() * 1e9)
                yield Upload(each["Key"][len(self._prefix) :], each["UploadId"], begun_ns)

    def abort(self, upload: Upload) -> None:
        """Let go of the parts of an upload; nothing where it has ended meanwhile."""
        try:
            self._ask("abort_multipart_upload", Key=upload.key, UploadId=upload.name)
        except FileNotFoundError:
            pass
        except S3Error as error:
            if error.code != "NoSuchUpload":
                raise

    def _put_parts(self, key: str, num_bytes: int, put_parts: Sequence[Callable[..., str]]) -> None:
        """Put an object from parts: each is put by a function that returns its ETag."""
        upload = self._ask("create_multipart_upload", Key=key)["UploadId"]
        try:
            etags = self._at_once(
                [
                    partial(put, Key=key, UploadId=upload, PartNumber=number)
                    for number, put in enumerate(put_parts, start=1)
                ]
            )
            parts = [{"PartNumber": i, "ETag": etag} for i, etag in enumerate(etags, start=1)]
            self._complete(key, num_bytes, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self.abort(Upload(key, upload, 0))
            raise

    def _complete(self, key: str, num_bytes: int, **upload: Any) -> None:
        try:
            self._ask("complete_multipart_upload", Key=key, **upload)
        except S3Error as error:
            # An earlier try was the one that completed it, and its answer was lost.
            is_gone = error.code == "NoSuchUpload"
            if not is_gone or self._num_bytes(key) != num_bytes:
                raise

    def _num_bytes(self, key: str) -> int | None:
        """Return the size of an object; None where there is none."""
        try:
            return int(self._ask("head_object", Key=key)["ContentLength"])
        except FileNotFoundError:
            return None

    def _put_part(self, data: bytes, **upload: Any) -> str:
        return str(self._ask("upload_part", Body=data, **upload)["ETag"])

    def _copy_part(self, part: Part, **upload: Any) -> dict[str, Any]:
        (piece,) = part
        source, of = self._source(piece.key), f"bytes={piece.start}-{piece.stop - 1}"
        return self._ask("upload_part_copy", CopySource=source, CopySourceRange=of, **upload)

    def _source(self, key: str) -> dict[str, str]:
        return {"Bucket": self._client.bucket, "Key": self._prefix + key}

    def _pages(
        self, method: str, prefix: str, *markers: str, **arguments: str
    ) -> Iterator[dict[str, Any]]:
        return self._client.pages(method, *markers, Prefix=self._prefix + prefix, **arguments)

    def _ask(self, method: str, *, Key: str, **arguments: Any) -> dict[str, Any]:  # noqa: N803
        return self._client.ask(method, Key=self._prefix + Key, **arguments)

    def _room_for(self, num_bytes: int) -> AbstractContextManager[object]:
        """Return what waits, while it is entered, until so many bytes more may be in memory."""
        return self._room if num_bytes > _SMALL_BYTES else nullcontext()

    def _at_once(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks, none of which may call this again."""
        if len(tasks) <= 1:
            return [task() for task in tasks]
        futures = [self._pool.submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)  # no task may go on with a file that is closed


def _etag(answer: dict[str, Any]) -> str:
    return str(answer["CopyPartResult"]["ETag"])


def _check_copy(answer: dict[str, Any], md5: str) -> None:
    """Raise a FileNotFoundError where a part that was copied has other bytes than the file has.

    A part's ETag is its md5, but where S3 encrypts with a key of its customer: there nothing is
    compared. A server whose ETags are something else gets every part sent.
    """
    is_told = "kms" not in answer.get("ServerSideEncryption", "")
    if is_told and _etag(answer).strip('"') != md5:
        raise FileNotFoundError("an object with the bytes that are to be copied")


def _md5(file: int, start: int, num_bytes: int) -> str:
    """Return the md5 of a range of an open file."""
    digest = hashlib.md5(usedforsecurity=False)
    for position in range(start, start + num_bytes, _SMALL_BYTES):
        digest.update(os.pread(file, min(_SMALL_BYTES, start + num_bytes - position), position))
    return digest.hexdigest()


def _nanoseconds(modified: datetime, etag: str) -> int:
    """Return a time that is another one where the content is, also in the same second: S3 tells
    seconds alone."""
    time_ns = int(modified.timestamp() * 1e9)
    return time_ns if time_ns % 10**9 else time_ns + zlib.crc32(etag.encode()) % 10**9


def _length(part: Part) -> int:
    return sum(map(len, part))


def _with_copies(num_bytes: int, copies: Mapping[int, Piece]) -> Iterator[Piece]:
    """Yield what a file of so many bytes consists of: copies, and ranges of itself between them."""
    position = 0
    for start, piece in sorted(copies.items()):
        yield Piece("", position, start)
        yield piece
        position = start + len(piece)
    yield Piece("", position, num_bytes)
