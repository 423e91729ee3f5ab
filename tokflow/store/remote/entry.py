"""What a store at a URL holds, as it tells of it: objects, ranges of them, unfinished uploads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, as a listing tells of it."""

    key: str
    num_bytes: int
    modified_ns: int
    """Where the store tells seconds alone, what is below a second is made of the etag."""
    etag: str = ""
    """Another where the content is another; empty where the store has none. Of S3 the md5 of an
    object that was put at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of an object between two positions."""

    key: str
    """Empty: of the file that is being put."""
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that was not finished: its parts are kept, and paid for, until it is
    aborted."""

    key: str
    name: str
    """By which the store knows it."""
    begun_ns: int
