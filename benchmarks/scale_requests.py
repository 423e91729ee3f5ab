"""Requests that tokflow makes of an object store, by kind: a model that the tests hold exact.

`tokflow_tests/test_benchmarks_scale.py` builds small datasets on a server that counts, and compares
with what is said here. Where the code changes what it asks for, one function here changes with it.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tokflow.raw.remote_file import FIRST_BYTES, GROWTH, PIECE_BYTES
from tokflow.store.remote import s3
from tokflow.store.remote.objects import Piece

KEYS_PER_LIST = 1_000

DEAR = ("PUT", "COPY", "LIST", "BEGIN", "PART", "PART_COPY", "COMPLETE")
"""Kinds of requests that cost as much as PUT; DELETE costs nothing."""
CHEAP = ("GET", "HEAD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The outputs of a dataset, as far as requests depend on them."""

    num_files: int
    """Raw files, or groups of them."""
    num_ranges: int = 0
    """Of each raw file, where its tokens are made of segments; else 0."""
    token_bytes: float = 0
    """Of each token file."""
    tokenizer_files: int
    """Of the tokenizer's output."""
    num_packings: int = 1
    export_files: tuple[tuple[float, ...], ...]
    """Of each export the sizes of its files, the index among them."""
    has_export_segments: bool = False
    """True if each file of an export is made alone."""
    published: Collection[str] = ()
    """Of `tokens` and `export` those whose segments are put at the URL before they are joined."""

    @property
    def outputs(self) -> dict[str, tuple[int, tuple[float, ...]]]:
        """How many outputs each stage has, and the sizes of the files of one; tables are small."""
        return {
            "tokenizer": (1, (0,) * self.tokenizer_files),
            "tokens": (self.num_files, (self.token_bytes, 0) * max(1, self.num_ranges)),
            "split": (self.num_files, (0,)),
            "sequences": (self.num_files * self.num_packings, (0,)),
            **{f"export {n}": (1, files) for n, files in enumerate(self.export_files, 1)},
        }

    @property
    def manifests(self) -> dict[str, int]:
        """How many objects are below `manifests/`, by the name that follows it: segments are gone
        when their output is there, and an export has a `latest`."""
        num = Counter({stage.split()[0]: 0 for stage in self.outputs})
        for stage, (num_outputs, _) in self.outputs.items():
            num[stage.split()[0]] += num_outputs * (2 if stage.startswith("export") else 1)
        return dict(num)


def put(num_bytes: float) -> Counter[str]:
    """Return the requests that put a file: in parts, if it is large."""
    num = len(s3.parts_of([Piece("", 0, math.ceil(num_bytes))]))
    return Counter(PUT=1) if num <= 1 else Counter(BEGIN=1, PART=num, COMPLETE=1)


def got(num_bytes: float) -> Counter[str]:
    """Return the requests that get a file: in ranges, if it is large."""
    return Counter(GET=max(1, len(list(s3.ranges_of(math.ceil(num_bytes))))))


def refreshed(manifests: Mapping[str, int]) -> Counter[str]:
    """Return the requests of a look at all manifests: one at the verdicts of the store, and a
    listing."""
    return Counter(LIST=1 + max(1, pages(sum(manifests.values()))))


def pages(num_keys: int) -> int:
    """Return how many requests list so many keys."""
    return math.ceil(num_keys / KEYS_PER_LIST)


def published(files: Iterable[float]) -> Counter[str]:
    """Return the requests of an output that nobody has made yet: each file, the log of the run, the
    manifest."""
    alike = Counter(files).items()
    return total([Counter(PUT=2), *(times(put(size), num) for size, num in alike)])


def joined(files: Collection[float], num_segments: int, *, is_published: bool) -> Counter[str]:
    """Return the requests of an output that is joined of segments, with one that sees whether it is
    there meanwhile. Where they are at the URL a mark is put there before them, their manifests are
    asked for, the server copies their files, they are listed and removed, and so is the mark."""
    if not is_published:
        return published(files) + Counter(GET=1)
    return Counter(PUT=3, COPY=len(files), GET=1 + num_segments, LIST=2, DELETE=3)


def segment(files: Iterable[float], *, is_published: bool) -> Counter[str]:
    """Return the requests of a segment: one sees whether its output is there meanwhile."""
    return (published(files) if is_published else Counter()) + Counter(GET=1)


def built(shape: Shape) -> dict[str, Counter[str]]:
    """Return the requests of a first build on one machine, by stage; raw files aside."""
    found = {"state": refreshed({})}
    for stage, (num, files) in shape.outputs.items():
        is_export = stage.startswith("export")
        has_segments = is_export and shape.has_export_segments
        num_segments = len(files) if has_segments else 0
        if stage == "tokens":
            num_segments = shape.num_ranges
        at_url = {"is_published": stage.split()[0] in shape.published}
        of_one = joined(files, num_segments, **at_url) if num_segments else published(files)
        found[stage] = times(of_one, num)
        if is_export:
            found[stage] += Counter(PUT=1)  # latest
    if shape.num_ranges:
        each = segment((shape.token_bytes, 0), is_published="tokens" in shape.published)
        found["segments of tokens"] = times(each, shape.num_files * shape.num_ranges)
    for files in shape.export_files if shape.has_export_segments else ():
        at_url, alike = {"is_published": "export" in shape.published}, Counter(files).items()
        found["segments of exports"] = total(
            times(segment([size], **at_url), num) for size, num in alike
        )
    return found


def planned(shape: Shape, *, is_known: bool) -> Counter[str]:
    """Return the requests of a plan of what is all built, with a cache that knows its manifests or
    one that is empty."""
    found = refreshed(shape.manifests)
    return found if is_known else found + Counter(GET=sum(shape.manifests.values()))


def read_raw(num_tasks: int, num_bytes: float) -> Counter[str]:
    """Return the requests of reading raw parquet once, each task a range of a file: its end, twice,
    then pieces that grow."""
    left, step, num = num_bytes / num_tasks, FIRST_BYTES, 3
    while left > 0:
        left, step, num = left - step, min(GROWTH * step, PIECE_BYTES), num + 1
    return Counter(GET=num_tasks * num)


def times(requests: Counter[str], number: int) -> Counter[str]:
    """Return so many times as many of each kind."""
    return Counter({kind: number * num for kind, num in requests.items()})


def total(found: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum, without kinds of which there are none."""
    summed: Counter[str] = Counter()
    for each in found:
        summed.update(each)
    return +summed
