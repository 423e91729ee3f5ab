import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokflow.tokens.shard import TokenShard
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import declare, tokenize

NAMES = ("num_documents", "num_documents_without_loss", "num_boundary_tokens")


def byte_level() -> Tokenizer:
    """Return a byte-level BPE with the tokens ` f` and `:` with a line end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "f"), (":", "Ċ")]
    names = [*letters, *map("".join, merges), "</s>"]
    made = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def word_piece() -> Tokenizer:
    """Return a WordPiece of words, of which no token has white space."""
    vocab = {name: index for index, name in enumerate(["[UNK]", "a", "bc", ":", "</s>"])}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def shard_of(folder: Path, made: Tokenizer, *pairs: tuple[str, str], **more: Any) -> TokenShard:
    made.add_special_tokens(["</s>"])
    (folder / "t.json").write_text(made.to_str())
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
    (folder / "raw").mkdir()
    (folder / "raw/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = {"kind": "file", "name": "t.json", "eos_token": "</s>"}
    documents = {"prompt": "prompt", "completion": "completion", **more}
    return tokenize(declare(folder, tokenizer=tokenizer, documents=documents))


@pytest.mark.parametrize(
    ("prompt", "completion", "has_one"),
    [
        ("is ", "forty", True),  # in the token " f"
        ("is", " forty", False),
        ("is:", "\nf", True),  # white space that is in a token counts
        ("is ", "", False),
        ("", "forty", False),
    ],
)
def test_a_token_that_begins_in_the_prompt_and_ends_in_the_completion_is_counted(
    prompt: str, completion: str, has_one: bool, tmp_path: Path
):
    shard = shard_of(tmp_path, byte_level(), (prompt, completion), ("a", "b"))

    assert [shard.manifest.counts[name] for name in NAMES] == [2, 0, int(has_one)]


def test_white_space_that_is_in_no_token_is_no_boundary_token(tmp_path: Path):
    shard = shard_of(tmp_path, word_piece(), ("a ", "bc"), ("a:", " bc"), ("b", "c"))

    assert [shard.manifest.counts[name] for name in NAMES] == [3, 0, 1]


def test_documents_that_a_limit_of_tokens_leaves_are_not_counted(tmp_path: Path):
    pairs = [("is ", "forty")] * 4
    shard = shard_of(tmp_path, byte_level(), *pairs, limit={"tokens": 9})

    assert [shard.manifest.counts[name] for name in NAMES] == [2, 0, 2]


def test_where_a_normalizer_gives_as_many_other_bytes_the_library_tells_the_characters(
    tmp_path: Path,
):
    made = byte_level()
    made.normalizer = normalizers.NFC()  # puts the dot before the accent: as many bytes
    shard = shard_of(tmp_path, made, ("a\u0301\u0323", " f"), ("a", " f"))

    [(ids, mask), (_, alike)] = documents_of(shard)
    assert [made.id_to_token(id_) for id_ in ids[:5]] == ["á", "º", "¡", "Ì", "ģ"]
    assert mask == [0, 0, 0, 0, 0, 1, 1]
    assert alike == [0, 1, 1]
