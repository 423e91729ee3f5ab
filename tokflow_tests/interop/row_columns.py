"""What the columns of a known dataset's rows must be, end to end."""

from collections.abc import Iterable, Mapping

import numpy as np

from tokflow_tests.interop.harness import Arrays, Known

PARTS = ("train", "validation")

COLUMNS = {
    "input_ids": "int32",
    "attention_mask": "int8",
    "segment_ids": "int32",
    "position_ids": "int32",
}


def flat(known: Known, part: str, *, padding: bool = True) -> Arrays:
    """Return what each column must hold, end to end, and how much of it each row has."""
    rows = known.rows(part)
    is_token = rows["segment_ids"] != 0
    values = {
        "input_ids": rows["token_ids"],
        "attention_mask": is_token.astype(np.int64),
        "segment_ids": rows["segment_ids"],
        "position_ids": rows["position_ids"],
        "loss_mask": is_token.astype(np.int64),
        "labels": np.where(is_token, rows["token_ids"], -100),
    }
    kept = np.ones_like(is_token) if padding else is_token
    lengths = [np.bincount(row[row > 0])[1:] for row in rows["segment_ids"]]
    arrays = {name: column[kept] for name, column in values.items()}
    arrays |= {f"{name}.lengths": kept.sum(axis=1) for name in values}
    arrays["seq_lengths"] = np.concatenate(lengths)
    arrays["seq_lengths.lengths"] = np.array([*map(len, lengths)])
    return arrays


def assert_columns(found: Mapping[str, np.ndarray], expected: Arrays, columns: Iterable[str]):
    for name in columns:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        lengths = f"{name}.lengths"
        np.testing.assert_array_equal(found[lengths], expected[lengths], err_msg=lengths)
