"""Ranges of .zst files whose frames a table at their end tells: the seekable format."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, Range, ranges_of, zst_frames
from tokflow.errors import RawFileError
from tokflow.store.zstd import zstd
from tokflow_tests.documents.test_ranges import (
    GOOD,
    JSON_LINES,
    TEXT_LINES,
    check,
    content_of,
    find,
    find_in_ranges,
)

PLAIN = DocumentsConfig()
LINES = DocumentsConfig(document_per="line")
MANY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def table_of(sizes: Sequence[tuple[int, int]], *, has_checksums: bool = False) -> bytes:
    """Return the skippable frame with the compressed and the decompressed size of each frame."""
    checksum = b"abcd" * has_checksums
    entries = b"".join(struct.pack("<II", *pair) + checksum for pair in sizes)
    footer = struct.pack("<IBI", len(sizes), 0x80 * has_checksums, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(entries) + len(footer)) + entries + footer


def write_frames(path: Path, texts: Sequence[bytes], *, has_checksums: bool = False) -> None:
    frames = [zstd.compress(text) for text in texts]
    sizes = [(len(frame), len(text)) for frame, text in zip(frames, texts, strict=True)]
    path.write_bytes(b"".join(frames) + table_of(sizes, has_checksums=has_checksums))


@MANY
@given(
    lines=st.lists(st.sampled_from(JSON_LINES), min_size=20, max_size=40),
    is_txt=st.booleans(),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    has_checksums=st.booleans(),
    cuts=st.lists(st.integers(0, 1500), min_size=3, max_size=12),
    range_bytes=st.integers(20, 300),
)
def test_ranges_of_frames_give_what_the_whole_gives(
    lines, is_txt, has_mark, has_end, has_checksums, cuts, range_bytes, tmp_path: Path
):
    path = tmp_path / ("a.txt.zst" if is_txt else "a.jsonl.zst")
    lines = [*lines, *TEXT_LINES] if is_txt else lines
    text = content_of(lines, has_mark=has_mark, has_end=has_end)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    texts = [text[start:stop] for start, stop in pairwise(edges)]
    write_frames(path, texts, has_checksums=has_checksums)
    fields = {"document_per": "line"} if is_txt else {}

    ranges = ranges_of(path, DocumentsConfig(**fields), range_bytes=range_bytes)

    assert {within.start for within in ranges} <= set(edges)
    if ranges:
        assert (ranges[0].start, ranges[-1].stop) == (0, len(text))
        check(path, fields, ranges)


def test_frames_are_gathered_to_ranges_of_about_one_size(tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    write_frames(path, [GOOD + b"\n"] * 100)

    ranges = ranges_of(path, PLAIN, range_bytes=10 * len(GOOD) + 10)

    assert len(ranges) == 10
    assert {within.stop - within.start for within in ranges} == {10 * len(GOOD) + 10}
    assert len(find_in_ranges(path, PLAIN, ranges).documents) == 100


FRAMES = [zstd.compress(GOOD + b"\n")] * 9
SIZES = [(len(FRAMES[0]), len(GOOD) + 1)] * 9
UNUSED = {
    "no table": b"".join(FRAMES),
    "a table of fewer frames": b"".join(FRAMES) + table_of(SIZES[1:]),
    "a table that is cut short": (b"".join(FRAMES) + table_of(SIZES))[:-1],
    "reserved bits": b"".join(FRAMES) + table_of(SIZES)[:-5] + b"\4" + table_of(SIZES)[-4:],
    "more frames than bytes": b"".join(FRAMES) + struct.pack("<IBI", 2**31, 0, 0x8F92EAB1),
    "another frame around it": b"".join(FRAMES) + b"\x51" + table_of(SIZES)[1:],
    "less than a table": b"abc",
}


@pytest.mark.parametrize("content", UNUSED.values(), ids=UNUSED)
def test_a_file_without_a_table_that_fits_is_whole(content: bytes, tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content)

    assert ranges_of(path, PLAIN, range_bytes=2) == ()
    with pytest.raises(ValueError, match="expected a table of frames"):
        find(path, PLAIN, Range(0, 10))


def test_a_file_with_large_frames_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl.zst"
    write_frames(path, [GOOD + b"\n"] * 9)
    assert ranges_of(path, PLAIN, range_bytes=50) != ()

    monkeypatch.setattr(zst_frames, "_MAX_FRAME_BYTES", len(GOOD))

    assert ranges_of(path, PLAIN, range_bytes=50) == ()


@pytest.mark.parametrize("error", [-1, 1])
def test_a_table_that_lies_is_an_error_and_no_other_text(error: int, tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    wrong = [(packed, size + error * (index == 4)) for index, (packed, size) in enumerate(SIZES)]
    path.write_bytes(b"".join(FRAMES) + table_of(wrong))

    ranges = ranges_of(path, PLAIN, range_bytes=100)
    found = find_in_ranges(path, PLAIN, ranges)

    assert len(find(path, PLAIN).documents) == 9
    assert isinstance(found.error, RawFileError)
    assert "as the table at the end of the file says" in str(found.error)


def test_a_damaged_frame_is_an_error(tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    write_frames(path, [GOOD + b"\n"] * 9)
    data = bytearray(path.read_bytes())
    data[len(FRAMES[0])] ^= 1
    path.write_bytes(data)

    found = find_in_ranges(path, PLAIN, ranges_of(path, PLAIN, range_bytes=100))

    assert isinstance(found.error, RawFileError)
