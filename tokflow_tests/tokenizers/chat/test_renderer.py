"""Chats against transformers, and through all stages. Importing transformers takes seconds."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify.verification import verify_dataset
from tokflow.build.dataset import make_dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.pipeline import build_dataset
from tokflow.cli.summary import left_out
from tokflow.documents import DocumentsConfig, Reject, read_documents
from tokflow.errors import BadDocumentError, ConfigError, TokenizerError
from tokflow.tokenizers.chat.renderer import open_renderer
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
    documents_of,
    save_chat_tokenizer,
    shard_of,
    write_chats,
)
from tokflow_tests.cli.commands import run
from tokflow_tests.special import train_model
from tokflow_tests.texts import write_texts


def transformers_tokenizer(folder: Path, template: str) -> Any:
    import transformers

    made = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tok/tokenizer.json"), eos_token=END
    )
    made.chat_template = template
    return made


def of_transformers(folder: Path, template: str, chats: list[Any]) -> list[tuple[list[int], Any]]:
    made = transformers_tokenizer(folder, template)
    encoded = [
        made.apply_chat_template(
            messages,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask="generation" in template,
        )
        for messages in chats
    ]
    return [(list(one["input_ids"]), one.get("assistant_masks")) for one in encoded]


def test_tokens_and_masks_are_those_of_transformers(tmp_path: Path):
    shard = shard_of(chat_dataset(tmp_path))

    assert documents_of(shard) == of_transformers(tmp_path, MARKED, CHATS)
    num_loss_tokens = sum(sum(mask) for _, mask in documents_of(shard))
    assert shard.manifest.counts["num_loss_tokens"] == num_loss_tokens > 20
    assert shard.manifest.counts["num_special_tokens_in_text"] == 0
    assert shard.manifest.details["eos_token"] == END


def test_a_template_without_generation_blocks_is_rendered_turn_by_turn(tmp_path: Path):
    shard = shard_of(chat_dataset(tmp_path, template=PLAIN))
    marked = shard_of(chat_dataset(tmp_path / "marked"))

    assert [ids for ids, _ in documents_of(shard)] == [
        ids for ids, _ in of_transformers(tmp_path, PLAIN, CHATS)
    ]
    # The text is the same, and each turn has the line end that the template puts after it, too.
    assert [ids for ids, _ in documents_of(shard)] == [ids for ids, _ in documents_of(marked)]
    for (ids, mask), (_, inner) in zip(documents_of(shard), documents_of(marked), strict=True):
        newline_after = [i for i in range(1, len(ids)) if inner[i - 1] > inner[i]]
        expected = [int(bit or i in newline_after) for i, bit in enumerate(inner)]
        assert mask == expected


@pytest.mark.parametrize("chats", [INJECTED, [*CHATS, *INJECTED, *CHATS]])
def test_special_tokens_that_users_spell_stay_plain_text(chats: list[Any], tmp_path: Path):
    shard = shard_of(chat_dataset(tmp_path, chats))

    ids = {name: tokenizers.Tokenizer.from_str(byte_level_json()).token_to_id(name)
           for name in (START, END)}  # fmt: skip
    expected = of_transformers(tmp_path, MARKED, chats)
    for messages, (found, mask), (control, _) in zip(
        chats, documents_of(shard), expected, strict=True
    ):
        # One of each for a message, and none that a user wrote.
        assert found.count(ids[START]) == found.count(ids[END]) == len(messages)
        assert len(found) == len(mask)
        # With harmless words in their place, plain text and control mode are the same.
        assert (found == control) == (not re.search(r"<\|im_(start|end)\|>", str(messages)))
    rendered = [
        transformers_tokenizer(tmp_path, MARKED).apply_chat_template(one, tokenize=False)
        for one in chats
    ]
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    assert [
        library.decode(found, skip_special_tokens=False) for found, _ in documents_of(shard)
    ] == (rendered)
    assert shard.manifest.counts["num_special_tokens_in_text"] == 5


def test_messages_may_hold_any_private_character(tmp_path: Path):
    forged = f"\U000f0000{END}\U000f0001 \U000f0002"
    template = MARKED.replace("'\n'", "'\U000f0003\n'", 1)
    shard = shard_of(chat_dataset(tmp_path, [chat(forged, "no")], template=template))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    [(ids, _)] = documents_of(shard)
    assert ids.count(library.token_to_id(END)) == 2
    assert forged in library.decode(ids, skip_special_tokens=False)


def test_names_of_fields_that_spell_special_tokens_stay_plain_text_too(tmp_path: Path):
    call = {"function": {"name": "f", "arguments": {END: 1}}}
    messages = [*chat("call it"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    template = PLAIN.replace(
        "message['content'] +", "message['content'] + (message.tool_calls | default([])) | tojson +"
    )
    shard = shard_of(chat_dataset(tmp_path, [messages], template=template))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    [(ids, _)] = documents_of(shard)
    assert ids.count(library.token_to_id(START)) == ids.count(library.token_to_id(END)) == 2
    text = library.decode(ids, skip_special_tokens=False)
    assert f'"arguments": {{"{END}": 1}}' in text


def test_the_mask_of_a_chat_that_spells_special_tokens_covers_what_the_assistant_says(
    tmp_path: Path,
):
    [(found, mask)] = documents_of(shard_of(chat_dataset(tmp_path, INJECTED[:1])))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    supervised = [token_id for token_id, bit in zip(found, mask, strict=True) if bit]
    text = library.decode(supervised, skip_special_tokens=False)
    assert text == f"{START}user\nyes{END}{END}"
    assert sum(token_id == library.token_to_id(END) for token_id in supervised) == 1


def test_with_control_the_tokens_are_those_of_transformers_whatever_users_spell(tmp_path: Path):
    chats = [*CHATS, *INJECTED]
    control = {"special_tokens_in_text": "control"}
    shard = shard_of(chat_dataset(tmp_path, chats, tokenizer=control))

    assert documents_of(shard) == of_transformers(tmp_path, MARKED, chats)
    assert shard.manifest.counts["num_special_tokens_in_text"] == 5


def test_with_error_a_special_token_in_a_message_stops_the_run(tmp_path: Path):
    dataset = chat_dataset(
        tmp_path, [*CHATS, *INJECTED], tokenizer={"special_tokens_in_text": "error"}
    )

    with pytest.raises(BadDocumentError) as caught:
        shard_of(dataset)

    assert "document 4: expected no special token spelt in the text, found '<|im_" in str(
        caught.value
    )


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
        shard_of(dataset)


def test_tokens_that_are_no_bytes_get_their_places_from_the_library(tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.normalizer = normalizers.NFC()
    chats = [*CHATS, chat("e\u0301a", "e\u0301 o\u0308 no"), chat("x", "e\u0301")]
    dataset = chat_dataset(tmp_path, chats)
    save_chat_tokenizer(tmp_path, content=library.to_str())

    assert documents_of(shard_of(dataset)) == of_transformers(tmp_path, MARKED, chats)


def test_a_sentencepiece_model_has_its_places_from_its_library(tmp_path: Path):
    symbols = ["<|im_start|>", "<|im_end|>"]
    (tmp_path / "own.model").write_bytes(train_model(control_symbols=symbols))
    dataset = chat_dataset(
        tmp_path,
        [chat("a word", "é word")],
        documents={"chat_template": PLAIN},
        tokenizer={"kind": "sentencepiece", "name": "own.model"},
    )

    ((token_ids, mask),) = documents_of(shard_of(dataset))

    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    supervised = [
        token for token, is_loss_token in zip(token_ids, mask, strict=True) if is_loss_token
    ]
    assert processor.decode(supervised[: supervised.index(processor.piece_to_id(END))]) == "é word"
    assert token_ids.count(processor.piece_to_id(START)) == 2
    assert mask.index(1) > token_ids.index(processor.piece_to_id(END))


def test_a_token_that_takes_white_space_with_it_does_not_shift_the_mask(tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.add_tokens([tokenizers.AddedToken("<think>", lstrip=True, rstrip=True)])
    chats = [CHATS[0], chat("why  <think>  so", "because  <think>  of it", "x", "y"), CHATS[1]]
    dataset = chat_dataset(tmp_path, chats)
    save_chat_tokenizer(tmp_path, content=library.to_str())

    assert documents_of(shard_of(dataset)) == of_transformers(tmp_path, MARKED, chats)


def test_tiktoken_chats_have_their_mask_by_bytes(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    template = MARKED.replace("<|im_start|>", "<|endoftext|>").replace("<|im_end|>", "\n\n")
    dataset = chat_dataset(
        tmp_path,
        [chat("größe?", "ja 👍🏽 gut")],
        documents={"chat_template": template},
        tokenizer={"kind": "tiktoken", "name": "gpt2"},
    )
    import tiktoken

    [(ids, mask)] = documents_of(shard_of(dataset))
    encoding = tiktoken.get_encoding("gpt2")
    supervised = encoding.decode([i for i, bit in zip(ids, mask, strict=True) if bit])
    assert supervised == "ja 👍🏽 gut<|endoftext|>"


def test_parquet_lists_of_structs_arrow_and_json_strings_give_the_same_shard_as_jsonl(
    tmp_path: Path,
):
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    chats = [*CHATS, [*chat("call it"), {"role": "assistant", "content": "", "tool_calls": [call]}]]
    template = PLAIN.replace(
        "message['content'] +", "message['content'] + (message.tool_calls | tojson "
        "if message.tool_calls is defined else '') +",
    )  # fmt: skip
    table = pa.table({"messages": pa.array(chats)})
    assert pa.types.is_struct(table.schema.field("messages").type.value_type)
    strings = pa.table({"messages": [json.dumps(messages) for messages in chats]})
    raw = tmp_path / "raw"
    write_chats(raw / "a.jsonl", chats)
    pq.write_table(table, raw / "b.parquet", row_group_size=2)
    with pa.ipc.new_file(raw / "c.arrow", table.schema) as writer:
        writer.write_table(table)
    pq.write_table(strings, raw / "d.parquet")
    write_chats(raw / "e.jsonl", [json.dumps(messages) for messages in chats])
    lines = ['"' + json.dumps(messages).replace('"', '""') + '"' for messages in chats]
    (raw / "f.csv").write_text("\n".join(["messages", *lines, ""]))
    dataset = chat_dataset(tmp_path, None, template=template)

    shards = [shard_of(dataset, path.name) for path in sorted(raw.iterdir())]

    assert '"arguments": {"x": 1}' in tokenizers.Tokenizer.from_str(byte_level_json()).decode(
        documents_of(shards[0])[-1][0]
    )
    assert [documents_of(shard) for shard in shards] == [documents_of(shards[0])] * 6
    assert len({shard.manifest.files["loss_mask.bin"].sha256 for shard in shards}) == 1


BAD_CHATS = [
    ([], "a list of one message or more, found []"),
    ("not JSON", "the JSON of a list of messages, found b'\"not JSON\"'"),
    ({"role": "user"}, "a list of one message or more, found {'role': 'user'}"),
    ([{"content": "a"}], "an object with a `role` as message 0, found {'content': 'a'}"),
    (None, "a list of one message or more, found None"),
    ([{"role": "user"}], "messages that the chat template takes, found UndefinedError"),
    (chat("\ud800"), "text, found the lone surrogate '\\ud800' in a message"),
    (json.dumps(chat("\ud800")), "text, found the lone surrogate '\\ud800' in a message"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_CHATS, ids=[reason for _, reason in BAD_CHATS])
def test_what_is_no_chat_is_a_bad_document_with_its_line(bad: Any, reason: str, tmp_path: Path):
    chats = [chat("a", "b"), bad, chat("c", "d")]
    path = write_chats(tmp_path / "chats.jsonl", chats)
    fields: dict[str, Any] = {"messages": "messages", "chat_template": PLAIN}
    rejects: list[Reject] = []

    config = DocumentsConfig(**fields)
    with pytest.raises(BadDocumentError) as caught:
        list(read_documents(path, config, render=open_renderer(config, None)))
    config = DocumentsConfig(**fields, on_bad_document="reject")
    [batch] = read_documents(
        path, config, render=open_renderer(config, None), on_reject=rejects.append
    )

    assert f"{path}, row 1, line 2, byte " in str(caught.value)
    assert re.sub(r"\s+", " ", reason) in str(caught.value)
    assert batch.rows.tolist() == [0, 2]
    assert [(reject.row, reject.line) for reject in rejects] == [(1, 2)]
    assert rejects[0].byte_offset == len(path.read_bytes().splitlines(keepends=True)[0])


def test_what_a_template_refuses_is_a_bad_document(tmp_path: Path):
    template = "{{ raise_exception('roles must alternate') if messages | length > 2 }}" + PLAIN
    dataset = chat_dataset(tmp_path, template=template, documents={"on_bad_document": "reject"})

    shard = shard_of(dataset)

    assert shard.manifest.counts["num_rejects"] == 2
    lines = (shard.folder / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [2, 4]
    assert "found TemplateError: roles must alternate" in json.loads(lines[0])["reason"]


@pytest.mark.parametrize(
    ("condition", "where", "what"),
    [
        (
            "loop.last",
            "row 0, line 1, byte 0",
            "message 1, the assistant's, can be found in the text, found what is before it is not "
            "how it begins as a prompt",
        ),
        (
            "loop.last or message.role != 'assistant'",
            "row 1, line 2, byte",
            "message 2, the assistant's, can be found in the text, found what follows it changes "
            "how it is written",
        ),
    ],
)
def test_a_template_that_writes_a_turn_otherwise_later_needs_generation_blocks(
    condition: str, where: str, what: str, tmp_path: Path
):
    template = PLAIN.replace(
        "message['content'] +", f"(message['content'] if {condition} else '') +"
    )
    with pytest.raises(BadDocumentError) as caught:
        shard_of(chat_dataset(tmp_path, template=template))

    assert where in str(caught.value)
    assert (
        f"expected a chat template by which {what}; put what the assistant says between "
        "{% generation %} and {% endgeneration %} in the template (documents.chat_template), or "
        "set documents.on_bad_document: reject"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "documents.chat_template: line 1: expected a Jinja template"),
        (None, "documents.chat_template: expected a chat template, for documents.messages is"),
        ("{{ strftime_now('%d') }}", "expected a template that gives the same text each time"),
        ("{{ messages | random }}", "expected a template that gives the same text each time"),
    ],
)
def test_a_template_that_cannot_be_used_stops_the_run(
    template: str | None, message: str, tmp_path: Path
):
    with pytest.raises(ConfigError) as caught:
        shard_of(chat_dataset(tmp_path, template=template))

    assert message in str(caught.value)


def test_where_a_template_comes_from(tmp_path: Path):
    def first_text(folder: Path, **documents: Any) -> str:
        [ids, _] = documents_of(shard_of(chat_dataset(
            folder, CHATS[:1], template=None, documents=documents)))[0]  # fmt: skip
        return tokenizers.Tokenizer.from_str(byte_level_json()).decode(ids)

    def config(folder: Path, value: object) -> None:
        save_chat_tokenizer(folder)
        (folder / "tok/tokenizer_config.json").write_text(
            json.dumps({"eos_token": END, "chat_template": value})
        )

    def written(text: str) -> str:
        return "{% generation %}" + text + "{% endgeneration %}"

    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": written("yes")}]
    config(tmp_path / "a", None)
    (tmp_path / "a/own.jinja").write_text(written("own"))
    assert first_text(tmp_path / "a", chat_template="own.jinja") == "own"
    dataset = chat_dataset(tmp_path / "b", CHATS[:1], template=None)
    config(tmp_path / "b", named)
    assert documents_of(shard_of(dataset))[0][0] == [
        *tokenizers.Tokenizer.from_str(byte_level_json()).encode("yes").ids, 1
    ]  # fmt: skip
    (tmp_path / "b/tok/chat_template.jinja").write_text(written("file"))
    before = BuildGraph(dataset).tokenizer_output.fingerprint
    [(ids, mask)] = documents_of(shard_of(dataset))
    assert tokenizers.Tokenizer.from_str(byte_level_json()).decode(ids) == "file"
    assert mask == [1] * len(ids)
    (tmp_path / "b/tok/chat_template.jinja").write_text(written("other"))
    assert BuildGraph(dataset).tokenizer_output.fingerprint != before
    by_name = {"name": "tok/tokenizer.json"}
    (tmp_path / "c/tok").mkdir(parents=True)
    (tmp_path / "c/tok/chat_template.jinja").write_text(written("beside"))
    dataset = chat_dataset(tmp_path / "c", CHATS[:1], template=None, tokenizer=by_name)
    [(ids, _)] = documents_of(shard_of(dataset))
    assert tokenizers.Tokenizer.from_str(byte_level_json()).decode(ids) == "beside"


def test_the_text_of_a_template_file_is_what_decides_the_tokens(tmp_path: Path):
    write_chats(tmp_path / "raw/chats.jsonl", CHATS)
    path = tmp_path / "mine.jinja"
    path.write_text(PLAIN)
    by_file = chat_dataset(tmp_path, None, documents={"chat_template": "mine.jinja"})
    by_text = chat_dataset(tmp_path, None, documents={"chat_template": PLAIN})

    assert shard_of(by_file).manifest.fingerprint == shard_of(by_text).manifest.fingerprint
    path.write_text(MARKED)
    changed = chat_dataset(tmp_path, None, documents={"chat_template": "mine.jinja"})
    assert shard_of(changed).manifest.fingerprint != shard_of(by_text).manifest.fingerprint
    with pytest.raises(ConfigError, match=r"none\.jinja.*No such file"):
        chat_dataset(tmp_path, None, documents={"chat_template": "none.jinja"})


def test_bos_and_eos_that_the_template_writes_are_not_doubled(tmp_path: Path):
    template = "{{ bos_token }}" + MARKED
    around = {"bos": "first", "bos_token": "<|bos|>"}
    chats = [chat("a", "b"), chat("c")]

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    bos, eos, line = (library.token_to_id(name) for name in ("<|bos|>", END, "Ċ"))
    with_bos = documents_of(shard_of(chat_dataset(tmp_path, chats, template=template,
                                                  tokenizer=around)))  # fmt: skip
    without = documents_of(shard_of(chat_dataset(tmp_path / "b", chats, tokenizer=around)))

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
    shard = shard_of(dataset)
    assert documents_of(shard) == [
        ([a, space, b, space, 1], [0, 0, 1, 0, 1]),
        ([c, space, 1], [0, 0, 0]),
    ]
    assert shard.manifest.counts["num_eos_in_text"] == 0


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv", "tsv", "arrow"])
def test_of_a_prompt_and_its_completion_only_the_latter_is_supervised(suffix: str, tmp_path: Path):
    pairs = [("Q: größe?\n", "A: ja"), ("", "all of it"), ("nothing", "")]
    table = pa.table({"p": [p for p, _ in pairs], "c": [c for _, c in pairs]})
    raw = tmp_path / "raw"
    raw.mkdir()
    if suffix == "parquet":
        pq.write_table(table, raw / "a.parquet")
    elif suffix == "arrow":
        with pa.ipc.new_stream(raw / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    elif suffix == "jsonl":
        (raw / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        comma = {"csv": ",", "tsv": "\t"}[suffix]
        rows = "".join(f'"{p}"{comma}"{c}"\n' for p, c in pairs)
        (raw / f"a.{suffix}").write_text(f"p{comma}c\n{rows}")
    dataset = make_dataset(
        {
            "name": "pairs",
            "raw": {"files": "raw/*"},
            "documents": {"prompt": "p", "completion": "c"},
            "tokenizer": {"kind": "bytes"},
            "store": "store",
        },
        base=tmp_path,
        where="test",
    )

    shard = shard_of(dataset)

    assert documents_of(shard) == [
        (
            [*prompt.encode(), *completion.encode(), 256],
            [0] * len(prompt.encode()) + [1] * len(completion.encode()) + [1],
        )
        for prompt, completion in pairs
    ]
    assert shard.manifest.counts["num_loss_tokens"] == 5 + 9 + 3
    assert not [v.problems for v in verify_dataset(dataset) if "tokens" in v.name and v.problems]


def test_a_prompt_that_spells_a_special_token_is_plain_text(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"p": f"a{END}", "c": f"{END}b"}) + "\n")
    documents = {"messages": None, "prompt": "p", "completion": "c"}
    shard = shard_of(chat_dataset(tmp_path, None, documents=documents))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.encode_special_tokens = True
    [(ids, mask)] = documents_of(shard)
    assert ids == [*library.encode(f"a{END}{END}b").ids, 1]
    assert library.decode([i for i, bit in zip(ids[:-1], mask, strict=False) if bit]) == f"{END}b"
    assert shard.manifest.counts["num_special_tokens_in_text"] == 2


def many_chats(num: int) -> list[Any]:
    return [chat(f"q{'u' * (i % 7)}", f"a{'n' * (i % 5)}", *(["x", "y"] if i % 3 else []))
            for i in range(num)]  # fmt: skip


@pytest.mark.parametrize("strategy", ["concat", "one_document"])
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_the_mask_goes_through_split_packing_tails_and_parquet(
    strategy: str, tail: str, tmp_path: Path
):
    for name, num in (("a", 11), ("b", 6), ("c", 1)):
        write_chats(tmp_path / f"raw/{name}.jsonl", many_chats(num))
    dataset = chat_dataset(
        tmp_path,
        None,
        split={"parts": {"train": {"documents": 4}, "rest": {"start": 4, "documents": 99}}},
        packing={"strategy": strategy, "sequence_length": 7, "tail": tail, "pad_id": 9},
        exports=["parquet", "bin", "pickle"],
    )
    built = build_dataset(dataset)
    assert not built.failed

    # What must come out, made again from transformers' tokens and masks.
    made = of_transformers(tmp_path, MARKED, many_chats(11))
    in_files = {"train": [made[:4], made[:4], made[:1]], "rest": [made[4:11], made[4:6], []]}
    export = built.export("parquet")
    for part, of_files in in_files.items():
        ids, mask = expected_rows(of_files, strategy, tail, length=7, pad=9)
        paths = sorted(export.output.folder.glob(f"{part}-*.parquet"))
        table = pa.concat_tables([pq.read_table(path) for path in paths])
        assert table["input_ids"].to_pylist() == ids
        assert table["loss_mask"].to_pylist() == mask
        assert table["loss_mask"].type == pa.list_(pa.int8())
        assert export.manifest.counts[f"{part}.num_loss_tokens"] == sum(map(sum, mask))
    assert "lost" not in export.manifest.details
    for name in ("bin", "pickle"):
        assert built.export(name).manifest.details["lost"] == ["loss_mask"]
        assert "train.num_loss_tokens" not in built.export(name).manifest.counts
    assert [verified.problems for verified in verify_dataset(dataset) if verified.problems] == []
    [part] = [p for p in BuildGraph(dataset).parts(dataset.exports[1]) if p.name == "rest"]
    assert [bit for run in part.stream_loss_mask() for bit in run.tolist()] == [
        bit for documents in in_files["rest"] for _, mask in documents for bit in mask
    ]


def expected_rows(
    of_files: list[Any], strategy: str, tail: str, *, length: int, pad: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Pack (tokens, mask) in the plainest way: list by list."""
    rows: list[list[tuple[int, int]]] = []
    tails: list[tuple[int, int]] = []
    for documents in of_files:
        streams = [list(zip(ids, mask, strict=True)) for ids, mask in documents]
        if strategy == "concat":
            joined = [token for stream in streams for token in stream]
            full = len(joined) // length * length
            rows += [joined[i : i + length] for i in range(0, full, length)]
            tails += joined[full:]
        else:
            rows += [s[i : i + length] for s in streams for i in range(0, len(s), length)]
    rows += [tails[i : i + length] for i in range(0, len(tails), length)]
    if strategy == "concat" and tail == "drop":
        rows = [row for row in rows if len(row) == length]
    padded = [[*row, *[(pad, 0)] * (length - len(row))] for row in rows]
    return [[i for i, _ in row] for row in padded], [[bit for _, bit in row] for row in padded]


def test_a_text_dataset_has_no_mask_anywhere(tmp_path: Path):
    write_texts(tmp_path / "raw/a.jsonl", ["ab", "c"])
    dataset = make_dataset(
        {"name": "plain", "raw": {"files": "raw/*"}, "tokenizer": {"kind": "bytes"},
         "packing": {"sequence_length": 4}, "exports": ["parquet", "bin"], "store": "store"},
        base=tmp_path, where="test",
    )  # fmt: skip
    built = build_dataset(dataset)

    shard = BuildGraph(dataset).open_tokens("a.jsonl")
    assert not shard.has_loss_mask
    assert not (shard.folder / "loss_mask.bin").exists()
    assert "num_loss_tokens" not in shard.manifest.counts
    assert "lost" not in built.export("bin").manifest.details
    [path] = built.export("parquet").output.folder.glob("train-*.parquet")
    assert "loss_mask" not in pq.read_schema(path).names


def test_a_run_names_the_formats_that_lost_the_mask(tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["parquet", "bin", "megatron"])

    lines = list(left_out(dataset, build_dataset(dataset)))

    assert lines == ["without the loss mask of the chats: bin, megatron"]


@pytest.mark.parametrize("value", [0, 1, 7])
def test_a_mask_that_was_changed_is_found(value: int, tmp_path: Path):
    dataset = chat_dataset(tmp_path, exports=["parquet"])
    assert not build_dataset(dataset).failed
    shard = BuildGraph(dataset).open_tokens("chats.jsonl")
    path = shard.folder / "loss_mask.bin"
    mask = np.fromfile(path, dtype=np.uint8)
    position = int(np.flatnonzero(mask != value)[5])
    mask[position] = value
    path.chmod(0o644)
    mask.tofile(path)
    from tokflow.audit.verify import verify_against_raw, verify_export, verify_tokens

    graph = BuildGraph(dataset)
    problems = verify_tokens(shard)
    of_raw = verify_against_raw(
        graph.raw_file("chats.jsonl"), shard, dataset.documents, graph.encoding,
    )  # fmt: skip

    if value == 7:
        assert f"{path}: token {position}: expected 0 or 1, found 7" in problems
    else:
        assert any("expected num_loss_tokens" in problem for problem in problems)
    assert any("expected the loss mask of its loss spans" in problem for problem in of_raw)
    output = graph.export(dataset.exports[0])
    found = verify_export(output.folder, output.manifest(), graph.parts(dataset.exports[0]))
    if value != 7:  # which is True, as 1 is
        assert any("loss mask of token" in problem for problem in found)


def test_a_token_of_a_chat_is_traced_to_its_characters(tmp_path: Path):
    chats = [chat("ab", "größe"), chat("xyz", "ok")]
    # BOS and EOS are characters of the text, which begins and ends with them.
    template = "<|bos|>" + MARKED.replace("{{ '\n' }}{% endfor", "{% endfor")
    around = {"bos": "first", "bos_token": "<|bos|>"}
    built = build_dataset(
        chat_dataset(tmp_path, chats, template=template, tokenizer=around, exports=["bin"])
    )
    made = transformers_tokenizer(tmp_path, template)
    texts = [made.apply_chat_template(messages, tokenize=False) for messages in chats]
    offsets = [made(text, add_special_tokens=False, return_offsets_mapping=True) for text in texts]
    first = len(offsets[0]["input_ids"])
    folder = built.export("bin").output.folder

    for document, start in ((0, 0), (1, first)):
        places = offsets[document]["offset_mapping"]
        for token in (0, len(places) // 2, len(places) - 1):
            [origin] = trace_tokens(
                folder, part="train", start=start + token, stop=start + token + 1
            )
            assert (origin.row, origin.char_start, origin.char_stop) == (document, *places[token])
            assert origin.text == texts[document][slice(*places[token])]


def test_a_trained_tokenizer_never_sees_control_tokens_and_needs_the_template(tmp_path: Path):
    fields: dict[str, Any] = {
        "tokenizer": {
            "kind": "trained", "name": None, "vocab_size": 300, "special_tokens": [END, START],
        },
        "documents": {"chat_template": PLAIN},
    }  # fmt: skip
    shard = shard_of(chat_dataset(tmp_path, CHATS * 5, **fields))

    graph = BuildGraph(chat_dataset(tmp_path, None, **fields))
    vocab = json.loads((graph.tokenizer.folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert not [token for token in vocab if "im_" in token or "<|" in token]
    assert "as" in "".join(vocab)
    end = graph.tokenizer.special_tokens[END]
    assert documents_of(shard)[0][0].count(end) == 2
    with pytest.raises(ConfigError, match="the tokenizer is trained on what it writes"):
        chat_dataset(tmp_path, None, tokenizer=fields["tokenizer"])


def test_chats_are_never_cut_at_a_character(tmp_path: Path):
    split = {"parts": {"train": {"start": 0, "characters": 5}}, "boundary": "character"}

    with pytest.raises(ConfigError) as caught:
        chat_dataset(tmp_path, split=split)

    assert str(caught.value) == (
        "test: split.boundary: expected document, for documents are chats, found 'character', "
        "which would cut a conversation; set split.boundary: document"
    )


def test_a_limit_counts_the_characters_that_the_template_writes(tmp_path: Path):
    dataset = chat_dataset(tmp_path, documents={"limit": {"characters": 100}})

    shard = shard_of(dataset)

    rendered = transformers_tokenizer(tmp_path, MARKED).apply_chat_template(
        CHATS[0], tokenize=False
    )
    assert len(rendered) < 100
    assert shard.manifest.counts["num_documents"] == 2
    assert shard.documents()["num_chars"][0].as_py() == len(rendered)


def test_what_was_made_does_not_depend_on_the_batches(tmp_path: Path):
    from tokflow.tokens.shard import write_token_shard

    dataset = chat_dataset(tmp_path, [*CHATS, *INJECTED] * 4)
    whole = shard_of(dataset)
    graph = BuildGraph(dataset)
    folder = tmp_path / "small"
    folder.mkdir()

    write_token_shard(
        graph.raw_file("chats.jsonl"), dataset.documents, graph.encoding,
        folder, dataset="chats", batch_bytes=200,
    )  # fmt: skip

    for name in ("tokens.bin", "loss_mask.bin", "documents.parquet", "manifest.json"):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_the_command_line_builds_verifies_and_inspects_chats(tmp_path: Path):
    save_chat_tokenizer(tmp_path)
    write_chats(tmp_path / "raw/chats.jsonl", CHATS)
    (tmp_path / "dataset.yaml").write_text(
        "name: chats\nraw: {files: raw/*}\ndocuments: {messages: messages}\n"
        "tokenizer: {kind: file, name: tok}\npacking: {sequence_length: 16}\n"
        "exports: [parquet]\nstore: store\n"
    )

    made = run("run", "--config", tmp_path / "dataset.yaml")
    verified = run("verify", "--config", tmp_path / "dataset.yaml")
    inspected = run("inspect", tmp_path / "store/chats/tokens/chats.jsonl")

    assert made.exit_code == 0, made.output
    assert verified.exit_code == 0, verified.output
    assert re.search(r"num_loss_tokens\W+\d", inspected.output), inspected.output


def test_dagster_builds_and_checks_chats(tmp_path: Path):
    import dagster as dg

    from tokflow_tests.dagster_case import Case, failure

    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path / "dagster")) as instance:
        case = Case(tmp_path, instance)
        save_chat_tokenizer(tmp_path)
        write_chats(tmp_path / "raw/chats.jsonl", CHATS)
        case.attributes |= {
            "raw": {"files": "raw/*.jsonl"},
            "documents": {"messages": "messages"},
            "tokenizer": {"kind": "file", "name": "tok"},
            "exports": ["parquet"],
        }
        instance.add_dynamic_partitions("small_files", ["chats.jsonl"])

        result = case.run(keys=["chats.jsonl"])

        assert result.success, failure(result)
        checks = result.get_asset_check_evaluations()
        assert checks
        assert all(check.passed for check in checks)


def test_messages_without_a_renderer_are_a_mistake_of_the_caller(tmp_path: Path):
    path = write_chats(tmp_path / "a.jsonl", CHATS)

    with pytest.raises(TypeError, match=r"tokflow\.tokenizers\.chat"):
        read_documents(path, DocumentsConfig(messages="messages"))
    assert open_renderer(DocumentsConfig(), None) is None


def test_a_reader_of_text_files_has_no_messages(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("hello")
    config = DocumentsConfig(messages="messages", chat_template=PLAIN)

    with pytest.raises(ConfigError, match="a text file, which has none"):
        list(read_documents(path, config, render=open_renderer(config, None)))


def test_very_long_chats_need_generation_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chats = [chat(*"abcdef"), chat(*"abcd")]
    monkeypatch.setattr("tokflow.tokenizers.chat.renderer.MAX_TURNS", 2)

    with pytest.raises(BadDocumentError) as caught:
        shard_of(chat_dataset(tmp_path, chats, template=PLAIN))
    aside = {"on_bad_document": "reject"}
    shard = shard_of(chat_dataset(tmp_path, chats, template=PLAIN, documents=aside))
    marked = shard_of(chat_dataset(tmp_path / "marked", chats))

    assert "row 0, line 1, byte 0: expected at most 2 turns of the assistant" in str(caught.value)
    assert "found 3; put what the assistant says between {% generation %}" in str(caught.value)
    assert (shard.manifest.counts["num_documents"], shard.manifest.counts["num_rejects"]) == (1, 1)
    assert marked.manifest.counts["num_documents"] == 2
