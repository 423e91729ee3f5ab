"""Tokens and masks of rendered chats are those of transformers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tokflow.audit.verify import verify_dataset
from tokflow.errors import BadDocumentError, TokenizerError
from tokflow.pipeline.mixture import graph_of
from tokflow_tests.chats import (
    CHATS,
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
from tokflow_tests.reading import write_records
from tokflow_tests.special import train_model
from tokflow_tests.tiny import declare, save_tokenizer, tokenize


def transformers_tokenizer(folder: Path, template: str) -> Any:
    import transformers

    made = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tok/tokenizer.json"), eos_token=END
    )
    made.chat_template = template
    return made


def of_transformers(folder: Path, template: str, chats: list[Any]) -> list[tuple[list[int], Any]]:
    made = transformers_tokenizer(folder, template)
    how = {"return_dict": True, "return_assistant_tokens_mask": "generation" in template}
    encoded = [made.apply_chat_template(messages, tokenize=True, **how) for messages in chats]
    return [(list(one["input_ids"]), one.get("assistant_masks")) for one in encoded]


def test_tokens_and_masks_are_those_of_transformers(tmp_path: Path):
    shard = tokenize(chat_dataset(tmp_path))

    assert documents_of(shard) == of_transformers(tmp_path, MARKED, CHATS)
    num_loss_tokens = sum(sum(mask) for _, mask in documents_of(shard))
    assert shard.manifest.counts["num_loss_tokens"] == num_loss_tokens > 20
    assert shard.manifest.counts["num_special_tokens_in_text"] == 0
    assert shard.manifest.details["eos_token"] == END


def test_without_generation_blocks_the_model_learns_what_it_has_to_emit(tmp_path: Path):
    shard = tokenize(chat_dataset(tmp_path, template=PLAIN))
    marked = tokenize(chat_dataset(tmp_path / "marked"))

    assert [ids for ids, _ in documents_of(shard)] == [
        ids for ids, _ in of_transformers(tmp_path, PLAIN, CHATS)
    ]
    assert documents_of(shard) == documents_of(marked)
    assert shard.manifest.counts["num_turns"] == 5
    assert shard.manifest.counts["num_turns_without_stop"] == 0


@pytest.mark.parametrize("chats", [INJECTED, [*CHATS, *INJECTED, *CHATS]])
def test_special_tokens_that_users_spell_stay_plain_text(chats: list[Any], tmp_path: Path):
    shard = tokenize(chat_dataset(tmp_path, chats))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    start, end = map(library.token_to_id, (START, END))
    made = transformers_tokenizer(tmp_path, MARKED)
    expected = of_transformers(tmp_path, MARKED, chats)
    for messages, (found, mask), (control, _) in zip(
        chats, documents_of(shard), expected, strict=True
    ):
        # One of each for a message, and none that a user wrote.
        assert found.count(start) == found.count(end) == len(messages)
        # With harmless words in their place, plain text and control mode are the same.
        assert (found == control) == (not re.search(r"<\|im_(start|end)\|>", str(messages)))
        text = made.apply_chat_template(messages, tokenize=False)
        assert library.decode(found, skip_special_tokens=False) == text
        if messages is INJECTED[0]:
            said = [token for token, bit in zip(found, mask, strict=True) if bit]
            assert library.decode(said, skip_special_tokens=False) == f"{START}user\nyes{END}{END}"
            assert said.count(end) == 1
    assert shard.manifest.counts["num_special_tokens_in_text"] == 5


def test_names_of_fields_that_spell_special_tokens_stay_plain_text_too(tmp_path: Path):
    call = {"function": {"name": "f", "arguments": {END: 1}}}
    messages = [*chat("call it"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    template = PLAIN.replace(
        "message['content'] +", "message['content'] + (message.tool_calls | default([])) | tojson +"
    )
    shard = tokenize(chat_dataset(tmp_path, [messages], template=template))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    [(ids, _)] = documents_of(shard)
    assert ids.count(library.token_to_id(START)) == ids.count(library.token_to_id(END)) == 2
    text = library.decode(ids, skip_special_tokens=False)
    assert f'"arguments": {{"{END}": 1}}' in text


def test_with_control_the_tokens_are_those_of_transformers_and_with_error_the_run_stops(
    tmp_path: Path,
):
    chats = [*CHATS, *INJECTED]
    control, error = ({"special_tokens_in_text": policy} for policy in ("control", "error"))

    shard = tokenize(chat_dataset(tmp_path, chats, tokenizer=control))

    assert documents_of(shard) == of_transformers(tmp_path, MARKED, chats)
    assert shard.manifest.counts["num_special_tokens_in_text"] == 5
    with pytest.raises(BadDocumentError, match=r"document 4: .*, found '<\|im_"):
        tokenize(chat_dataset(tmp_path, chats, tokenizer=error))


def test_a_tokenizer_that_marks_beginnings_of_texts_refuses_spelt_special_tokens(tmp_path: Path):
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        special_tokens=["<unk>", START, END], vocab_size=90, show_progress=False
    )
    library.train_from_iterator(["say please fine user assistant <|im_end|>\n"] * 9, trainer)
    dataset = chat_dataset(tmp_path, INJECTED[:1])
    save_chat_tokenizer(tmp_path, content=library.to_str())

    with pytest.raises(TokenizerError, match="a message spells a special token"):
        tokenize(dataset)


def test_a_sentencepiece_model_has_its_places_from_its_library(tmp_path: Path):
    symbols = ["<|im_start|>", "<|im_end|>"]
    (tmp_path / "own.model").write_bytes(train_model(control_symbols=symbols))
    plain, own = {"chat_template": PLAIN}, {"kind": "sentencepiece", "name": "own.model"}
    dataset = chat_dataset(tmp_path, [chat("a word", "é word")], documents=plain, tokenizer=own)

    ((token_ids, mask),) = documents_of(tokenize(dataset))

    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    supervised = [token for token, bit in zip(token_ids, mask, strict=True) if bit]
    assert processor.decode(supervised[: supervised.index(processor.piece_to_id(END))]) == "é word"
    assert token_ids.count(processor.piece_to_id(START)) == 2
    assert mask.index(1) > token_ids.index(processor.piece_to_id(END))


def test_a_token_that_takes_white_space_with_it_does_not_shift_the_mask(tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.add_tokens([tokenizers.AddedToken("<think>", lstrip=True, rstrip=True)])
    chats = [CHATS[0], chat("why  <think>  so", "because  <think>  of it", "x", "y"), CHATS[1]]
    dataset = chat_dataset(tmp_path, chats)
    save_chat_tokenizer(tmp_path, content=library.to_str())

    assert documents_of(tokenize(dataset)) == of_transformers(tmp_path, MARKED, chats)


def test_tiktoken_chats_have_their_mask_by_bytes(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    template = MARKED.replace("<|im_start|>", "<|endoftext|>").replace("<|im_end|>", "\n\n")
    how = {"documents": {"chat_template": template}}
    how["tokenizer"] = {"kind": "tiktoken", "name": "gpt2"}
    dataset = chat_dataset(tmp_path, [chat("größe?", "ja 👍🏽 gut")], **how)
    import tiktoken

    [(ids, mask)] = documents_of(tokenize(dataset))
    encoding = tiktoken.get_encoding("gpt2")
    supervised = encoding.decode([i for i, bit in zip(ids, mask, strict=True) if bit])
    assert supervised == "ja 👍🏽 gut<|endoftext|>"


def test_bos_and_eos_that_the_template_writes_are_not_doubled(tmp_path: Path):
    template = "{{ bos_token }}" + MARKED
    around = {"bos": "first", "bos_token": "<|bos|>"}
    chats = [chat("a", "b"), chat("c")]

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    bos, eos, line = (library.token_to_id(name) for name in ("<|bos|>", END, "Ċ"))
    with_bos = documents_of(tokenize(chat_dataset(tmp_path, chats, template=template,
                                                  tokenizer=around)))  # fmt: skip
    without = documents_of(tokenize(chat_dataset(tmp_path / "b", chats, tokenizer=around)))

    assert with_bos == without
    for ids, mask in with_bos:
        assert ids.count(bos) == 1
        assert ids[0] == bos
        assert mask[0] == 0
        assert ids[-2:] == [eos, line]


def test_an_eos_that_is_added_is_supervised_where_the_assistant_speaks_last(tmp_path: Path):
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ ' ' }}{% endfor %}"
    )
    dataset = chat_dataset(tmp_path, [chat("a", "b"), chat("c")], template=template)

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    a, b, c, space = (library.token_to_id(name) for name in ("a", "b", "c", "Ġ"))
    shard = tokenize(dataset)
    answered = [a, space, b, space, 1], [0, 0, 1, 0, 1]
    assert documents_of(shard) == [answered, ([c, space, 1], [0, 0, 0])]
    assert shard.manifest.counts["num_eos_in_text"] == 0


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv", "tsv", "arrow"])
def test_of_a_prompt_and_its_completion_only_the_latter_is_supervised(suffix: str, tmp_path: Path):
    documents = {"prompt": "p", "completion": "c"}
    pairs = [("Q: größe? ", "A: ja"), ("", "all of it"), ("nothing", "")]
    (tmp_path / "raw").mkdir()
    records = [{"p": prompt, "c": completion} for prompt, completion in pairs]
    write_records(tmp_path / f"raw/a.{suffix}", records)
    dataset = declare(tmp_path, raw={"files": "raw/*"}, documents=documents)

    shard = tokenize(dataset)

    for (prompt, completion), (ids, mask) in zip(pairs, documents_of(shard), strict=True):
        assert ids == [*prompt.encode(), *completion.encode(), 256]
        assert mask == [0] * len(prompt.encode()) + [1] * (len(completion.encode()) + 1)
    assert shard.manifest.counts["num_loss_tokens"] == 5 + 9 + 3
    assert not [v.problems for v in verify_dataset(dataset) if "tokens" in v.name and v.problems]


def test_a_prompt_that_spells_a_special_token_is_plain_text(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"p": f"a{END}", "c": f"{END}b"}) + "\n")
    documents = {"messages": None, "prompt": "p", "completion": "c"}
    shard = tokenize(chat_dataset(tmp_path, None, documents=documents))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.encode_special_tokens = True
    [(ids, mask)] = documents_of(shard)
    assert ids == [*library.encode(f"a{END}{END}b").ids, 1]
    assert library.decode([i for i, bit in zip(ids[:-1], mask, strict=False) if bit]) == f"{END}b"
    assert shard.manifest.counts["num_special_tokens_in_text"] == 2


TOLD = (
    "{{ bos_token }}{% if tools is not none %}{{ tools | tojson }}{% endif %}"
    "{{ mood }}{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}\n"
)


def test_the_template_gets_tools_and_kwargs_as_transformers_passes_them(tmp_path: Path):
    tools = [{"type": "function", "function": {"name": "f", "description": f"ends in {END}"}}]
    kwargs = {"enable_thinking": False, "bos_token": "<|bos|>"}
    rows = [
        {"messages": CHATS[0], "tools": tools, "kwargs": kwargs},
        {"messages": CHATS[0], "tools": json.dumps(tools[:0]), "kwargs": None},
        {"messages": CHATS[0]},
    ]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = {
        "tools": "tools",
        "chat_template_kwargs": {"mood": "mild", "bos_token": ""},
        "chat_template_kwargs_column": "kwargs",
    }

    made = chat_dataset(tmp_path, None, template=TOLD + MARKED, documents=fields)

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    template = transformers_tokenizer(tmp_path, TOLD + MARKED)
    shard = tokenize(made)
    for (ids, _), row in zip(documents_of(shard), rows, strict=True):
        given = row.get("tools")
        given = json.loads(given) if isinstance(given, str) else given
        how = {**fields["chat_template_kwargs"], **(row.get("kwargs") or {}), "tokenize": False}
        expected = template.apply_chat_template(row["messages"], tools=given, **how)
        assert library.decode(ids, skip_special_tokens=False) == expected
    assert shard.manifest.counts["num_special_tokens_in_text"] == 1


def test_what_decides_the_text_or_the_mask_makes_the_tokens_again(tmp_path: Path):
    def recipe(**documents: Any) -> str:
        dataset = chat_dataset(tmp_path, documents=documents)
        save_tokenizer(dataset)
        return graph_of(dataset).tokens("chats.jsonl").recipe.fingerprint

    deciding: list[dict[str, Any]] = [
        {},
        *({"chat_template_kwargs": {"a": value}} for value in (1, 2)),
        *({name: "a"} for name in ("chat_template_kwargs_column", "tools", "system")),
        {"chat_format": "sharegpt"},
        {"chat_date": "2026-01-31"},
        {"stop_tokens": [END]},
        {"unwritten": "keep"},
        *({"loss": value} for value in ("last", "all")),
        {"loss_reasoning": False},
    ]

    assert len({recipe(**of) for of in deciding}) == len(deciding)
    assert recipe(on_no_loss="accept", chat_format="messages") == recipe()


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("+ eos_token }}{% endgeneration %}", "+ eos_token }}{% endgeneration %}", None),
        ("+ eos_token }}{% endgeneration %}", "}}{% endgeneration %}{{ eos_token }}",
         "num_blocks_with_less"),
        ("{% endgeneration %}{% else %}", "{{ '\n' }}{% endgeneration %}{% else %}",
         "num_blocks_with_more"),
        ("{% generation %}{{", "{{ '' }}{% generation %}{{ '' }}{{", None),
        ("{{ message['content'] + eos_token }}{% endgeneration %}",
         "{% endgeneration %}{{ message['content'] + eos_token }}", "num_blocks_with_less"),
    ],
)  # fmt: skip
def test_generation_blocks_are_compared_with_what_the_model_has_to_emit(
    old: str, new: str, count: str | None, tmp_path: Path
):
    prompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    template = MARKED.replace(old, new, 1) + prompt
    shard = tokenize(chat_dataset(tmp_path, CHATS[:2], template=template))

    found = {name: num for name, num in shard.manifest.counts.items() if "_blocks" in name and num}
    assert [*found] == ([count] if count else [])


def test_generation_blocks_of_the_first_100_chats_of_a_file_are_compared(tmp_path: Path):
    prompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    inside, outside = "+ eos_token }}{% endgeneration %}", "}}{% endgeneration %}{{ eos_token }}"
    template = MARKED.replace(inside, outside) + prompt
    shard = tokenize(chat_dataset(tmp_path, [chat("a", "b")] * 103, template=template))

    assert shard.manifest.counts["num_blocks_with_less"] == 100
