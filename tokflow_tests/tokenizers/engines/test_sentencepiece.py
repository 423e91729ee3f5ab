from pathlib import Path

import pytest
import sentencepiece

from tokflow.errors import TokenizerError
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import SentencePieceEngine, open_reference
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import train_model
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize


def save_model(folder: Path, **options: object) -> sentencepiece.SentencePieceProcessor:
    model = train_model(**options)
    (folder / "own.model").write_bytes(model)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def test_a_model_says_which_symbols_are_special_and_which_end_and_begin(tmp_path: Path):
    processor = save_model(tmp_path, control_symbols=["<c>"], user_defined_symbols=["<u>"])

    saved = save_tokenizer(declare_texts(tmp_path, kind="sentencepiece", name="own.model"))

    assert saved.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2, "<c>": 3}
    assert (saved.eos_token, saved.eos_id) == ("</s>", 2)
    assert (saved.bos_token, saved.bos_id) == ("<s>", 1)
    assert saved.vocab_size == processor.get_piece_size()
    names = {path.name for path in saved.folder.iterdir()}
    assert names == {"tokenizer.model", "_tokflow"}
    model = (tmp_path / "own.model").read_bytes()
    assert (saved.folder / "tokenizer.model").read_bytes() == model

    save_model(tmp_path, bos_id=-1, eos_id=1)
    without = save_tokenizer(declare_texts(tmp_path, kind="sentencepiece", name="own.model"))
    assert (without.bos_token, without.eos_token, without.eos_id) == (None, "</s>", 1)


def test_control_symbols_cut_the_text_and_each_stretch_is_encoded_on_its_own(tmp_path: Path):
    processor = save_model(tmp_path, control_symbols=["<c>", "<c>c"])
    long, short = processor.piece_to_id("<c>c"), processor.piece_to_id("<c>")
    config = {"kind": "sentencepiece", "name": "own.model", "engine": "reference"}
    texts = ["a<c>b", "<c>ca", "<c>", "", "text"]

    shard = tokenize(declare_texts(tmp_path, texts, **config, special_tokens_in_text="control"))

    a, b, text = (processor.encode(text) for text in ("a", "b", "text"))
    expected = [[*a, short, *b], [long, *a], [short], [], text]
    assert token_lists(shard) == [[*ids, 2] for ids in expected]


def test_tokens_know_the_characters_they_stand_for(tmp_path: Path):
    save_model(tmp_path, control_symbols=["<c>"])
    engine = SentencePieceEngine(tmp_path / "own.model", in_text="control")
    texts = to_texts(["é<c>a", "", "a a"])

    spans = engine.char_spans(texts)

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    tokens = [pieces.id_to_piece(int(token)) for token in engine.encode(texts).token_ids]
    assert tokens == ["▁", "<0xC3>", "<0xA9>", "<c>", "▁a", "▁a", "▁a"]
    assert spans == [(0, 0), (0, 1), (0, 1), (1, 4), (4, 5), (0, 1), (1, 3)]


def test_tokens_decode_to_text_with_symbols_by_name(tmp_path: Path):
    processor = save_model(tmp_path)
    dataset = declare_texts(tmp_path, kind="sentencepiece", name="own.model")
    engine = open_reference(save_tokenizer(dataset))

    decoded = engine.decode([1, *processor.encode("a größe"), 2, *processor.encode("b"), 0])

    assert decoded == "<s>a größe</s>b ⁇ "


@pytest.mark.parametrize("cut", [0, 1, 40, -1, None])
def test_a_model_that_was_cut_short_or_a_folder_is_an_error(cut: int | None, tmp_path: Path):
    if cut is None:
        (tmp_path / "own.model/in").mkdir(parents=True)
        (tmp_path / "own.model/own.model").touch()
    else:
        (tmp_path / "own.model").write_bytes(train_model()[:cut])

    with pytest.raises(TokenizerError) as caught:
        save_tokenizer(declare_texts(tmp_path, kind="sentencepiece", name="own.model"))

    assert caught.value.where == "tokenizer.name: own.model"
    assert (caught.value.found == "a folder") == (cut is None)
