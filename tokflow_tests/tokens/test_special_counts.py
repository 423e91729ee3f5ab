import numpy as np
import pytest

from tokflow.documents import Batch
from tokflow.store.tables import to_texts
from tokflow.tokens.encoder import LOOKED_AT_BYTES, SpecialTokenCounter

EOT = "<|endoftext|>"


def counted(texts: list[str], *names: str) -> dict[tuple[int, str], int]:
    lengths = np.array([len(text) for text in texts])
    batch = Batch(np.arange(len(texts)), to_texts(texts), lengths)
    return SpecialTokenCounter(dict.fromkeys(names, 0)).in_batch(batch)


@pytest.mark.parametrize("first", range(LOOKED_AT_BYTES - len(EOT) - 2, LOOKED_AT_BYTES + 2))
def test_a_spelling_is_found_wherever_the_bytes_are_cut(first: int):
    text = "x" * first + EOT

    assert counted(["a", text, "b", text], EOT) == {(1, EOT): 1, (3, EOT): 1}
    assert counted(["a", text[:-1], "|>" + text[first + 1 :]], EOT) == {}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["<"], {(0, "<"): 2, (1, "<"): 1}),
        (["<a", "|b"], {(1, "<a"): 1, (2, "|b"): 1}),
        (["<|b", "<|c"], {(0, "<|c"): 1}),
        (["<|d"], {}),
        ([], {}),
    ],
)
def test_names_may_share_any_number_of_letters(names: list[str], expected: object):
    assert counted(["<|<|c", "<a", "|b"], *names) == expected
