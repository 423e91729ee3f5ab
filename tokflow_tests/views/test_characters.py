from pathlib import Path

from tokflow.pipeline.run import build_dataset
from tokflow.views.viewer_content import NO_EOS, NO_SPACE, NORMALISED
from tokflow.views.viewer_page import make_viewer
from tokflow_tests import special
from tokflow_tests.tiny import declare
from tokflow_tests.views.pages import data_of

EXPORT = Path("store/tiny/exports/parquet")


def flags_of(page: bytes) -> list[list[int]]:
    """Return [row, token in its text, characters before it, flags] of each segment."""
    windows = data_of(page)["parts"][0]["windows"]
    return [segment[2:] for window in windows for segment in window[2] if segment[1] >= 0]


def test_a_space_that_is_put_before_a_text_stands_for_no_character(tmp_path: Path):
    tokenizer = special.of_sentencepiece_without_words(tmp_path)
    packing = {"sequence_length": 3}
    raw = {"a.jsonl": ["zé z"]}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    flags = flags_of(make_viewer(tmp_path / EXPORT))

    # Its tokens: the space, z, c3 | a9, a space, z | EOS, of which the last row is a tail.
    assert flags[:2] == [[0, 0, 0, NO_SPACE], [0, 3, 2, 0]]


def test_a_special_token_that_a_text_spells_stands_for_its_characters(tmp_path: Path):
    tokenizer = {**special.of_tiktoken(tmp_path), "special_tokens_in_text": "control"}
    packing = {"sequence_length": 2}
    raw = {"a.jsonl": ["a</s>", "</s>b"]}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    flags = flags_of(make_viewer(tmp_path / EXPORT))

    # The first text ends with the token itself, the second with one that was put there.
    assert flags == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 5, NO_EOS]]


def test_characters_of_a_text_that_was_normalised_are_found_in_the_raw_file(tmp_path: Path):
    model = special.train_model(normalization_rule_name="nfkc", add_dummy_prefix=False)
    (tmp_path / "own.model").write_bytes(model)
    tokenizer = {"kind": "sentencepiece", "name": str(tmp_path / "own.model")}
    raw = {"a.jsonl": ["ﬁt"]}  # a ligature, which NFKC makes two letters
    packing = {"sequence_length": 4}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    here = flags_of(make_viewer(tmp_path / EXPORT))[0]
    (tmp_path / "raw/a.jsonl").unlink()
    away = flags_of(make_viewer(tmp_path / EXPORT))[0]

    assert here == [0, 0, 0, NO_EOS, [0, 1, 0, 1, 1, 2]]
    assert away == [0, 0, 0, NO_EOS | NORMALISED]
