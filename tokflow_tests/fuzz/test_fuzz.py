"""The net itself: some of its cases, and that a fault which is put in is found."""

from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tokflow.exports import FORMATS, part
from tokflow.split import permutation
from tokflow.tokenizers import chat
from tokflow_tests.fuzz import exports
from tokflow_tests.fuzz.cases import Case, make_case, tokenizer_of
from tokflow_tests.fuzz.chats import is_chat
from tokflow_tests.fuzz.check import DifferenceError, Tally, check_case
from tokflow_tests.fuzz.packing import Run, pack
from tokflow_tests.fuzz.readers import READERS


def cases(folder: Path, number: int, *, are_chats: bool = False) -> list[Case]:
    """Return some cases of the tokenizer that is there at once, or those whose documents are
    chats."""
    made = (make_case(seed, folder) for seed in count() if tokenizer_of(seed) == "bytes")
    some = (of for of in made if is_chat(of.attributes["documents"]) or not are_chats)
    return list(islice(some, number))


def run(some: list[Case], folder: Path) -> Tally:
    """Build and compare cases; return what was looked at."""
    return sum((check_case(case, folder) for case in some), Tally())


def test_cases_are_as_the_model_has_them(tmp_path: Path):
    tally = run(cases(tmp_path, 4), tmp_path)

    assert tally["tokens"] > 1_000
    assert tally["traces"] > 10


def test_cases_of_chats_are_as_the_model_has_them(tmp_path: Path):
    tally = run(cases(tmp_path, 3, are_chats=True), tmp_path)

    assert tally["tokens"] > 1_000


def test_a_wrong_mask_of_chats_is_found(monkeypatch: Any, tmp_path: Path):
    monkeypatch.setitem(chat.SHAREGPT_ROLES, "gpt", "user")
    of_sharegpt = [
        case
        for case in cases(tmp_path, 12, are_chats=True)
        if case.attributes["documents"].get("chat_format") == "sharegpt"
    ]

    with pytest.raises(DifferenceError):
        run(of_sharegpt, tmp_path)


def test_a_seed_is_always_the_same_case(tmp_path: Path):
    assert cases(tmp_path, 3) == cases(tmp_path, 3)


def test_every_format_is_drawn_and_read():
    assert {*exports.FORMATS} == {*FORMATS} == {*READERS}


def test_the_model_packs_the_tails_of_all_files_behind_their_rows():
    packed = pack([[3, 2], [1, 4]], {"sequence_length": 4})

    assert packed.rows == [
        [Run(0, 0, 3), Run(1, 0, 1)],
        [Run(2, 0, 1), Run(3, 0, 3)],
        [Run(1, 1, 1), Run(3, 3, 1)],
    ]


def _a_token_late(name: str, of_file: Any, **columns: Any) -> Any:
    return _index_tables(name, of_file, **{**columns, "position": columns["position"] + 1})


def _another_hash(values: Any, key: Any) -> Any:
    return _hashes(values, key) + values.dtype.type(1)


_hashes = permutation.hashes
_index_tables = part.index_tables


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [(part, "index_tables", _a_token_late), (permutation, "hashes", _another_hash)],
    ids=["index", "order"],
)
def test_a_fault_is_found(
    module: Any, name: str, fault: Callable[..., Any], monkeypatch: Any, tmp_path: Path
):
    monkeypatch.setattr(module, name, fault)

    with pytest.raises(DifferenceError):
        run(cases(tmp_path, 20), tmp_path)
