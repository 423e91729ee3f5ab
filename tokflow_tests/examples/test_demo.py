from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples import demo


def make_roots(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    return {"stdlib": folder / "lib", "site-packages": folder / "lib" / "site-packages"}


def read_rows(folder: Path) -> list[dict[str, str]]:
    parts = [folder / f"part-{part}.parquet" for part in range(demo.NUM_PARTS)]
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


FOUR_FILES = {
    "lib/b.py": b"bbbb",
    "lib/a/z.py": b"zzzz",
    "lib/notes.txt": b"not python",
    "lib/site-packages/p/m.py": b"mmmm",
    "lib/site-packages/__editable___x_finder.py": b"machine",
    "lib/a.py": b"aaaa",
}


def test_parts_have_equal_shares_of_the_text_in_sorted_order_under_the_name_of_their_root(
    tmp_path: Path,
):
    roots = make_roots(tmp_path, FOUR_FILES)

    demo.collect(tmp_path / "raw", roots)

    sizes = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "raw").iterdir())]
    assert sizes == [1, 1, 1, 1]
    assert read_rows(tmp_path / "raw") == [
        {"path": "stdlib/a.py", "content": "aaaa"},
        {"path": "stdlib/a/z.py", "content": "zzzz"},
        {"path": "stdlib/b.py", "content": "bbbb"},
        {"path": "site-packages/p/m.py", "content": "mmmm"},
    ]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"a\r\nb\rc\n", "a\r\nb\rc\n"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n"),
        (b"# coding: latin-1\n\xe9", "# coding: latin-1\né"),
        ("é".encode(), "é"),
        (b"", ""),
    ],
)
def test_text_is_decoded_as_declared_and_keeps_its_line_ends(source: bytes, text: str):
    assert demo.decode_source(source) == text


def test_undecodable_and_repeated_files_are_left_out_and_counted(tmp_path: Path):
    roots = make_roots(tmp_path, {"lib/a.py": b"a", "lib/b.py": b"a", "lib/c.py": b"\xff"})

    counts = demo.collect(tmp_path / "raw", roots)

    assert counts == dict.fromkeys(
        ("num_documents", "num_bytes", "num_repeated", "num_undecodable"), 1
    )


def test_a_complete_collection_is_not_made_again_and_an_incomplete_one_is(tmp_path: Path):
    roots = make_roots(tmp_path, FOUR_FILES)
    made = demo.collect(tmp_path / "raw", roots)

    assert demo.collect(tmp_path / "raw", roots) is None

    (tmp_path / "raw/part-2.parquet").unlink()
    assert demo.collect(tmp_path / "raw", roots) == made
    assert len(read_rows(tmp_path / "raw")) == 4
