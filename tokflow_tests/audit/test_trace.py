import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.trace import TokenOrigin, sequence_range, trace_tokens
from tokflow.errors import ConfigError, MissingOutputError
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import read_manifest
from tokflow_tests.chats import byte_level_json
from tokflow_tests.cli.commands import run
from tokflow_tests.exports.exporting import export_as
from tokflow_tests.tiny import TEXTS, declare_small, write_raw

STORE = Path("store/small")
CUT = {
    "boundary": "character",
    "parts": {"train": {"characters": 15}, "validation": {"start": 17}},
}

BOS = {"kind": "bytes", "bos": "first", "eos": "none"}
TRAINED = {"kind": "trained", "vocab_size": 262}
WHOLE: dict[str, Any] = {"parts": {"train": {}}}


@pytest.fixture
def exports(built_small: Path) -> Path:
    return built_small / STORE / "exports"


def traced(path: Path, part: str, *, start: int = 0, stop: int = 10**6) -> list[TokenOrigin]:
    return trace_tokens(path, part=part, start=start, stop=stop)


def raw_text(origin: TokenOrigin) -> str:
    text = TEXTS[origin.raw_file][origin.row]
    return text[origin.char_start : origin.char_stop]


@pytest.mark.parametrize(
    ("name", "tokenizer", "split"),
    [
        ("bin", TRAINED, CUT),
        ("parquet", BOS, WHOLE),
    ],
)
def test_a_token_leads_to_its_characters(
    name: str, tokenizer: dict[str, Any], split: dict[str, Any], tmp_path: Path
):
    build_dataset(declare_small(tmp_path, tokenizer=tokenizer, split=split))
    path = tmp_path / STORE / "exports" / name
    counts = read_manifest(path / "latest").counts

    for part in read_manifest(path / "latest").details["parts"]:
        runs = traced(path, part)
        assert sum(origin.num_tokens for origin in runs) == counts[f"{part}.num_tokens"]
        tokens = [
            origin
            for run in runs
            for position in range(run.position, run.position + run.num_tokens, 3)
            for origin in traced(path, part, start=position, stop=position + 1)
        ]
        assert [origin.text for origin in runs + tokens] == [raw_text(o) for o in runs + tokens]


def test_a_piece_of_a_character_leads_to_all_of_it(exports: Path):
    path = exports / "bin"
    euro = len("one.two and a half.drei ")

    origins = [traced(path, "train", start=at, stop=at + 1)[0] for at in range(euro, euro + 4)]

    assert [origin.text for origin in origins] == ["€", "€", "€", ""]
    assert [origin.added for origin in origins] == [(), (), (), ("EOS",)]
    assert [(origin.char_start, origin.char_stop) for origin in origins] == [
        (5, 6),
        (5, 6),
        (5, 6),
        (6, 6),
    ]
    assert origins[0] == TokenOrigin(
        position=euro,
        num_tokens=1,
        raw_file="a.jsonl",
        row=2,
        token_in_text=5,
        char_start=5,
        char_stop=6,
        token_ids=(0xE2,),
        text="€",
    )


def test_a_sequence_leads_to_each_of_its_documents(exports: Path):
    path = exports / "parquet"
    start, stop = sequence_range(path, "train", 0)

    origins = traced(path, "train", start=start, stop=stop)

    assert [(o.raw_file, o.row, o.text) for o in origins] == [
        ("a.jsonl", 0, "one"),
        ("a.jsonl", 1, "two "),
    ]


def test_a_piece_of_a_replacement_character_leads_to_that_character(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["a\ufffd\ufffdé"]})
    build_dataset(declare_small(tmp_path, split=WHOLE))

    path = tmp_path / STORE / "exports/bin"
    spans = [
        (origin.char_start, origin.char_stop)
        for position in range(9)
        for origin in traced(path, "train", start=position, stop=position + 1)
    ]

    assert spans == [(0, 1), *[(1, 2)] * 3, *[(2, 3)] * 3, *[(3, 4)] * 2]


def test_a_bos_in_a_text_stands_for_its_characters_also_where_the_text_is_cut(tmp_path: Path):
    bos = "<|bos|>"
    write_raw(tmp_path, {"a.jsonl": [f"ab{bos}", f"{bos}ab"]})
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    tokenizer = {"kind": "file", "name": "tokenizer.json", "eos": "none", "bos": "first"}
    tokenizer |= {"bos_token": bos, "special_tokens_in_text": "control"}
    split = {"boundary": "character", "parts": {"train": {"characters": 2 * len(bos) + 3}}}
    build_dataset(declare_small(tmp_path, tokenizer=tokenizer, split=split))

    path = tmp_path / STORE / "exports/bin"
    [whole, *_] = traced(path, "train")
    cut = [traced(path, "train", start=at, stop=at + 1)[0] for at in (4, 5)]

    assert (whole.text, whole.added) == (f"ab{bos}", ("BOS",))
    assert [of.text for of in cut] == [bos, "a"]


@pytest.mark.parametrize(
    ("padding", "side", "first", "absent"),
    [("none", "left", 7, 5), ("longest", "right", 5, 8), ("max", "right", 5, 8)],
)
def test_positions_count_rows_as_filled_whatever_padding_writes(
    padding: str, side: str, first: int, absent: int, tmp_path: Path
):
    packing = {"strategy": "one_document", "sequence_length": 5, "padding_side": side}
    texts, attributes = ["abc", "de"], {"packing": packing}
    path, _ = export_as("jsonl", tmp_path, texts, attributes=attributes, padding=padding)

    [origin] = traced(path, "train", start=first, stop=first + 2)
    with pytest.raises(ConfigError, match=r"found padding: column . of sequence ."):
        traced(path, "train", start=absent, stop=absent + 1)

    assert (origin.row, origin.text, origin.position) == (1, "de", first)


def test_a_position_past_the_end_a_row_of_a_stream_and_other_outputs_are_errors(exports: Path):
    with pytest.raises(ConfigError, match="found a part of 72 positions"):
        traced(exports / "bin", "train", start=72, stop=73)
    with pytest.raises(ConfigError, match="found export bin, a stream of tokens"):
        sequence_range(exports / "bin", "train", 0)
    with pytest.raises(MissingOutputError) as error:
        traced(exports.parent / "tokens/a.jsonl", "train")
    assert error.value.found == "tokens of a.jsonl"


def test_an_export_that_was_copied_out_still_leads_to_its_documents(exports: Path, tmp_path: Path):
    shutil.copytree((exports / "parquet/latest").resolve(), tmp_path / "copy")

    there = traced(exports / "parquet", "train")
    here = traced(tmp_path / "copy", "train")

    known = ("position", "num_tokens", "raw_file", "row", "token_in_text")
    assert [[getattr(o, n) for n in known] for o in here] == [
        [getattr(o, n) for n in known] for o in there
    ]
    assert {(o.char_start, o.text) for o in here} == {(None, None)}
    printed = run("trace", tmp_path / "copy", "--token", "3")
    assert printed.stdout.startswith("a.jsonl:0  tokens 3 to 4 of its text  (1 token at 3)\n")
    assert "no characters are shown" in printed.stdout
