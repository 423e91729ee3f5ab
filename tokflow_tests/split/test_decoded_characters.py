from collections.abc import Sequence

import numpy as np

from tokflow.split.mixed_split import count_characters

TEXT = "aé漢😀b"
"""1, 2, 3, 4 and 1 bytes."""


def of_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def count(text: str, num_tokens: int) -> int:
    token_ids = np.frombuffer(text.encode()[:num_tokens], dtype=np.uint8)
    return count_characters(token_ids, of_bytes)


def test_a_character_counts_where_its_last_token_is():
    assert [count(TEXT, num_tokens) for num_tokens in range(12)] == [
        0,
        1,
        1,
        2,
        2,
        2,
        *[3] * 4,
        4,
        5,
    ]


def test_a_token_may_be_a_character_and_less_than_another():
    def decode(token_ids: Sequence[int]) -> str:
        return b"".join([b"ab", b" \xf0\x9f", b"\x98\x80"][of] for of in token_ids).decode(
            errors="replace"
        )

    found = [count_characters(np.arange(num, dtype=np.uint16), decode) for num in range(4)]

    assert found == [0, 2, 3, 4]


def test_many_signs_for_no_character_are_characters():
    assert count("\ufffd" * 4, 12) == 4
