"""Objects of S3, and of servers that speak as it does: a large one goes and comes in parts."""

import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from tokflow.store.listed_files import SHORT_BYTES
from tokflow.store.remote.objects import Entry, Objects, Piece, Upload
from tokflow.store.requests import S3Client, S3Error

PART_BYTES = 16 << 20
"""Size of a part that is sent or fetched, where MAX_PARTS of them are enough."""
COPIED_BYTES = 1 << 30
"""The longest that one request copies; S3 would take 5 GiB."""
MAX_PARTS = 10_000
_PARTS_AT_ONCE = 8
"""Requests for large files under way at the same time; twice as many parts are in memory. A
gigabyte costs a second of a core, both ways."""
_SMALL_BYTES = 1 << 20
"""Size up to which a file does not count as a large one."""
_DELETED_AT_ONCE = 1_000
"""Most keys that one request deletes."""


Part = list[Piece]


class S3Objects(Objects):
    """The objects of a bucket below a prefix."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = S3Client(url)
        self._prefix = f"{self._client.path}/" if self._client.path else ""

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        return self._client.read(self._prefix + key, start, stop)

    def _put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        if_none = {"IfNoneMatch": "*"} if is_new else {}
        try:
            self._ask("put_object", Key=key, Body=data, **if_none)
        except S3Error as error:
            if not is_new or error.status != 412:
                raise
            raise FileExistsError(key) from error

    def _put_file(self, path: Path, key: str, copies: Mapping[int, Piece]) -> None:
        with path.open("rb") as file:
            descriptor = file.fileno()
            num_bytes = os.fstat(descriptor).st_size
            pieces, position = [], 0  # copies, and ranges of the file between them
            for begin, piece in sorted(copies.items()):
                pieces += [Piece("", position, begin), piece]
                position = begin + len(piece)
            parts = parts_of([*pieces, Piece("", position, num_bytes)])
            if len(parts) <= 1 and not any(map(is_copied, parts)):
                with _room(os.getpid()) if num_bytes > _SMALL_BYTES else nullcontext():
                    self._put(key, file.read())
                return

            def put(part: Part, start: int, **upload: Any) -> str:
                if not is_copied(part):
                    data = os.pread(descriptor, _length(part), start)
                    return str(self._ask("upload_part", Body=data, **upload)["ETag"])
                answer = self._copy_part(part, **upload)
                # A part's ETag is its md5, but where S3 encrypts with a key of its customer: there
                # nothing is compared. A server with other ETags gets every part sent.
                is_told, etag = "kms" not in answer.get("ServerSideEncryption", ""), _etag(answer)
                if is_told and etag.strip('"') != _md5(descriptor, start, _length(part)):
                    raise FileNotFoundError("an object with the bytes that are to be copied")
                return etag

            starts = itertools.accumulate(map(_length, parts), initial=0)
            puts = [partial(put, part, start) for part, start in zip(parts, starts, strict=False)]
            self._put_parts(key, num_bytes, puts)

    def _get_file(self, key: str, path: Path, num_bytes: int) -> None:
        ranges = list(ranges_of(num_bytes))
        with path.open("wb") as file:
            if len(ranges) <= 1:
                self._client.read_to(file.fileno(), self._prefix + key)
                return
            file.truncate(num_bytes)

            read = partial(self._client.read_to, file.fileno(), self._prefix + key)
            self._at_once([partial(read, *each) for each in ranges])

    def _copy(self, source: str, key: str, num_bytes: int) -> None:
        if num_bytes <= COPIED_BYTES:
            self._ask("copy_object", Key=key, CopySource=self._source(source))
            return

        def put(part: Part, **upload: Any) -> str:
            return _etag(self._copy_part(part, **upload))

        parts = parts_of([Piece(source, 0, num_bytes)])
        self._put_parts(key, num_bytes, [partial(put, part) for part in parts])

    def _listed(self, prefix: str) -> Iterator[Entry]:
        for page in self._pages("list_objects_v2", prefix, "ContinuationToken"):
            for each in page.get("Contents", []):
                etag = each.get("ETag", "").strip('"')
                yield Entry(
                    key=each["Key"][len(self._prefix) :],
                    num_bytes=int(each["Size"]),
                    modified_ns=_nanoseconds(each["LastModified"], etag),
                    etag=etag,
                )

    def _names(self, prefix: str) -> set[str]:
        start = len(self._prefix) + len(prefix)
        pages = self._pages("list_objects_v2", prefix, "ContinuationToken", Delimiter="/")
        names = set()
        for page in pages:
            names |= {each["Key"][start:] for each in page.get("Contents", [])}
            names |= {each["Prefix"][start:-1] for each in page.get("CommonPrefixes", [])}
        return names

    def _remove(self, keys: Sequence[str]) -> None:
        named = [{"Key": self._prefix + key} for key in keys]
        batches = [named[i : i + _DELETED_AT_ONCE] for i in range(0, len(keys), _DELETED_AT_ONCE)]
        ask = partial(self._client.ask, "delete_objects")
        self._at_once([partial(ask, Delete={"Quiet": True, "Objects": of}) for of in batches])

    def _uploads(self, prefix: str) -> Iterator[Upload]:
        for page in self._pages("list_multipart_uploads", prefix, "KeyMarker", "UploadIdMarker"):
            for each in page.get("Uploads", []):
                begun_ns = int(each["Initiated"].timestamp() * 1e9)
                yield Upload(each["Key"][len(self._prefix) :], each["UploadId"], begun_ns)

    def _abort(self, upload: Upload) -> None:
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
            of = {"Key": key, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
            try:
                self._ask("complete_multipart_upload", **of)
            except S3Error as error:
                found = None
                if error.code == "NoSuchUpload":  # for an earlier try completed it, unanswered
                    with suppress(FileNotFoundError):
                        found = self._ask("head_object", Key=key)["ContentLength"]
                if found != num_bytes:
                    raise
        except BaseException:
            self._abort(Upload(key, upload, 0))
            raise

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

    def _at_once(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks, none of which may call this again."""
        if len(tasks) <= 1:
            return [task() for task in tasks]
        futures = [_threads(os.getpid()).submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)  # no task may go on with a file that is closed


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process for parts of files; a forked one does not have them."""
    return ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="tokflow-objects")


@cache
def _room(process: int) -> BoundedSemaphore:
    """Return what bounds the files of one part that a process has in memory."""
    return BoundedSemaphore(_PARTS_AT_ONCE)


def _etag(answer: dict[str, Any]) -> str:
    return str(answer["CopyPartResult"]["ETag"])


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


def ranges_of(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of an object begin and end; one of 0 bytes has none."""
    step = max(PART_BYTES, -(-num_bytes // MAX_PARTS))
    for start in range(0, num_bytes, step):
        yield start, min(num_bytes, start + step)


def parts_of(pieces: Iterable[Piece]) -> list[Part]:
    """Return pieces, end to end, as the parts of one object.

    A part is either one piece of at least SHORT_BYTES, or pieces that have so many bytes together;
    the last alone may have fewer. With SHORT_BYTES of 8, of pieces of 3, 20 and 1 bytes:

        [3 and 5 of the second] [the 15 others of the second] [1]

    They are longer where there would be more than MAX_PARTS.
    """
    parts: list[Part] = []
    waiting: Part = []
    merged = _merged(pieces)
    short = max(SHORT_BYTES, 3 * sum(map(len, merged)) // MAX_PARTS)
    for piece in merged:
        missing = short - sum(map(len, waiting))
        if waiting or len(piece) < short:
            waiting.append(_cut(piece, 0, min(missing, len(piece))))
            if len(piece) < missing:
                continue
            parts.append(waiting)
            waiting, piece = [], _cut(piece, missing, len(piece))
        if len(piece) >= short:
            parts += [[each] for each in _divided(piece, max(PART_BYTES, short))]
        elif piece:
            waiting = [piece]
    return parts + ([waiting] if waiting else [])


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces that are not empty; those of one object that follow each other as one."""
    merged: list[Piece] = []
    for piece in filter(len, pieces):
        if merged and (merged[-1].key, merged[-1].stop) == (piece.key, piece.start):
            piece = Piece(piece.key, merged.pop().start, piece.stop)
        merged.append(piece)
    return merged


def is_copied(part: Part) -> bool:
    """Return whether a part is copied on the server, and not sent."""
    piece, *others = part
    return bool(piece.key) and not others and len(piece) >= SHORT_BYTES


def _divided(piece: Piece, part_bytes: int) -> Iterator[Piece]:
    """Yield a piece in as few as one request takes, all about as long."""
    num_parts = -(-len(piece) // (COPIED_BYTES if is_copied([piece]) else part_bytes))
    edges = [len(piece) * i // num_parts for i in range(num_parts + 1)]
    for start, stop in itertools.pairwise(edges):
        yield _cut(piece, start, stop)


def _cut(piece: Piece, start: int, stop: int) -> Piece:
    return Piece(piece.key, piece.start + start, piece.start + stop)
