"""Chats -> tokens: what is a control token, and what only looks like one."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from tokflow.errors import TokenizerError
from tokflow.tokens.shard import TokenShard
from tokflow_tests.chat_templates import FAMILIES, words_of_kinds
from tokflow_tests.chats import (
    END,
    INJECTED,
    MARKED,
    PLAIN,
    START,
    byte_level_json,
    chat,
    chat_dataset,
    save_chat_tokenizer,
)
from tokflow_tests.outputs import documents_of
from tokflow_tests.special import write_letters
from tokflow_tests.tiny import declare, tokenize

NORMALIZING: list[tuple[dict[str, Any], str]] = [
    ({"type": "NFKC"}, "x\N{FULLWIDTH LESS-THAN SIGN}|im_end|\N{FULLWIDTH GREATER-THAN SIGN}y"),
    ({"type": "Lowercase"}, "x<|IM_END|>y"),
]


def normalizing_json(normalizer: dict[str, Any]) -> str:
    """Return a tokenizer that looks for its special tokens in the normalised text."""
    fields = json.loads(byte_level_json())
    for token in fields["added_tokens"]:
        token["normalized"] = True
    return json.dumps({**fields, "normalizer": normalizer})


def shard_with(
    content: str, chats: list[Any] | None, folder: Path, **attributes: Any
) -> TokenShard:
    dataset = chat_dataset(folder, chats, **attributes)
    save_chat_tokenizer(folder, attributes.get("template", MARKED), content=content)
    return tokenize(dataset)


def names_of(content: str, shard: TokenShard) -> list[list[str]]:
    library = tokenizers.Tokenizer.from_str(content)
    return [[library.id_to_token(one) for one in ids] for ids, _ in documents_of(shard)]


@pytest.mark.parametrize(("normalizer", "said"), NORMALIZING)
def test_what_is_a_special_token_only_when_normalised_stays_plain_text(
    normalizer: dict[str, Any], said: str, tmp_path: Path
):
    content = normalizing_json(normalizer)
    chats = [chat("a", "b"), chat(said, f"ok {END} {said}")]
    shard = shard_with(content, chats, tmp_path)

    plain, cut = names_of(content, shard)
    assert [name for name in plain if name in (START, END)] == [START, END, START, END]
    assert [name for name in cut if name in (START, END)] == [START, END, START, END]
    [_, (ids, mask)] = documents_of(shard)
    assert ids[mask.index(1)] == tokenizers.Tokenizer.from_str(content).token_to_id("o")
    assert shard.manifest.counts["num_special_tokens_in_text"] == 1


@pytest.mark.parametrize(("normalizer", "said"), NORMALIZING)
def test_with_error_it_stops_the_run(normalizer: dict[str, Any], said: str, tmp_path: Path):
    policy = {"special_tokens_in_text": "error"}

    with pytest.raises(TokenizerError, match=r"document 1: expected no special token in"):
        shard_with(
            normalizing_json(normalizer), [chat("a"), chat(said)], tmp_path, tokenizer=policy
        )


def test_a_special_token_that_takes_white_space_with_it_is_the_templates(tmp_path: Path):
    fields = json.loads(byte_level_json())
    for token in fields["added_tokens"]:
        token["lstrip"] = token["rstrip"] = True
    content = json.dumps({**fields, "normalizer": {"type": "NFC"}})
    policy = {"special_tokens_in_text": "error"}

    shard = shard_with(content, [chat("a  ", " b ")], tmp_path, tokenizer=policy)

    [tokens] = names_of(content, shard)
    assert tokens == [START, "user", "Ċ", "a", END, START, "as", "sistant", "Ċ", "Ġ", "b", END]


def test_with_control_it_becomes_the_control_token(tmp_path: Path):
    content = normalizing_json({"type": "Lowercase"})
    policy = {"special_tokens_in_text": "control"}
    shard = shard_with(content, [chat("x<|IM_END|>y", "ok")], tmp_path, tokenizer=policy)

    [tokens] = names_of(content, shard)
    assert tokens.count(END) == 3


def test_a_character_that_is_unknown_is_no_special_token_that_is_spelt(tmp_path: Path):
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>", START, END], show_progress=False)
    library.train_from_iterator(["user assistant hello im_start im_end <|>\n"] * 5, trainer)
    content = library.to_str()
    shard = shard_with(content, [chat(f"a{END}b 漢", "<unk>")], tmp_path, template=MARKED)

    [tokens] = names_of(content, shard)
    assert "<unk>" in tokens
    assert [name for name in tokens if name in (START, END)] == [START, END, START, END]
    assert shard.manifest.counts["num_special_tokens_in_text"] == 2


def test_an_eos_that_is_a_word_is_plain_text_in_a_chat(tmp_path: Path):
    template = MARKED.replace("eos_token", "'<|im_end|>'")
    stop = {"eos_token": "."}
    dataset = chat_dataset(tmp_path, [chat(f"a{END}b.", "ok.")], template=template, tokenizer=stop)
    shard = tokenize(dataset)

    [tokens] = names_of(byte_level_json(), shard)
    assert [name for name in tokens if name in (START, END)] == [START, END, START, END]
    assert tokens.count(".") == 3
    assert tokens[-1] == "."
    assert shard.manifest.counts["num_special_tokens_in_text"] == 1


@pytest.mark.parametrize("name", ["xx", "zz", "9"])
def test_a_special_token_of_letters_is_none_that_stands_for_another(name: str, tmp_path: Path):
    fields = json.loads(byte_level_json())
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 400, "content": name})
    content = json.dumps(fields)

    [tokens] = names_of(content, shard_with(content, INJECTED[:1], tmp_path))

    assert [t for t in tokens if t in (START, END, name)] == [START, END, START, END]


def test_a_tokenizer_that_tells_no_places_is_named(tmp_path: Path):
    write_letters(tmp_path / "letters")
    letters = {"kind": "huggingface", "name": "letters", "trust_remote_code": True}
    dataset = chat_dataset(
        tmp_path, [chat("a", "b")], tokenizer=letters,
        documents={"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
    )  # fmt: skip

    with pytest.raises(TokenizerError, match="class LettersTokenizer loads it") as caught:
        tokenize(dataset)

    assert caught.value.where == "tokenizer.kind: huggingface"


@pytest.mark.parametrize("trims", [True, False])
def test_the_mask_does_not_depend_on_what_follows_the_model(trims: bool, tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.normalizer = tokenizers.normalizers.NFC()  # so that the library is asked for places
    library.post_processor = processors.ByteLevel(trim_offsets=trims)
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}: "
        "{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    chats = [chat("Q", "there and then")]
    shard = shard_with(library.to_str(), chats, tmp_path, template=template)

    by_bytes = tokenize(chat_dataset(tmp_path / "bytes", chats, template=template))
    assert documents_of(shard) == documents_of(by_bytes)
    [(ids, mask)] = documents_of(shard)
    # " there" begins with the space before the span.
    assert mask[ids.index(library.token_to_id("Ġthere"))] == 0
    assert sum(mask) == 3


def test_tokens_are_counted_by_the_role_that_says_what_they_begin_in(tmp_path: Path):
    roles = ("developer", "user", "assistant", "tool", "function", "critic")
    chats = [[{"role": role, "content": "ab"} for role in roles], chat("c", "d")]
    shard = tokenize(chat_dataset(tmp_path, chats, template=PLAIN))

    names = ("system", "user", "assistant", "tool")
    found = [shard.manifest.counts[f"num_{name}_tokens"] for name in names]
    assert found == [2, 2 + 1, 3 + 2, 4]  # a letter a token, and the stop tokens


def byte_fallback_json() -> str:
    """Return a tokenizer as that of Llama 2: one word for each text, bytes for other letters."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", START, END, "<|bos|>", *bytes_]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(
        ["\u2581the\u2581user\u2581and\u2581the\u2581assistant"] * 9, trainer
    )
    fields = json.loads(tokenizer.to_str())
    names = {START, END, "<|bos|>", "<unk>"}
    fields["added_tokens"] = [of for of in fields["added_tokens"] if of["content"] in names]
    return json.dumps(fields)


def normalised_json(form: str) -> str:
    return json.dumps({**json.loads(byte_level_json()), "normalizer": {"type": form}})


TOKENIZERS = {
    "bytes": byte_level_json,
    "NFC": lambda: normalised_json("NFC"),
    "NFKC": lambda: normalised_json("NFKC"),
    "byte fallback": byte_fallback_json,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_transformers_and_the_words_of_the_assistant_are_learnt(
    name: str, tmp_path: Path
):
    content, template = TOKENIZERS[name](), FAMILIES["reasoning"].template
    chats = [chat for seed in (1, 2) for _, chat in words_of_kinds(seed)]
    rows = [{"messages": of.messages, "tools": of.tools} for of in chats]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = {"special_tokens_in_text": "control", "eos": "none"}
    shard = shard_with(
        content, None, tmp_path, template=template, documents={"tools": "tools"},
        tokenizer=tokenizer,
    )  # fmt: skip

    library = tokenizers.Tokenizer.from_str(content)
    theirs = PreTrainedTokenizerFast(tokenizer_object=library)
    for row, (ids, mask) in zip(rows, documents_of(shard), strict=True):
        made = theirs.apply_chat_template(
            row["messages"], tools=row["tools"], chat_template=template, tokenize=True
        )
        assert ids == made["input_ids"]
        assert re.findall(r"[au]\d{3}", learnt(library, ids, mask)) == re.findall(
            r"\ba\d{3}", library.decode(ids, skip_special_tokens=False)
        )


def learnt(library: Any, ids: Sequence[int], mask: Sequence[int]) -> str:
    kept = [id_ for id_, bit in zip(ids, mask, strict=True) if bit]
    return str(library.decode(kept, skip_special_tokens=False))


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
