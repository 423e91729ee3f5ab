"""Whose words the tokens of a chat are, and why they are supervised or not."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.inspection import Segment, inspect_output
from tokflow.audit.token_texts import chat_spans
from tokflow.documents import DocumentsConfig
from tokflow.pipeline.run import build_dataset
from tokflow.tokenizers.chat import Chat
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow_tests.chats import CHATS, chat, chat_dataset
from tokflow_tests.tiny import declare

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def shown(messages: list[dict[str, Any]], **fields: Any) -> list[tuple[str, bool, str, str]]:
    documents = DocumentsConfig(messages="messages", chat_template=TEMPLATE, **fields)
    render = open_renderer(documents, None)
    assert render is not None
    made = Chat(messages)
    spans = chat_spans(made, render.render(made), documents)
    return [(of.role, of.is_supervised, of.reason, of.text) for of in spans]


TWO = chat("q", "a", "r", "b")


def test_a_chat_is_divided_by_roles_and_what_is_supervised():
    assert shown(TWO[:2]) == [
        ("template", False, "", "<user>"),
        ("user", False, "given", "q"),
        ("template", False, "", "</s><assistant>"),
        ("assistant", True, "content, stop token", "a</s>"),
    ]


@pytest.mark.parametrize(
    ("fields", "change", "index", "expected"),
    [
        ({"loss": "last"}, {}, 1, (False, "loss: last")),
        ({}, {"train": False}, 1, (False, "train: false")),
        ({}, {"weight": 0}, 1, (False, "weight: 0")),
        ({}, {"train": True}, 0, (True, "train: true")),
        ({"loss": "all"}, {}, 0, (True, "loss: all")),
    ],
)
def test_the_reason_names_the_field_that_decides(
    fields: dict[str, Any], change: dict[str, Any], index: int, expected: tuple[bool, str]
):
    messages = [{**of, **(change if n == index else {})} for n, of in enumerate(TWO)]

    found = next(of for of in shown(messages, **fields) if of[3][:1] == TWO[index]["content"])

    assert found[1:3] == expected


def test_reasoning_that_is_not_supervised_is_a_span_of_its_own():
    thinks = [TWO[0], {"role": "assistant", "reasoning": "hm", "content": "a"}]

    *_, reasoning, answer = shown(thinks, loss_reasoning=False)

    assert reasoning[:3] == ("assistant", False, "loss_reasoning: false")
    assert answer == ("assistant", True, "content, stop token", "a</s>")
    assert shown(thinks)[-1][2] == "reasoning, content, stop token"


OUTPUTS = (
    "tokens/chats.jsonl", "split/chats.jsonl", "sequences/chats.jsonl", "exports/bin",
    "exports/parquet",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    packing = {"sequence_length": 1000}
    dataset = chat_dataset(folder, CHATS[:2], packing=packing, exports=["bin", "parquet"])
    assert build_dataset(dataset).failed == ()
    return folder / "store/chats"


def segments_of(output: Path) -> list[Segment]:
    [excerpt, *_] = inspect_output(output, num_sequences=1).excerpts
    return [of for of in excerpt.segments if not of.is_padding]


def of_first(output: Path) -> list[tuple[str, bool, str]]:
    [first, *_] = segments_of(output)
    assert "".join(of.text for of in first.spans) == first.text
    return [(of.role, of.is_supervised, of.text) for of in first.spans]


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_of_chats_shows_whose_words_its_tokens_are(output: str, store: Path):
    found = of_first(store / output)

    assert found[:4] == [
        ("template", False, "<|im_start|>user\n"),
        ("user", False, "Hello there"),
        ("template", False, "<|im_end|>\n<|im_start|>assistant\n"),
        ("assistant", True, "General Kenobi<|im_end|>"),
    ]
    assert all(of.spans for of in segments_of(store / output))


def test_of_a_chat_that_cannot_be_read_again_only_the_mask_is_known(store: Path):
    raw = store.parents[1] / "raw/chats.jsonl"
    raw.rename(raw.with_suffix(".away"))
    try:
        found = of_first(store / "exports/parquet")
    finally:
        raw.with_suffix(".away").rename(raw)

    assert found[:2] == [
        ("", False, "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"),
        ("", True, "General Kenobi<|im_end|>"),
    ]


def test_a_pair_is_shown_with_its_prompt_apart(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"p": "12", "c": "345"}\n')
    build_dataset(declare(tmp_path, documents={"prompt": "p", "completion": "c"}, exports=["bin"]))

    found = of_first(tmp_path / "store/tiny/exports/bin")

    assert found == [
        ("prompt", False, "12"),
        ("completion", True, "345"),
        ("added", True, "<eos>"),
    ]
