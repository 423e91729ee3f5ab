import re

import numpy as np
import pyarrow as pa
import pytest

from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines import Encoded
from tokflow.tokenizers.engines.chunks import ChunkedEngine, CutRule
from tokflow.tokenizers.engines.reference import BytesEngine

BEFORE_SPACE = CutRule(re.compile(rb"[a-z](?= )"))


class Recorder:
    """Bytes as tokens, and what the engine was given to make them of."""

    name = "recorder"

    def __init__(self, first_id: int = 0) -> None:
        self.given: list[list[str]] = []
        self._first_id = first_id

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        self.given.append(texts.to_pylist())
        encoded = BytesEngine().encode(texts)
        token_ids = encoded.token_ids.astype(np.uint32) + np.uint32(self._first_id)
        return Encoded(token_ids=token_ids, offsets=encoded.offsets)


def engine(recorder: Recorder, rule: CutRule | None = BEFORE_SPACE) -> ChunkedEngine:
    return ChunkedEngine(
        recorder, lambda: rule, dtype=np.dtype("<u2"), chunk_bytes=3, chunked_bytes=6, batch_bytes=6
    )


def documents(encoded: Encoded) -> list[str]:
    return [
        bytes(encoded.document(index).tolist()).decode()
        for index in range(len(encoded.offsets) - 1)
    ]


def test_a_long_text_is_given_in_chunks_and_comes_back_as_one():
    recorder = Recorder()

    encoded = engine(recorder).encode(to_texts(["ab cd ef gh", "x y"]))

    assert recorder.given == [["ab cd"], [" ef gh"], ["x y"]]
    assert documents(encoded) == ["ab cd ef gh", "x y"]


def test_the_space_that_the_tokenizer_adds_is_left_out_of_the_chunks():
    recorder = Recorder()
    rule = CutRule(BEFORE_SPACE.place, num_dropped=1)

    engine(recorder, rule).encode(to_texts(["ab cd ef gh"]))

    assert recorder.given == [["ab cd"], ["ef gh"]]


def test_a_text_after_an_offset_is_cut_in_its_own_place():
    recorder = Recorder()
    texts = to_texts(["zz", "", "ab cd ef gh", "y"])[1:]

    encoded = engine(recorder).encode(texts)

    assert documents(encoded) == ["", "ab cd ef gh", "y"]


@pytest.mark.parametrize(("first_id", "itemsize"), [(0, 2), (65_535, 4)])
def test_ids_are_kept_small_unless_one_does_not_fit(first_id: int, itemsize: int):
    encoded = engine(Recorder(first_id)).encode(to_texts(["ab cd ef gh"]))

    assert encoded.token_ids.dtype.itemsize == itemsize
    assert int(encoded.token_ids[0]) == first_id + ord("a")
