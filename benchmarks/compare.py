"""Compare two files of uint16 token ids, and say how the second differs.

    python -m benchmarks.compare EXPECTED FOUND EOS_ID OUTPUT

Writes JSON. A process of its own: the one that measures must stay small (see process.py).
"""

import hashlib
import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np


def main():
    *paths, eos_id, output = sys.argv[1:]
    expected, found = (np.fromfile(path, "<u2") for path in paths)
    Path(output).write_text(json.dumps(compare(expected, found, eos_id=int(eos_id))))


def compare(expected, found, *, eos_id):
    """Return whether the ids are the same, or the same documents in another order, and how many
    tokens more `found` has and how many of the expected documents it lacks.
    """
    is_same = np.array_equal(expected, found)
    missing = Counter() if is_same else documents(expected, eos_id) - documents(found, eos_id)
    return {
        "num_tokens": len(found),
        "num_more": len(found) - len(expected),
        "is_same": is_same,
        "num_missing": missing.total(),
        "num_documents": int(np.count_nonzero(expected == eos_id)),
    }


def documents(token_ids, eos_id):
    """Return how often each document is there, by the digest of its ids; each ends with EOS."""
    ends = [0, *(np.flatnonzero(token_ids == eos_id) + 1).tolist(), len(token_ids)]
    return Counter(
        hashlib.blake2b(token_ids[start:end].tobytes(), digest_size=12).digest()
        for start, end in itertools.pairwise(ends)
        if end > start
    )


if __name__ == "__main__":
    main()
