"""How much text a file holds, as the file itself says; next to nothing of it is read."""

import struct
from collections.abc import Callable
from pathlib import Path

from tokflow.documents.compression import ZSTD_SUFFIXES
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_formats import format_of_file
from tokflow.documents.formats.parquet import text_bytes
from tokflow.documents.ranges import text_bytes_of
from tokflow.errors import TokflowError
from tokflow.store.zstd import zstd

_HEADER_BYTES = 18
"""The longest header of a Zstandard frame."""


def declared_text_bytes(path: Path, num_bytes: int, config: DocumentsConfig) -> int:
    """Return about how many bytes of text a file of `num_bytes` holds; see `text_bytes_of`.

    A parquet file says it of its columns, a .zst of its first frame, a .gz of its last member
    modulo 4 GiB. What is no more than the file itself is taken for that of a part.
    """
    suffix = path.suffix.lower()
    say = _DECLARED.get(suffix)
    if say is None and format_of_file(path, config) == "parquet":
        say = _of_parquet
    declared = 0
    if say is not None:
        try:
            declared = say(path, config)
        except (TokflowError, OSError, ValueError, struct.error, zstd.ZstdError):
            declared = 0  # who reads it says what is wrong
    return declared if declared > num_bytes else text_bytes_of(path, num_bytes, config)


def _of_parquet(path: Path, config: DocumentsConfig) -> int:
    import pyarrow.parquet as pq

    from tokflow.documents.formats.columns import for_parquet

    metadata = pq.read_metadata(for_parquet(path))
    row_groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(text_bytes(row_group, list(config.columns)) for row_group in row_groups)


def _of_gzip(path: Path, config: DocumentsConfig) -> int:
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int(struct.unpack("<I", file.read())[0])


def _of_zstd(path: Path, config: DocumentsConfig) -> int:
    with path.open("rb") as file:
        return zstd.get_frame_info(file.read(_HEADER_BYTES)).decompressed_size or 0


_DECLARED: dict[str, Callable[[Path, DocumentsConfig], int]] = {
    ".gz": _of_gzip,
    **dict.fromkeys(ZSTD_SUFFIXES, _of_zstd),
}
