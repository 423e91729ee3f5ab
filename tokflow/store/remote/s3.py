"""Objects of S3, and of servers that speak as it does, by their keys; over s3fs."""

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

from tokflow.store.remote.entry import Entry, Piece, Upload
from tokflow.store.remote.failures import Tries, code_of
from tokflow.store.remote.parts import (
    COPIED_BYTES,
    Part,
    is_copied,
    parts_of,
    ranges_of,
    write_range,
)

_PARTS_AT_ONCE = 8
"""Of large files: requests under way at the same time, with so many parts in memory, twice. A
gigabyte costs a second of a core, both ways."""
_SMALL_BYTES = 1 << 20
"""Of files that do not count among those."""
_DELETED_AT_ONCE = 1_000
"""The most that one request takes."""


class S3Objects:
    """The objects of a bucket below a prefix. What asks the server raises what s3fs raises."""

    def __init__(self, url: str) -> None:
        from s3fs import S3FileSystem  # late: it takes 0.3 s

        once = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 64}
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        # Named, where it is known here, since s3fs shares its clients of equal arguments.
        named = {"endpoint_url": endpoint} if endpoint else {}
        self._files = S3FileSystem(
            **named,
            use_listings_cache=False,
            config_kwargs={**once, "connect_timeout": 10, "read_timeout": 60},
        )
        self._files.retries = 1
        path = S3FileSystem._strip_protocol(url)
        self._bucket, _, prefix = path.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._tries = Tries(url)
        self._room = BoundedSemaphore(_PARTS_AT_ONCE)
        """For files of one part."""
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="tokflow-objects")

    def read(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of an object between two positions.

        Raises: FileNotFoundError.
        """
        from fsspec.asyn import sync

        if stop is not None and stop <= start:
            return b""
        is_whole = start == 0 and stop is None  # then the server's checksum is looked at
        last = "" if stop is None else stop - 1
        range_ = {} if is_whole else {"Range": f"bytes={start}-{last}"}
        try:
            data: bytes = self._tries(lambda: sync(self._files.loop, self._get, key, range_))
        except OSError as error:
            if code_of(error) != "InvalidRange":  # it begins where the object has ended
                raise
            return b""
        return data

    async def _get(self, key: str, range_: Mapping[str, str]) -> bytes:
        """Return the bytes of an object; s3fs' `cat_file` takes `?versionId=` off a key."""
        answer = await self._files._call_s3(
            "get_object", Bucket=self._bucket, Key=self._prefix + key, **range_
        )
        try:
            data: bytes = await answer["Body"].read()
            return data
        finally:
            answer["Body"].close()

    def put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Put an object. Raises: FileExistsError where there is one and it must be new."""
        if_none = {"IfNoneMatch": "*"} if is_new else {}
        self._ask("put_object", Key=key, Body=data, **if_none)

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
        if len(ranges) <= 1:
            with self._room_for(num_bytes):
                path.write_bytes(self.read(key, 0, None))
            return
        with path.open("wb") as file:
            file.truncate(num_bytes)

            def get(start: int, stop: int) -> None:
                write_range(file.fileno(), self.read(key, start, stop), start)

            self._at_once([partial(get, *each) for each in ranges])

    def copy(self, source: str, key: str, num_bytes: int) -> None:
        """Put a copy of an object. Raises: FileNotFoundError."""
        if num_bytes <= COPIED_BYTES:
            name = {"Bucket": self._bucket, "Key": self._prefix + source}
            self._ask("copy_object", Key=key, CopySource=name)
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

        def ask() -> None:
            answer = self._files.call_s3("delete_objects", Bucket=self._bucket, Delete=names)
            for error in answer.get("Errors", []):
                raise _NotRemovedError(error)

        self._tries(ask)

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
        except OSError as error:
            if code_of(error) != "NoSuchUpload":
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
        except OSError as error:
            # An earlier try was the one that completed it, and its answer was lost.
            is_gone = code_of(error) == "NoSuchUpload"
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
        source = {"Bucket": self._bucket, "Key": self._prefix + piece.key}
        of = f"bytes={piece.start}-{piece.stop - 1}"
        answer: dict[str, Any] = self._ask(
            "upload_part_copy", CopySource=source, CopySourceRange=of, **upload
        )
        return answer

    def _pages(
        self, method: str, prefix: str, *markers: str, **arguments: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers to a request whose answer comes in pages."""
        asked = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **arguments}
        while True:
            page = self._tries(partial(self._files.call_s3, method, **asked))
            yield page
            if not page.get("IsTruncated"):
                return
            asked |= {marker: page[f"Next{marker}"] for marker in markers}

    def _ask(self, method: str, *, Key: str, **arguments: Any) -> Any:  # noqa: N803 (S3's names)
        key = self._prefix + Key
        return self._tries(
            lambda: self._files.call_s3(method, Bucket=self._bucket, Key=key, **arguments)
        )

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


class _NotRemovedError(OSError):
    """The answer of a store that removed some objects and not others."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('Code')} for {error.get('Key')}")
        self.response = {"Error": error}


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
