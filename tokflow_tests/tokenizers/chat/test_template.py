"""Generation blocks wherever they stand, and what is none."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.marks import Marker
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow_tests.chats import MARKED, chat, chat_dataset
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import tokenize

TURN = (
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
)
ELSEWHERE = {
    "macro": "{% macro turn(m) %}" + TURN + "{{ '\n' }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "set": "{% for m in messages %}{% set turn %}" + TURN + "{% endset %}"
    "{{ turn }}{{ '\n' }}{% endfor %}",
    "filter": "{% filter replace('unheard', 'of') %}" + MARKED + "{% endfilter %}",
    "written later": "{% set ns = namespace(all='') %}{% for m in messages %}{% set turn %}"
    + TURN
    + "{% endset %}{% set ns.all = ns.all + turn + '\n' %}{% endfor %}{{ ns.all }}",
}


@pytest.mark.parametrize("template", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_generation_block_that_is_written_later_is_supervised_where_it_is_written(
    template: str, tmp_path: Path
):
    assert documents_of(tokenize(chat_dataset(tmp_path, template=template))) == documents_of(
        tokenize(chat_dataset(tmp_path / "plain", template=MARKED))
    )


def supervised(template: str, messages: Any = None, **names: str) -> list[str]:
    made, given = ChatTemplate(template, names), Chat(messages or chat("ab", "cd"))
    text = made.write(given)
    return [text[a:b] for a, b in Marker(made, []).mark(given, text).taken.blocks]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\n  {%- generation -%}  \n b {%- endgeneration %}\nc\n\n", ["b"]),
        ("a\r\n  {% generation %}\r\n b\r\n  {% endgeneration %}\r\nc", [" b\n"]),
        ("x {%+ generation %} b {%+ endgeneration +%}\nc", [" b "]),
        ("{% generation %}{% endgeneration %}x{% generation %}y{% endgeneration %}", ["", "y"]),
        ("{% set generation = 'no' %}{% generation %}{{ generation }}{% endgeneration %}", ["no"]),
        ("{% raw %}{% generation %}{% endraw %}-{% generation %}b{% endgeneration %}", ["b"]),
        ("{{ '{% generation %}' }}-{% generation %}b{% endgeneration %}", ["b"]),
        ("{# {% generation %} #}-{% generation %}b{% endgeneration %}", ["b"]),
    ],
)
def test_white_space_and_other_uses_of_the_word_change_no_block(template: str, expected: list[str]):
    assert supervised(template) == expected


def test_messages_may_hold_the_marks():
    marks = "\U000f0000\U000f0001\U000f0002"

    assert supervised(MARKED, chat(marks, marks[::-1]), eos_token="!") == [marks[::-1] + "!"]


@pytest.mark.parametrize(
    "template",
    [
        "{% set a %}{% generation %} b {% endgeneration %}{% endset %}{{ a | trim }}",
        "{% set a %}{% generation %}b{% endgeneration %}{% endset %}{{ a | length }}",
        "{% set a %}{% generation %}b{% endgeneration %}{% endset %}{{ a[:-1] }}",
        "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}",
    ],
)
def test_a_block_that_the_template_goes_on_to_change_is_a_bad_chat(template: str):
    with pytest.raises(BadChatError, match="one that changes, cuts or measures"):
        supervised(template)


def test_generation_blocks_are_supervised_whatever_the_role_is_called(tmp_path: Path):
    chats = [[{"role": "human", "content": "a", "lang": "en"}, {"role": "gpt", "content": "b"}]]
    template = MARKED.replace("== 'assistant'", "== 'gpt'")

    shard = tokenize(chat_dataset(tmp_path, chats, template=template))

    [(_, mask)] = documents_of(shard)
    assert sum(mask) == 2
    assert shard.manifest.counts["num_dropped_reasoning"] == 0
