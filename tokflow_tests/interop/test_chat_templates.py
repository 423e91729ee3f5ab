"""Every chat template that TRL, llama.cpp and Hugging Face's tools for Ollama ship, and TRL's
training twins: text, ids and masks of all chats."""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import groupby
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from tokflow.documents import DocumentsConfig
from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.renderer import Renderer
from tokflow.tokenizers.chat.template import ChatTemplate, with_date
from tokflow_tests.chat_templates import TOOLS, assistant, call, tool, user, words_of_kinds
from tokflow_tests.chats import byte_level_json
from tokflow_tests.interop.harness import python_of

pytestmark = pytest.mark.interop

SPECIAL = re.compile(
    r"<\|[^|<>'\" {}]+?\|>|<\uff5c[^\uff5c<>]+\uff5c>|<(?:start|end)_of_turn>|<end_of_utterance>"
    r"|</?s>|<\|[a-z_]+>|<[a-z_]+\|>|\[\|[a-z]+\|\]"
)
STRING = r'"(?:[^"\\]|\\.)*"'
NO_CHATS = {"library/llama-guard3:8b"}  # it asks for a verdict about a chat
STOPS = {"glm4moe": ["<|user|>", "<|observation|>"]}
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TRIALS = [chat for kind, chat in words_of_kinds(seed=1) if kind in ("long", "call")]
TAG = re.compile(r"({%[-+]?\s*)(end)?generation(?=\s*[-+]?%})")


def templates(source: str) -> Iterator[tuple[str, str]]:
    """Yield name and template."""
    if source == "ollama":
        package = python_of("vocabularies").parents[1] / "node_modules/@huggingface/ollama-utils"
        code = (package / "src/chat-template-automap.ts").read_text(encoding="utf-8")
        pairs = re.findall(rf"model: ({STRING}),\s*gguf:\s*({STRING})", code)
        found = [(json.loads(name), json.loads(template)) for name, template in pairs]
    else:
        folder = folder_of_sources() if source == "llama.cpp" else folder_of_trl()
        paths = sorted(folder.glob("*.jinja"))
        found = [(path.stem, path.read_text(encoding="utf-8")) for path in paths]
    for name, template in found:
        if name.endswith("_training") == (source == "twins") and name not in NO_CHATS:
            yield name, with_date(template, date(2026, 1, 31))


def folder_of_trl() -> Path:
    environment = python_of("vocabularies").parents[1]
    [folder] = environment.glob("lib/python*/site-packages/trl/chat_templates")
    return folder


def folder_of_sources() -> Path:
    """Return llama.cpp's templates, from the sources of llama-cpp-python."""
    sources = python_of("vocabularies").parents[1] / "sources"
    if not (sources / "templates").exists():
        [archive] = sources.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                path = Path(member.name)
                if path.match("models/templates/*.jinja"):
                    member.name = f"templates/{path.name}"
                    tar.extract(member, sources, filter="data")
    return sources / "templates"


def opened(name: str, template: str) -> tuple[Renderer, PreTrainedTokenizerFast]:
    """Return a renderer and transformers' tokenizer, in which the special tokens are those that the
    template spells, or puts together."""
    trial = ChatTemplate(template, NAMES)
    written = (trial.try_writing(chat, add_generation_prompt=True) for chat in TRIALS)
    found = {*SPECIAL.findall("".join([template, *filter(None, written)]))}
    special = [*NAMES.values(), *sorted(found - {*NAMES.values()})]
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


SOURCES = {"trl": 0.86, "llama.cpp": 0.92, "ollama": 0.68}
"""Where templates are from, and the share of chats at least of which they write all words: most of
those for Ollama write no calls."""


@pytest.mark.parametrize("source", SOURCES)
def test_each_template_that_takes_a_chat_has_its_turns_or_says_what_is_wrong(source: str, capsys):
    tried = held = 0
    refused: Counter[str] = Counter()
    for name, template in templates(source):
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
    assert held > SOURCES[source] * tried


FAMILIES: dict[str, str] = json.loads(
    Path(__file__).with_name("chat_families.json").read_text(encoding="utf-8")
)
"""A template of each family, with the text that it makes of `CALLED`, or of `PLAIN` where it takes
no tools, from the first user's words on; what is supervised is in double brackets. Read by people.
"""
PLAIN = [
    user("u1"),
    assistant("a1", reasoning_content="a2"),
    user("u2"),
    assistant("a5", reasoning_content="a6"),
]
CALLED = [
    *PLAIN[:3],
    assistant("", reasoning_content="a3", tool_calls=[call(city="a4")]),
    tool("u3"),
    PLAIN[3],
]


@pytest.mark.parametrize("name", FAMILIES)
def test_text_and_mask_of_each_family_are_those_that_were_read(name: str):
    folders = (folder_of_trl(), folder_of_sources())
    [path] = (path for of in folders if (path := of / f"{name}.jinja").exists())
    renderer, _ = opened(name, with_date(path.read_text(encoding="utf-8"), date(2026, 1, 31)))

    try:
        rendered = renderer.render(Chat(CALLED, TOOLS))
    except BadChatError:
        rendered = renderer.render(Chat(PLAIN))

    text = rendered.text
    for start, stop in reversed(rendered.loss_spans):
        text = f"{text[:start]}⟦{text[start:stop]}⟧{text[stop:]}"
    assert text[text.index("u1") :] == FAMILIES[name]


def test_masks_of_twins_differ_by_what_follows_the_stop_token_and_by_headers_alone(capsys):
    found: Counter[str] = Counter()
    for name, template in templates("twins"):
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
