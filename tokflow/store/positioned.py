"""Remote files that are read like local ones, and ranges written to where they are in a file."""

import io
import os


class PositionedReader(io.RawIOBase):
    """A file of a known size, with the position that reading has come to; a subclass has
    `readinto`, which takes bytes from `_position` on and moves it."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, which fetches nothing."""
        of = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = max(0, of[whence] + offset)
        return self._position


def write_range(file: int, data: bytes, start: int) -> int:
    """Write bytes to where they are in an open file; return how many they are.

    A disk that becomes full takes the first of them, and raises when it is given the rest.
    """
    num_written = 0
    while num_written < len(data):
        num_written += os.pwrite(file, data[num_written:], start + num_written)
    return num_written
