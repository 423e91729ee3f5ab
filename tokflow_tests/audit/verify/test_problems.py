import re
from pathlib import Path

import numpy as np
import pytest

from tokflow.audit.verify.tokens import too_large
from tokflow.tokens.token_source import TokenSource, mapped

STATUS = Path("/proc/self/status")


def mapped_kilobytes() -> int:
    """Return how much of mapped files is in memory."""
    found = re.search(r"RssFile:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(not STATUS.exists(), reason="Linux tells what is in memory")
def test_memory_does_not_grow_with_the_ids_that_were_looked_at(tmp_path: Path):
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    tokens = TokenSource((mapped(path, np.dtype("<u2")),))
    before = mapped_kilobytes()

    problems = list(too_large("here", tokens, 5))

    assert problems == []
    assert mapped_kilobytes() - before < 20_000
