import pytest

from tokflow.raw.buckets import find_keys
from tokflow.raw.globs import path_regex

KEYS = [
    *(f"raw/d{number:03}/s/{name}.txt" for number in range(40) for name in "ab"),
    *(f"raw/d000/deep/{number:03}/x.txt" for number in range(50)),
    "raw/d000/s.txt", "raw/d001/s0", "raw/d002/s/", "raw/d003/s/a.txt/part", "raw/e?/s/é.txt",
    "raw/d004/s/[x].txt", "raw/d.txt", "raws/d0/s/a.txt",
]  # fmt: skip


def pages(Prefix: str, Delimiter: str = ""):  # noqa: N803
    """Yield ten keys of a bucket by a page."""
    keys = sorted(key for key in KEYS if key.startswith(Prefix))
    for start in range(0, len(keys), 10):
        yield {"Contents": [{"Key": of, "Size": 1, "ETag": "e"} for of in keys[start : start + 10]]}


@pytest.mark.parametrize(
    "pattern", ["*/s/*.txt", "d*/s/a.txt", "*/*", "*/s", "e[?]/s/*", "d00?/s/[[]x].txt", "none*/a"]
)
def test_every_match_is_found_whatever_the_pages(pattern: str):
    paths = {key.removeprefix("raw/") for key in KEYS if key.startswith("raw/")}
    above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    kinds = dict.fromkeys(above, "directory") | dict.fromkeys(paths, "file")
    is_match = path_regex(pattern).match

    found = find_keys(pages, "raw/", pattern.split("/"))

    assert {path: of["type"] for path, of in found.items()} == {
        path: kind for path, kind in kinds.items() if path[-1] != "/" and is_match(path)
    }
