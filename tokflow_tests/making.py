"""Old names of `tiny` and `outputs`, until every test calls those."""

import numpy as np

from tokflow_tests.outputs import (  # noqa: F401
    content,
    edit_manifest,
    index_of,
    make_manifest,
    make_recipe,
    parts,
    rows_of,
    tokens_of,
    touched,
)
from tokflow_tests.tiny import EOS, build, declare, ids, many_ids  # noqa: F401
from tokflow_tests.tiny import write_texts as write_jsonl  # noqa: F401


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)
