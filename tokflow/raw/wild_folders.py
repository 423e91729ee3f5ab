"""Objects of S3 that are found by a pattern with wildcards in names of folders."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tokflow.raw.globs import path_regex

_LAST = "\U0010ffff"
"""Behind whatever may follow the name of a folder."""


def find_in_folders(
    ask: Callable[..., dict[str, Any]], prefix: str, below: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the files and folders whose names match `below`, one for each level, by their paths
    below `prefix`, as fsspec tells them. `ask` returns a page of keys, in order.

    Pages hold a thousand keys of whatever folders, so that many small folders cost few requests.
    Where one ends in a folder in which nothing can match, the next begins behind that folder, so
    that large ones cost few, too:

        raw/*/a.txt    raw/x/a.txt, raw/x/deep/0 | 1, 2, ... 99,999 | raw/y/a.txt
                                        a page ends                  the next begins
    """
    matches = [path_regex(name).match for name in below]
    first = {"Prefix": prefix + re.split(r"[*?[]", below[0])[0]}
    found: dict[str, dict[str, Any]] = {}
    after: dict[str, str] = {}
    while True:
        page = ask(**first, **after)
        folder = ""
        for each in page.get("Contents", []):
            *folders, name = each["Key"][len(prefix) :].split("/")
            pairs = zip(matches, folders, strict=False)
            depth = next((i for i, (match, of) in enumerate(pairs) if not match(of)), None)
            if depth is None and len(folders) >= len(below):
                depth = len(below) - 1
                found.setdefault("/".join(folders[: len(below)]), {"type": "directory"})
            folder = "" if depth is None else prefix + "/".join(folders[: depth + 1]) + "/"
            if depth is None and len(folders) == len(below) - 1 and name and matches[-1](name):
                path = "/".join((*folders, name))
                found[path] = {"type": "file", "ETag": each.get("ETag"), "size": each["Size"]}
        if not page.get("IsTruncated"):
            return found
        is_past = {"StartAfter": folder + _LAST}
        after = is_past if folder else {"ContinuationToken": page["NextContinuationToken"]}
