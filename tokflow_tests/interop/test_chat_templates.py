"""Every chat template that TRL ships, and its training twins: text, ids and masks of all chats."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import groupby
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from tokflow.documents import DocumentsConfig
from tokflow.tokenizers.chat.formats import BadChatError
from tokflow.tokenizers.chat.renderer import Renderer
from tokflow.tokenizers.chat.template import ChatTemplate, with_date
from tokflow_tests.chat_templates import words_of_kinds
from tokflow_tests.chats import byte_level_json
from tokflow_tests.interop.harness import python_of

pytestmark = pytest.mark.interop

SPECIAL = re.compile(
    r"<\|[^|<>'\" {}]+?\|>|<\uff5c[^\uff5c<>]+\uff5c>|<(?:start|end)_of_turn>|<end_of_utterance>"
    r"|</?s>|<\|[a-z_]+>|<[a-z_]+\|>"
)
STOPS = {"glm4moe": ["<|user|>", "<|observation|>"]}
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TAG = re.compile(r"({%[-+]?\s*)(end)?generation(?=\s*[-+]?%})")


def templates(*, of_twins: bool) -> Iterator[tuple[str, str]]:
    """Yield name and template; of twins without their tags too, as another item."""
    [folder] = (
        Path(python_of("trl")).parents[1].glob("lib/python*/site-packages/trl/chat_templates")
    )
    for path in sorted(folder.glob("*.jinja")):
        if path.stem.endswith("_training") == of_twins:
            yield path.stem, with_date(path.read_text(encoding="utf-8"), date(2026, 1, 31))


def opened(name: str, template: str) -> tuple[Renderer, PreTrainedTokenizerFast]:
    special = [*NAMES.values(), *sorted({*SPECIAL.findall(template)} - {*NAMES.values()})]
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.add_special_tokens([tokenizers.AddedToken(of, special=True) for of in special])
    names = [*special, "<|im_start|>", "<|im_end|>", "<|bos|>"]
    renderer = Renderer(
        ChatTemplate(template, NAMES),
        DocumentsConfig(messages="messages"),
        special_tokens=dict.fromkeys(names, 0),
        stops=STOPS.get(name.removesuffix("_training"), ()),
    )
    return renderer, PreTrainedTokenizerFast(tokenizer_object=library, **NAMES)


def test_each_template_that_takes_a_chat_has_its_turns_or_says_what_is_wrong(capsys):
    tried = held = 0
    refused: Counter[str] = Counter()
    for name, template in templates(of_twins=False):
        renderer, theirs = opened(name, template)
        for _, chat in words_of_kinds(seed=1):
            try:
                text = renderer._template.write(chat)
            except BadChatError:
                continue
            tried += 1
            try:
                rendered = renderer.render(chat)
            except BadChatError:
                refused[name] += 1
                continue
            held += 1
            fitted = renderer._template.fitted(chat)
            assert rendered.text == (text if fitted == chat else renderer._template.write(fitted))
            expected = theirs.apply_chat_template(
                list(fitted.messages), tools=fitted.tools, chat_template=template, tokenize=True,
            )["input_ids"]  # fmt: skip
            assert theirs(rendered.text, add_special_tokens=False)["input_ids"] == expected
            said = [rendered.text[start:stop] for start, stop in rendered.loss_spans]
            words = re.findall(r"\ba\d{3}\b", rendered.text)
            assert [of for span in said for of in re.findall(r"\b[au]\d{3}\b", span)] == words, name

    with capsys.disabled():
        print(f"\nchats held {held:,} of {tried:,}; refused: {dict(refused)}")  # noqa: T201
    assert held > 0.8 * tried


def test_masks_of_twins_differ_by_what_follows_the_stop_token_and_by_headers_alone(capsys):
    found: Counter[str] = Counter()
    for name, template in templates(of_twins=True):
        without_blocks = TAG.sub(lambda tag: tag[1] + ("endif" if tag[2] else "if true"), template)
        plain, theirs = opened(name, without_blocks)
        for _, chat in words_of_kinds(seed=1):
            try:
                rendered = plain.render(chat)
            except BadChatError:
                continue
            fitted = plain._template.fitted(chat)
            made = theirs.apply_chat_template(
                list(fitted.messages), tools=fitted.tools, chat_template=template, tokenize=True,
                return_dict=True, return_assistant_tokens_mask=True,
            )  # fmt: skip
            encoded = theirs(rendered.text, add_special_tokens=False, return_offsets_mapping=True)
            assert encoded["input_ids"] == made["input_ids"]
            for difference in differences(
                rendered, encoded["offset_mapping"], made["assistant_masks"]
            ):
                found[difference] += 1

    with capsys.disabled():
        print(f"\nruns of tokens in twins' masks: {dict(found)}")  # noqa: T201
    named = {"after the stop token", "header", "stop token"}
    of_two_tokens = {"ours alone: '\u0301'"}  # of transformers' mask the first token of a letter
    assert {*found} <= {"same", *named, *of_two_tokens}


def differences(rendered, places, theirs: list[int]) -> Iterator[str]:
    """Yield what each run of tokens is that has another mask."""
    spans = rendered.loss_spans
    ours = [any(a <= start < b for a, b in spans) for start, _ in places]
    for (own, other), run in groupby(
        zip(ours, theirs, places, strict=True), key=lambda of: (of[0], bool(of[1]))
    ):
        places_of_run = [place for _, _, place in run]
        text = rendered.text[places_of_run[0][0] : places_of_run[-1][1]]
        if own == other:
            yield "same"
        elif not own and not text.strip():
            yield "after the stop token"
        elif SPECIAL.search(text):
            is_stop = SPECIAL.fullmatch(text.strip()) is not None
            yield "header" if not own else "stop token" if is_stop else f"ours alone: {text!r}"
        else:
            yield f"{'ours' if own else 'theirs'} alone: {text!r}"
