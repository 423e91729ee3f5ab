"""An export is compared with what it was made from, piece by piece."""

from collections.abc import Iterator
from weakref import ref

import numpy as np

from tokflow.audit.verify.export import _fields_apart
from tokflow.sequences.segments import Sequences

FIELDS = ("token_ids", "segment_ids", "position_ids", "loss_mask")


def test_fields_of_sequences_are_dropped_when_all_that_are_compared_have_passed():
    made: list[ref[np.ndarray]] = []

    def batches() -> Iterator[Sequences]:
        for number in range(100):
            arrays = [np.full((2, 4), number, dtype) for dtype in ("u2", "i4", "i4", "?")]
            made.extend(map(ref, arrays))
            yield Sequences(*arrays)

    fields = _fields_apart(batches(), FIELDS)
    assert fields["loss_mask"].next(3).tolist() == [False] * 3
    del fields["loss_mask"]  # it differs, and is not compared any more
    for number in range(100):
        for rest in fields.values():
            assert rest.next(8).tolist() == [number] * 8
        assert sum(array() is not None for array in made) <= 2 * len(FIELDS)

    assert [len(rest.next(1)) for rest in fields.values()] == [0, 0, 0]
