from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.split.mixed_split import count_characters
from tokflow.split.mixture import MixtureConfig, PartSize, plan_partitions, plan_sources, shares

AVAILABLE = {"code": 1_000, "prose": 300}


def mixture(code: dict[str, Any], prose: dict[str, Any], **more: Any) -> MixtureConfig:
    return MixtureConfig.read({"sources": {"code": code, "prose": prose}, **more}, where="test")


def sizes(**files: tuple[int, int]) -> dict[str, PartSize]:
    return {key: PartSize(num_tokens=num, num_documents=of) for key, (num, of) in files.items()}


def test_shares_add_up_and_the_largest_remainders_are_rounded_up():
    thirds = dict.fromkeys("abc", Fraction(1))

    assert shares(10, thirds) == {"a": 4, "b": 3, "c": 3}
    assert shares(7, {"a": Fraction(1, 2), "b": Fraction(3, 10), "c": Fraction(1, 5)}) == {
        "a": 4,  # 3.5, 2.1 and 1.4
        "b": 2,
        "c": 1,
    }


def test_weights_share_out_the_tokens_and_need_not_add_up_to_one():
    config = mixture({"weight": 7, "max_epochs": 4}, {"weight": 3}, tokens=1_000)

    assert plan_sources(config, AVAILABLE) == {"code": 700, "prose": 300}


def test_without_a_total_weights_take_all_that_no_source_need_repeat():
    once = mixture({"weight": 0.7}, {"weight": 0.3})
    often = mixture({"weight": 0.7, "max_epochs": 4}, {"weight": 0.3, "max_epochs": 2})

    assert plan_sources(once, AVAILABLE) == {"code": 700, "prose": 300}
    assert plan_sources(often, AVAILABLE) == {"code": 1_400, "prose": 600}


def test_tokens_and_epochs_say_of_each_source_what_is_taken():
    by_tokens = mixture({"tokens": 5}, {"tokens": 600, "max_epochs": 2})
    by_epochs = mixture({"epochs": 0.1}, {"epochs": 2.5})

    assert plan_sources(by_tokens, AVAILABLE) == {"code": 5, "prose": 600}
    assert plan_sources(by_epochs, AVAILABLE) == {"code": 100, "prose": 750}


def test_more_than_max_epochs_and_a_source_without_tokens_are_refused_by_name():
    config = mixture({"weight": 0.5}, {"weight": 0.5}, tokens=1_000)

    with pytest.raises(ConfigError) as caught:
        plan_sources(config, AVAILABLE)
    with pytest.raises(ConfigError) as of_nothing:
        plan_sources(config, {"code": 5, "prose": 0})

    assert caught.value.where == of_nothing.value.where == "mixture.sources.prose"
    assert caught.value.found == "500, which are 1.67 epochs of the 300 that it has"
    assert "set its max_epochs to 2, or lower mixture.tokens to 600" in caught.value.remedy
    assert of_nothing.value.found == "none"


@pytest.mark.parametrize(
    ("code", "prose", "more", "where"),
    [
        ({"weight": 1}, {"tokens": 5}, {}, "mixture.sources"),
        ({"weight": 0}, {"weight": 1}, {}, "mixture.sources.code.weight"),
        ({"weight": 1, "epochs": 1}, {"weight": 1}, {}, "mixture.sources.code"),
        ({}, {"weight": 1}, {}, "mixture.sources.code"),
        ({"epochs": 1}, {"epochs": 1}, {"tokens": 5}, "mixture.tokens"),
        ({"epochs": 3, "max_epochs": 2}, {"epochs": 1}, {}, "mixture.sources.code.epochs"),
    ],
)
def test_amounts_that_do_not_go_together_are_refused(
    code: dict[str, Any], prose: dict[str, Any], more: dict[str, Any], where: str
):
    sources = {"sources": {"code": code, "prose": prose}}
    with pytest.raises(ConfigError) as caught:
        MixtureConfig.read({**sources, **more}, where="mixture")

    assert caught.value.where.replace(": ", ".") == where


def test_a_pass_takes_every_file_whole_and_the_rest_is_taken_in_proportion():
    files = sizes(a=(600, 200), b=(300, 100), c=(100, 40))

    taken = plan_partitions(2_500, files, seed=0, name="code")

    assert taken == {"a": 1_500, "b": 750, "c": 250}


def test_files_of_few_documents_are_taken_whole_or_not_at_all_but_for_the_last():
    files = sizes(**{f"f{n:02d}": (10, 1) for n in range(100)}, large=(1_000, 500))

    taken = plan_partitions(615, files, seed=0, name="code")
    others = plan_partitions(615, files, seed=1, name="code")

    assert sum(taken.values()) == 615
    assert taken["large"] in (307, 308)
    small = sorted(num for key, num in taken.items() if key != "large" and num)
    assert small[1:] == [10] * 30
    assert taken != others


TEXT = "aé漢😀b"
"""1, 2, 3, 4 and 1 bytes."""


def of_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def count(text: str, num_tokens: int) -> int:
    token_ids = np.frombuffer(text.encode()[:num_tokens], dtype=np.uint8)
    return count_characters(token_ids, of_bytes)


def test_a_character_counts_where_its_last_token_is():
    found = [count(TEXT, num_tokens) for num_tokens in range(12)]

    assert found == [0, 1, 1, 2, 2, 2, *[3] * 4, 4, 5]
    assert count("\ufffd" * 4, 12) == 4  # signs for no character


def test_a_token_may_be_a_character_and_less_than_another():
    def decode(token_ids: Sequence[int]) -> str:
        return b"".join([b"ab", b" \xf0\x9f", b"\x98\x80"][of] for of in token_ids).decode(
            errors="replace"
        )

    found = [count_characters(np.arange(num, dtype=np.uint16), decode) for num in range(4)]

    assert found == [0, 2, 3, 4]
