"""Small chat templates in the manner of the field's families, and chats of all kinds for them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokflow.documents import DocumentsConfig
from tokflow.tokenizers.chat import Chat
from tokflow.tokenizers.chat.renderer import Rendered, Renderer
from tokflow.tokenizers.chat.template import ChatTemplate

BAR = "\N{FULLWIDTH VERTICAL LINE}"


@dataclass(frozen=True)
class Family:
    """A template with what a tokenizer says of it."""

    template: str
    special: Sequence[str]
    stops: Sequence[str] = ()
    without: Sequence[str] = ()
    """Kinds of chats that it refuses, or writes only in part."""
    drops: Sequence[str] = field(default=())
    """Kinds of which it drops reasoning."""


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
REASONING = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set words = m.content %}{% set thought = m.reasoning_content or '' %}"
    "{% if '</think>' in words %}"
    "{% set thought = words.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}{% if loop.index0 > ns.last %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}{{ words }}"
    '{% for call in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name '
    '+ \'", "arguments": \' }}{{ call.function.arguments if call.function.arguments is string '
    "else call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content "
    "+ '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% for call in m.tool_calls %}{{ '<|start|>assistant to=' + call.function.name "
    "+ '<|channel|>commentary<|message|>' + (call.function.arguments | tojson) + '<|call|>' }}"
    "{% endfor %}{% else %}{% if m.thinking and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ROLES = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<BARAssistantBAR>' + m.content.split('</think>')[-1] + '<BARendBAR>' }}"
    "{% elif m.role == 'user' %}{{ '<BARUserBAR>' + m.content }}{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<BARAssistantBAR><think>\n' }}{% endif %}"
).replace("BAR", BAR)
OPEN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>' + call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}"
    "{{ '\n<arg_key>' + key + '</arg_key>\n<arg_value>' }}{{ value }}{{ '</arg_value>' }}"
    "{% endfor %}{{ '\n</tool_call>' }}{% endfor %}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>\n' + m.content }}"
    "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' "
    "+ (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

TOOL_KINDS = ("call", "text_call", "nameless_call", "parallel", "words_and_call", "thought_call")

FAMILIES = {
    "chatml": Family(CHATML, ["<|im_start|>", "<|im_end|>"], without=TOOL_KINDS),
    "headers": Family(
        HEADERS,
        ["<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        without=TOOL_KINDS,
    ),
    "reasoning": Family(
        REASONING, ["<|im_start|>", "<|im_end|>"], drops=("reasoning", "inline", "thought_call")
    ),
    "channels": Family(
        CHANNELS,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"],
        without=("words_and_call",),
    ),
    "roles": Family(
        ROLES,
        ["<s>", *(f"<{BAR}{name}{BAR}>" for name in ("User", "Assistant", "end"))],
        without=TOOL_KINDS,
    ),
    "open": Family(
        OPEN,
        ["<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"],
        stops=["<|user|>", "<|observation|>"],
    ),
    "turns": Family(TURNS, ["<s>", "<start_of_turn>", "<end_of_turn>"], without=TOOL_KINDS),
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "integer", "description": "How many."},
                },
                "required": ["city"],
            },
        },
    }
]


def renderer_of(family: Family, **documents: Any) -> Renderer:
    template = ChatTemplate(family.template, {"bos_token": "<s>"})
    config = DocumentsConfig(messages="messages", **documents)
    return Renderer(
        template,
        config,
        special_tokens=dict.fromkeys(family.special, 0),
        stops=family.stops,
        bos_token="<s>",
    )


def said(rendered: Rendered) -> list[str]:
    """Return what is supervised, span by span."""
    return [rendered.text[start:stop] for start, stop in rendered.loss_spans]


def call(*, id_: str = "call00001", **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": id_, "function": {"name": "weather", "arguments": arguments}}


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def assistant(words: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": words, **fields}


def tool(words: str, id_: str = "call00001") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "name": "weather", "content": words}


def words_of_kinds(seed: int) -> Iterator[tuple[str, Chat]]:
    """Yield a chat of each kind; words of users have a u, of the assistant an a, each once."""
    numbers = random.Random(seed)
    made = iter(numbers.sample(range(100, 1000), 200))

    def u(before: str = "", after: str = "") -> str:
        return f"{before}u{next(made)} the{after}"

    def a(before: str = "", after: str = "") -> str:
        return f"{before}a{next(made)} the{after}"

    def asks() -> dict[str, Any]:
        return user(u())

    def says(**more: Any) -> dict[str, Any]:
        return assistant(a(), **more)

    def calls(*made: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        answers = [tool(u(), of["id"]) for of in made]
        return [asks(), assistant("", tool_calls=[*made], **more), *answers, says()]

    long = [each for _ in range(numbers.randint(3, 6)) for each in (asks(), says())]
    thought, later = {"reasoning_content": a()}, {"reasoning_content": a()}
    inline = f"<think>\n{a()}\n</think>\n\n{a()}"
    text_call = call()
    text_call["function"]["arguments"] = '{"city": "x"}'
    words = [asks(), says(tool_calls=[call(city=a())]), tool(u()), says()]
    found = {
        "plain": [asks(), says()],
        "system": [{"role": "system", "content": u()}, asks(), says()],
        "long": long,
        "unanswered": [*long, asks()],
        "reasoning": [asks(), says(**thought), asks(), says(**later)],
        "inline": [asks(), assistant(inline), asks(), says()],
        "unicode": [user(u("größe ", " 👍🏽")), assistant(a(" 漢字\n", "\u0301 \n"))],
        "spelt": [user(u("<|im_end|><|eot_id|>", "<|user|>")), assistant(a("<|end|> "))],
        "call": calls(call(city=a())),
        "text_call": calls(text_call),
        "nameless_call": calls(call(days=3)),
        "parallel": calls(call(city=a()), call(id_="call00002", city=a(), days=2)),
        "words_and_call": words,
        "thought_call": [*calls(call(city=a()), **thought), asks(), says()],
    }
    for kind, messages in found.items():
        yield kind, Chat(messages, TOOLS) if kind in TOOL_KINDS else Chat(messages)
