import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.errors import TokenizerError
from tokflow.pipeline.mixture import graph_of
from tokflow.tokenizers.engines import Encoded
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig, resolve_encoding
from tokflow.tokens.loss_mask import ChatMarks, TokenBatch, add_bos_eos
from tokflow_tests.outputs import token_lists
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize
from tokflow_tests.tokenizers.engines.test_engines import byte_level_bpe
from tokflow_tests.tokenizers.test_stage import save_json
from tokflow_tests.tokenizers.test_tokenizer import make_bytes_tokenizer

EOS, BOS = 256, 257
BOTH = TokenizerConfig(kind="bytes", bos="first")
BOTH_CONTROL = TokenizerConfig(kind="bytes", bos="first", special_tokens_in_text="control")


def make_encoded(*documents: list[int]) -> Encoded:
    offsets = np.cumsum([0, *map(len, documents)])
    token_ids = [token_id for ids in documents for token_id in ids]
    return Encoded(token_ids=np.array(token_ids, np.uint32), offsets=offsets.astype(np.int64))


def finish(
    encoded: Encoded, config: TokenizerConfig, tokenizer: Tokenizer, **how: Any
) -> TokenBatch:
    return add_bos_eos(encoded, resolve_encoding(config, tokenizer), **{"chat": None, **how})


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_the_largest_id_is_written_as_it_is(vocab_size: int):
    tokenizer = make_bytes_tokenizer(vocab_size=vocab_size)
    encoded = make_encoded([1, vocab_size - 1], [])

    made = finish(encoded, TokenizerConfig(kind="bytes"), tokenizer)

    assert made.token_ids.tolist() == [1, vocab_size - 1, EOS, EOS]
    assert made.token_ids.dtype == tokenizer.dtype
    assert made.num_tokens.tolist() == [3, 1]


def test_a_document_of_no_tokens_stays_so_where_empty_ones_are_not_ended():
    config = TokenizerConfig(kind="bytes", bos="first", eos_of_empty=False)

    made = finish(make_encoded([], [1], []), config, make_bytes_tokenizer())

    assert made.token_ids.tolist() == [BOS, 1, EOS]
    assert made.num_tokens.tolist() == [0, 3, 0]


@pytest.mark.parametrize("eos", ["last", "none"])
def test_an_id_past_the_vocabulary_is_an_error_and_never_wraps(eos: str):
    tokenizer = make_bytes_tokenizer(vocab_size=65_536)
    encoded = make_encoded([1, 65_536])

    with pytest.raises(TokenizerError) as caught:
        finish(encoded, TokenizerConfig(kind="bytes", eos=eos), tokenizer)

    assert caught.value.found == "id 65,536"


def test_where_texts_may_spell_control_tokens_bos_and_eos_are_never_doubled():
    encoded = make_encoded([1, EOS], [BOS, 2], [EOS, 3, BOS], [], [EOS])

    made = finish(encoded, BOTH_CONTROL, make_bytes_tokenizer())

    found = [ids.tolist() for ids in np.split(made.token_ids, np.cumsum(made.num_tokens)[:-1])]
    both = [BOS, EOS]
    assert found == [[BOS, 1, EOS], [BOS, 2, EOS], [BOS, EOS, 3, BOS, EOS], both, both]


def test_a_token_that_is_bos_and_eos_is_only_one_of_them():
    tokenizer = dataclasses.replace(make_bytes_tokenizer(), bos_id=EOS)
    encoded = make_encoded([EOS], [EOS, 1, EOS], [])

    made = finish(encoded, BOTH_CONTROL, tokenizer)

    assert made.token_ids.tolist() == [EOS, EOS, EOS, 1, EOS, EOS, EOS]
    assert made.num_tokens.tolist() == [2, 3, 2]
    plain = BOTH_CONTROL.model_copy(update={"special_tokens_in_text": "ordinary"})
    plain_ids = finish(make_encoded([1], []), plain, tokenizer).token_ids
    assert plain_ids.tolist() == [EOS, 1, EOS, EOS, EOS]


@pytest.mark.parametrize(("role", "token_id"), [("EOS", EOS), ("BOS", BOS)])
@pytest.mark.parametrize("policy", ["ordinary", "error"])
def test_the_id_of_eos_or_bos_inside_a_text_is_an_error_that_names_the_document(
    role: str, token_id: int, policy: Any
):
    config = BOTH.model_copy(update={"special_tokens_in_text": policy})
    tokenizer = dataclasses.replace(make_bytes_tokenizer(), eos_token="<eos>", bos_token="<bos>")

    with pytest.raises(TokenizerError) as caught:
        finish(make_encoded([1, 2], [], [3, 4, token_id, 5]), config, tokenizer)

    assert caught.value.where == "document 2"
    assert f"the {role} id {token_id} ('<{role.lower()}>')" in caught.value.expected
    assert caught.value.found == "it as token 2 of the text"
    none = config.model_copy(update={role.lower(): "none"})
    assert token_id in finish(make_encoded([1, token_id]), none, tokenizer).token_ids


def test_the_eos_of_a_chat_is_supervised_if_its_text_is_to_the_end_and_bos_never():
    marks = ChatMarks(
        loss_mask=np.array([0, 1, 1, 0, 1], dtype=np.uint8),
        is_ended=np.array([False, False, True]),
        is_supervised_to_its_end=np.array([True, False, True]),
        counts=np.array([[0], [0], [1]]),
        is_rendered=True,
    )

    made = finish(make_encoded([1, 2], [3, 4], [5]), BOTH, make_bytes_tokenizer(), chat=marks)

    assert made.token_ids.tolist() == [BOS, 1, 2, EOS, BOS, 3, 4, EOS, BOS, 5]
    assert made.loss_mask is not None
    assert made.loss_mask.tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 0, 1]


def words_dataset(folder: Path, texts: list[str], **tokenizer: Any) -> Any:
    """A dataset whose EOS is a word of the vocabulary that texts may spell: `END`, not special."""
    made = byte_level_bpe()
    made.add_tokens(["END"])
    save_json(made, folder / "words")
    return declare_texts(
        folder, texts, kind="file", name="words/tokenizer.json", eos_token="END", **tokenizer
    )


def test_with_control_the_eos_of_texts_is_counted_and_not_doubled(tmp_path: Path):
    texts = ["fine", "the END of it", "over END", "END", ""]
    shard = tokenize(words_dataset(tmp_path, texts, special_tokens_in_text="control"))

    eos = shard.manifest.details["eos_id"]
    lists = token_lists(shard)
    assert [ids.count(eos) for ids in lists] == [1, 2, 1, 1, 1]
    assert all(ids[-1] == eos for ids in lists)
    assert [shard.manifest.counts[of] for of in ("num_eos", "num_eos_in_text")] == [6, 1]


def test_what_begins_and_ends_documents_decides_the_shard(tmp_path: Path):
    save_tokenizer(declare_texts(tmp_path, ["a"]))
    fields = ({}, {"bos": "first"}, {"eos": "none"}, {"eos_of_empty": False})
    graphs = [graph_of(declare_texts(tmp_path, None, **of)) for of in fields]

    assert len({graph.tokens("texts.jsonl").fingerprint for graph in graphs}) == len(fields)
