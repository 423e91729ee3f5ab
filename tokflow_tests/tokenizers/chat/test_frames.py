"""Turns in the text of each family of templates, whatever is said in them."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.renderer import Rendered
from tokflow_tests.chat_templates import (
    BAR,
    CHATML,
    FAMILIES,
    TOOLS,
    Family,
    assistant,
    call,
    renderer_of,
    said,
    tool,
    user,
    words_of_kinds,
)


def supervised(family: str, messages: list[Any], **fields: Any) -> list[str]:
    return said(renderer_of(FAMILIES[family]).render(Chat(messages, **fields)))


TWO_TURNS = [user("u"), assistant("a"), user("v"), assistant("b")]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("chatml", ["a<|im_end|>", "b<|im_end|>"]),
        ("headers", ["a<|eot_id|>", "b<|eot_id|>"]),
        ("reasoning", ["a<|im_end|>", "<think>\n\n</think>\n\nb<|im_end|>"]),
        (
            "channels",
            ["<|channel|>final<|message|>a<|end|>", "<|channel|>final<|message|>b<|return|>"],
        ),
        ("roles", [f"a<{BAR}end{BAR}>", f"b<{BAR}end{BAR}>"]),
        ("open", ["\na<|user|>", "\nb"]),
        ("turns", ["a<end_of_turn>", "b<end_of_turn>"]),
    ],
)
def test_a_turn_is_all_after_the_generation_prompt_up_to_its_stop_token(
    family: str, expected: list[str]
):
    assert supervised(family, TWO_TURNS) == expected


CALL = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call><|im_end|>'


def test_calls_of_tools_are_supervised_with_their_markup_and_what_tools_answer_is_not():
    messages = [user("u"), assistant("", tool_calls=[call(city="x")]), tool("t"), assistant("a")]

    assert supervised("reasoning", messages, tools=TOOLS) == [
        f"<think>\n\n</think>\n\n{CALL}", "<think>\n\n</think>\n\na<|im_end|>",
    ]  # fmt: skip
    assert supervised("channels", messages) == [
        ' to=weather<|channel|>commentary<|message|>{"city": "x"}<|call|>',
        "<|channel|>final<|message|>a<|return|>",
    ]
    assert supervised("open", messages) == [
        "\n\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
        "<|observation|>",
        "\na",
    ]


SEPARATE = (
    "{% for m in messages %}{% for c in m.tool_calls %}<|im_start|>assistant\n"
    "{{ c.function.arguments | tojson }}<|im_end|>{% else %}"
    "<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


EACH = "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
PROMPT = "{{ '<|im_start|>assistant\n' }}"
WANTS_TOOLS = (
    "{% for tool in tools %}{{ tool.function.description }}{% endfor %}{% for m in messages %}"
    "<|im_start|>{{ m.role + '\n' + m.content }}"
    "{% if m.role == 'tool' and not loop.last %}{{ '\n' }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}" + PROMPT + "{% endif %}"
)
LATE_IDS = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.arguments.city }}"
    "{{ '' if loop.last and messages[-1] == m else '; id=' + c.id }}]{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}" + PROMPT + "{% endif %}"
)
CALLED = [user("u"), assistant("a", tool_calls=[call(city="x")]), tool("t"), assistant("b")]


NAMED = (
    "{% set ns = namespace(name='') %}{% for m in messages %}<|im_start|>{% if m.tool_calls %}"
    "{% set ns.name = m.tool_calls[0].function.name %}{{ 'assistant to=' + ns.name }}"
    "{% elif m.role == 'tool' %}{{ ns.name + ' says ' + m.content }}"
    "{% else %}{{ m.role + '\n' + m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
MEASURING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.role == 'user' and m.content | length > 1 %} at length{% endif %}"
    "{{ '\n' + m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}" + PROMPT + "{% endif %}"
)
CHECKING = (
    EACH + "{% for c in m.tool_calls or [] if c.function.name == 'weather' %}"
    "{{ 'tool ' + c.function.arguments.city }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}" + PROMPT + "{% endif %}"
)


COMPARING = MEASURING.replace("m.content | length > 1", "m.lang == 'en'")
REFUSING = "{% if not messages %}{{ raise_exception('none') }}{% endif %}" + CHATML
CALL_OF_DAYS = assistant("", tool_calls=[call(days=3)])
TWO_CALLS = [user("u"), assistant("", tool_calls=[call(city="x"), call(days=3)]), tool("t"),
             assistant("a")]  # fmt: skip
PLAIN_TURNS = ["a<|im_end|>", "b<|im_end|>"]
UNUSUAL: dict[str, tuple[str, list[Any], list[str]]] = {
    "always a prompt": (EACH + "<|im_end|>{% endfor %}" + PROMPT, CALLED, PLAIN_TURNS),
    "text behind the chat": (
        EACH + "<|im_end|>{% endfor %}<|im_start|>system\nrules<|im_end|>"
        "{% if add_generation_prompt %}" + PROMPT + "{% endif %}",
        CALLED, PLAIN_TURNS,
    ),
    "words between stop tokens": (
        EACH + "<|close|>message<|sep|><|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}" + PROMPT + "{% endif %}",
        CALLED, ["a<|close|>message<|sep|><|im_end|>", "b<|close|>message<|sep|><|im_end|>"],
    ),
    "no chat without tools": (WANTS_TOOLS, CALLED, PLAIN_TURNS),
    "ids in earlier turns alone": (
        LATE_IDS, CALLED, ["a[x; id=call00001]<|im_end|>", "b<|im_end|>"]
    ),
    "further calls without a word": (
        SEPARATE, TWO_CALLS,
        ['{"city": "x"}<|im_end|><|im_start|>assistant\n{"days": 3}<|im_end|>', "a<|im_end|>"],
    ),
    "a name again with the tool's answer": (
        NAMED, [user("u"), CALL_OF_DAYS, tool("t"), assistant("a")],
        [" to=weather<|im_end|>", "\na<|im_end|>"],
    ),
    "words measured": (MEASURING, TWO_TURNS, PLAIN_TURNS),
    "field compared": (COMPARING, [{**user("u"), "lang": "en"}, assistant("a")], PLAIN_TURNS[:1]),
    "name compared": (CHECKING, CALLED[:2], ["atool x<|im_end|>"]),
    "no messages refused": (REFUSING, [assistant("a"), user("u"), assistant("b")], PLAIN_TURNS),
    "empty answers": (CHATML, [user(""), assistant(""), user(""), assistant("")],
                      ["<|im_end|>", "<|im_end|>"]),
}  # fmt: skip


@pytest.mark.parametrize(("template", "messages", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_a_turn_ends_where_the_model_stops_whatever_an_unusual_template_writes_or_reads(
    template: str, messages: list[Any], expected: list[str]
):
    special = ["<|im_start|>", "<|im_end|>", "<|close|>", "<|sep|>"]

    renderer = renderer_of(Family(template, special), unwritten="keep")
    rendered = renderer.render(Chat(messages, TOOLS))

    assert said(rendered) == expected
    assert rendered.counts["turns_without_stop"] == 0


def test_a_special_token_behind_the_words_is_no_stop_token_unless_it_is_known():
    asks = "{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content }}"
    template = "{% for m in messages %}" + asks + "{% endfor %}"  # as LLaVA's

    for stops, spans, num_without in (((), [" a", " b"], 1), (("[INST]",), [" a[INST]", " b"], 0)):
        family = Family(template, ["[INST]", "[/INST]"], stops)
        rendered = renderer_of(family).render(Chat(TWO_TURNS))
        assert said(rendered) == spans
        assert rendered.counts["turns_without_stop"] == num_without


def test_reasoning_is_supervised_where_the_template_writes_it_and_counted_where_it_does_not():
    messages = [user("u"), assistant("a", reasoning_content="old"), user("v"),
                assistant("b", reasoning_content="new")]  # fmt: skip
    rendered = renderer_of(FAMILIES["reasoning"]).render(Chat(messages))

    assert said(rendered) == ["a<|im_end|>", "<think>\nnew\n</think>\n\nb<|im_end|>"]
    assert rendered.counts["dropped_reasoning"] == 1


def test_the_mask_does_not_depend_on_reasoning_that_the_prompt_opens():
    quiet = {"template_kwargs": {"enable_thinking": False}}

    assert supervised("reasoning", TWO_TURNS, **quiet) == supervised("reasoning", TWO_TURNS)


ODD = {
    "end of reasoning alone": [user("u"), assistant("x\n</think>\n\na")],
    "reasoning without end": [user("u"), assistant("<think> a")],
    "tag of the template": [user("<tool_response>u</tool_response>"), assistant("a")],
    "same words": [user("a"), assistant("a"), user("a"), assistant("a")],
    "blank": [user(" "), assistant("\n"), user("u"), assistant("a")],
    "empty": [user("u"), assistant(""), user("v"), assistant("a")],
    "empty all": [user(""), assistant(""), user(""), assistant("")],
    "two users": [user("u"), user("v"), assistant("a")],
    "two answers": [user("u"), assistant("a"), assistant("b"), user("v"), assistant("c")],
    "system inside": [user("u"), assistant("a"), {"role": "system", "content": "s"},
                      user("v"), assistant("b")],
    "answer first": [assistant("a"), user("u"), assistant("b")],
    "header of the template": [user("<|im_start|>assistant\nu"), assistant("<|assistant|>\na")],
    "call last": [user("u"), assistant("", tool_calls=[call(city="a")])],
    "call without arguments": [user("u"), assistant("", tool_calls=[call()]), tool("t"),
                               assistant("a")],
    "private characters": [user("\U000f0000u\U000f0001"), assistant("\U000f0003a")],
    "white space": [user("  u\n"), assistant("\n\na  "), user("v"), assistant("\tb")],
}  # fmt: skip


@pytest.mark.parametrize("family", ["chatml", "reasoning", "open"])
@pytest.mark.parametrize("messages", ODD.values(), ids=ODD)
def test_an_odd_chat_has_the_turns_of_its_assistant_or_is_a_bad_document(
    family: str, messages: list[Any]
):
    renderer = renderer_of(FAMILIES[family])
    try:
        rendered = renderer.render(Chat(messages))
    except BadChatError:
        assert any("tool_calls" in message for message in messages)
        assert family == "chatml"
        return

    number_of_turns = sum(message["role"] == "assistant" for message in messages)
    if family == "open" and not messages[-1]["content"] and "tool_calls" not in messages[-1]:
        number_of_turns -= 1  # which has neither a word nor a stop token
    turns = [turn for turn in rendered.turns if turn.role == "assistant"]
    assert len(turns) == number_of_turns
    others = [words for turn in rendered.turns if turn.role != "assistant" for words in turn.parts]
    for turn in turns:
        start, stop = turn.span
        assert not [of for of in others if of.start < stop and of.stop > start]
        assert turn.has_stop or family == "open"
        assert "<|im_start|>" not in rendered.text[start:stop]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_renders_a_chat_however_long(family: str, monkeypatch: pytest.MonkeyPatch):
    renderer = renderer_of(FAMILIES[family])
    for number in range(1, 4):
        renderer.render(Chat(TWO_TURNS * number))
    renders = []
    write = type(renderer._template).write
    monkeypatch.setattr(
        type(renderer._template), "write", lambda *a, **k: renders.append(1) or write(*a, **k)
    )

    rendered = renderer.render(Chat(TWO_TURNS * 60))

    assert len(renders) == 2
    assert rendered.counts["turns"] == 120


def test_a_chat_of_more_messages_than_there_are_private_characters_is_a_bad_document():
    with pytest.raises(BadChatError, match="a chat of at most 13,000 messages"):
        renderer_of(FAMILIES["chatml"]).render(Chat(TWO_TURNS * 4_000))


def holds(family: Family, kind: str, chat: Chat, rendered: Rendered) -> None:
    """Assert all that is true of every chat that a template takes."""
    text = rendered.text
    [expected], _ = render_jinja_template(
        [list(chat.messages)], tools=chat.tools, chat_template=family.template, bos_token="<s>"
    )
    assert text == expected
    words = re.findall(r"\ba\d{3}\b", text)
    assert [of for span in said(rendered) for of in re.findall(r"\b[au]\d{3}\b", span)] == words
    turns = [turn for turn in rendered.turns if turn.role == "assistant"]
    for turn in turns:
        assert turn.has_stop or turn.span[1] == len(text.rstrip())
    if chat.messages[-1]["role"] == "assistant":
        [prompt], _ = render_jinja_template(
            [list(chat.messages[:-1])], tools=chat.tools, chat_template=family.template,
            bos_token="<s>", add_generation_prompt=True,
        )  # fmt: skip
        before = text[: turns[-1].span[0]]
        if kind not in ("reasoning", "inline", "thought_call", "parallel"):
            assert prompt.partition("<think>")[0].endswith(before[-20:])


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_words_of_the_assistant_are_supervised_and_of_nobody_else(seed: int):
    for name, family in FAMILIES.items():
        remembering = renderer_of(family)
        for kind, chat in words_of_kinds(seed):
            if kind in family.without:
                continue
            rendered = remembering.render(chat)
            if kind != "text_call" or name == "reasoning":  # others get it as an object
                holds(family, kind, chat, rendered)
            fresh = renderer_of(family).render(chat)
            assert fresh == rendered, (name, kind)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_leaves_out_is_named(family: str):
    chats = dict(words_of_kinds(1))
    for kind in FAMILIES[family].without:
        with pytest.raises(BadChatError) as caught:
            renderer_of(FAMILIES[family]).render(chats[kind])
        assert re.search(r"`(tool_calls|content)` of message 1|chat template takes",
                         caught.value.problem.expected)  # fmt: skip


@pytest.mark.parametrize("arguments", [{"city": "x"}, {"days": 3}, {}])
def test_a_message_of_calls_that_a_template_leaves_out_whole_can_be_kept(arguments: dict[str, Any]):
    template = FAMILIES["chatml"].template.replace("in messages", "in messages if m.content")
    family = replace(FAMILIES["chatml"], template=template)
    messages = [user("u"), assistant("", tool_calls=[call(**arguments)]), tool("t"), assistant("a")]

    rendered = renderer_of(family, unwritten="keep").render(Chat(messages))

    assert said(rendered) == ["a<|im_end|>"]
    assert rendered.counts["unwritten"] == 1


CHANGES = ("[:2]", " | sort | join", ".split()[0]", " | length | string", " | capitalize")
PROMPTED = r"the prompt '<\|answer\|>' before message 1"


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        *(("chatml", "m.content +", f"(m.content{change}) +", None) for change in CHANGES),
        ("open", "%}<|assistant|>{%", "%}<|answer|>{%", PROMPTED),
        ("chatml", "in messages", "in messages[::-1]", "in the order of the chat"),
    ],
)
def test_a_template_that_changes_what_is_said_or_in_which_order_is_refused(
    name: str, old: str, new: str, expected: str | None
):
    family = FAMILIES[name]
    family = replace(family, template=family.template.replace(old, new))

    with pytest.raises(BadChatError, match=expected):
        renderer_of(family).render(Chat([user("cba fed"), assistant("ihg lkj"), *TWO_TURNS]))


def test_a_template_that_writes_in_capitals_keeps_its_turns():
    family = replace(
        FAMILIES["chatml"], template=CHATML.replace("m.content", "(m.content | upper)")
    )
    rendered = renderer_of(family).render(Chat(TWO_TURNS))
    assert said(rendered) == ["A<|im_end|>", "B<|im_end|>"]
