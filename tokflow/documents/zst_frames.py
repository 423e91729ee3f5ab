"""Frames of a .zst file with a table that says where each begins: Zstandard's seekable format.

Source: facebook/zstd, contrib/seekable_format/zstd_seekable_compression_format.md, version 0.1.0.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.compression import DECOMPRESSOR_ERRORS, DECOMPRESSORS
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_range import Range, gathered
from tokflow.errors import RawFileError
from tokflow.raw.streamed import read_until

_HEADER = struct.Struct("<II")  # magic number and size, of the skippable frame that holds the table
_FOOTER = struct.Struct("<IBI")  # number of frames, descriptor, magic number
_MAGIC = (0x184D2A5E, 0x8F92EAB1)
_HAS_CHECKSUMS = 0x80

_MAX_FRAME_BYTES = 64_000_000
"""Text of a frame, which is in memory as a whole. Tools that write a table cut at 1 to 4 MB."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a file, and the table at its end. Every array has shape (num_frames + 1,)."""

    path: Path
    starts: npt.NDArray[np.int64]
    """Byte of the file at which each begins, and the end of the last."""
    text_starts: npt.NDArray[np.int64]
    """The same of the decompressed text."""

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the text between two bytes of it, a frame at a time.

        Raises: RawFileError where a frame is not what the table says.
        """
        first = int(np.searchsorted(self.text_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.text_starts[:-1], stop))
        with self.path.open("rb") as file:
            read_until(file, int(self.starts[last]))
            for index in range(first, last):
                file.seek(self.starts[index])
                frame = file.read(int(self.starts[index + 1] - self.starts[index]))
                begin = int(self.text_starts[index])
                if text := self._decompressed(frame, index)[max(0, start - begin) : stop - begin]:
                    yield text

    def _decompressed(self, frame: bytes, index: int) -> bytes:
        num_bytes = int(self.text_starts[index + 1] - self.text_starts[index])
        decompressor = DECOMPRESSORS[".zst"]()
        found = "another size"
        try:
            text = decompressor.decompress(frame, max_length=num_bytes + 1)
            if len(text) == num_bytes and decompressor.eof and not decompressor.unused_data:
                return text
        except DECOMPRESSOR_ERRORS as error:
            found = str(error)
        raise RawFileError(
            where=f"{self.path}, in the frame from byte {self.starts[index]:,}",
            expected=f"one frame of {num_bytes:,} bytes, as the table at the end of the file says",
            found=found,
            remedy="download or compress the file again",
        )


def frames_of(path: Path) -> Frames | None:
    """Return the frames of a file; None where no table, or none that fits, is at its end, or a
    frame is large."""
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, num_bytes - _FOOTER.size))
        footer = file.read()
        if len(footer) < _FOOTER.size:
            return None
        num_frames, descriptor, magic = _FOOTER.unpack(footer)
        width = 3 if descriptor == _HAS_CHECKSUMS else 2
        table_bytes = 4 * width * num_frames + _FOOTER.size
        start = num_bytes - table_bytes - _HEADER.size
        if magic != _MAGIC[1] or descriptor not in (0, _HAS_CHECKSUMS) or start < 0:
            return None
        file.seek(start)
        header = _HEADER.unpack(file.read(_HEADER.size))
        table = np.frombuffer(file.read(table_bytes - _FOOTER.size), dtype="<u4")
    sizes = table.reshape(num_frames, width)[:, :2].astype(np.int64)
    starts = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(sizes, axis=0)])
    is_whole = header == (_MAGIC[0], table_bytes) and starts[-1, 0] == start
    if not is_whole or sizes[:, 1].max(initial=0) > _MAX_FRAME_BYTES:
        return None
    return Frames(path, starts[:, 0], starts[:, 1])


def ranges_of_frames(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return bytes of the text of frames, gathered to about `range_bytes`; none without a table."""
    frames = frames_of(path)
    if frames is None:
        return ()
    starts = frames.text_starts.tolist()
    found = gathered(np.diff(frames.text_starts).tolist(), range_bytes)
    return tuple(Range(starts[some.start], starts[some.stop]) for some in found)
