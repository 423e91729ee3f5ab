"""A chat template: the text it makes of messages, and what is known of the parts of that text.

Both what stands in generation blocks and which special tokens the messages spell are found by
marks, characters of private use that are put into the template or the messages and looked for in
the text.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

from tokflow.errors import ConfigError
from tokflow.pools.bounded import OverBoundError, bounded
from tokflow.tokenizers.chat.formats import BadChatError, Chat
from tokflow.tokenizers.engines.protocol import any_of
from tokflow.tokenizers.engines.transformers_ import without_advice

RENDER_SECONDS = 60.0
"""Seconds that a template may take for one chat; one of 500 turns takes milliseconds."""

TAGS = ("generation", "endgeneration")
"""They begin and end the block in which a template writes what the model is to say."""

CharSpan = tuple[int, int]

_WITH_STRINGS = ("messages", "tools")
"""Fields of a chat that hold what users wrote."""


class ChatTemplate:
    """A chat template, applied as transformers does.

    Source: transformers 5.23 `render_jinja_template`.
    """

    def __init__(self, template: str, names: Mapping[str, str]) -> None:
        """Take a template, and the special tokens by the names it has for them.

        Raises: ConfigError where it is no Jinja.
        """
        without_advice()
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render: Any = render_jinja_template
        self._template = re.sub(r"\r\n?", "\n", template)  # as Jinja does
        self._names = dict(names)
        self._tags = list(_generation_tags(self._template))
        self.has_generation = bool(self._tags)
        """True if the template marks the supervised text."""
        self._marks = self.unused_characters("", 2)
        self._marked = self._with_marks(*self._marks)

    def write(self, chat: Chat, *, add_generation_prompt: bool = False) -> str:
        """Return the text of a chat.

        Raises: ConfigError, BadChatError where the template does not take it.
        """
        return self._write(self._template, chat, add_generation_prompt)

    def generated(self, chat: Chat, text: str) -> list[CharSpan]:
        """Return where in the text of a chat the template's generation blocks are.

        Each is put between two characters that neither the messages nor the template have, and
        looked for in what the template makes of that: a block may stand in a macro or in a
        `{% set %}` block, and be written later than it is evaluated.

        Raises: BadChatError where that gives another text.
        """
        marks, marked = self._marks, self._marked
        strings = "".join(_strings_of(chat))
        if any(mark in strings for mark in marks):
            marks = self.unused_characters(strings, 2)
            marked = self._with_marks(*marks)
        written = self._write(marked, chat, False)
        spans = _between(written, *marks)
        if spans is None or re.sub(f"[{''.join(marks)}]", "", written) != text:
            raise BadChatError(
                "a chat template that writes its generation blocks as they are",
                "one that changes, cuts or measures what such a block gave",
                "put {% generation %} and {% endgeneration %} where the text is written "
                "(documents.chat_template)",
            )
        return spans

    def unused_characters(self, strings: str, count: int) -> list[str]:
        """Return private characters that neither the strings nor the template have."""
        used = {*strings, *self._template}
        private = map(chr, range(0xF0000, 0xFFFFE))
        return list(islice((mark for mark in private if mark not in used), count))

    def _with_marks(self, opening: str, closing: str) -> str:
        """Return the template with filters for generation blocks, which put marks around them.

        Jinja has no filter that puts text behind another: it is turned round for that.
        """
        marking = f"filter replace('', '{opening}', 1) | reverse"
        marking += f" | replace('', '{closing}', 1) | reverse"
        parts, end = [], 0
        for start, tag in self._tags:
            parts += [self._template[end:start], marking if tag == TAGS[0] else "endfilter"]
            end = start + len(tag)
        return "".join((*parts, self._template[end:]))

    def _write(self, template: str, chat: Chat, add_generation_prompt: bool) -> str:
        import jinja2

        try:
            with bounded(RENDER_SECONDS):
                [text], _ = self._render(
                    [list(chat.messages)],
                    tools=chat.tools,
                    chat_template=template,
                    add_generation_prompt=add_generation_prompt,
                    **{**self._names, **chat.template_kwargs},
                )
        except OverBoundError as error:
            raise BadChatError(
                "a chat template that ends, in bounded memory",
                str(error),
                "correct the template (documents.chat_template)",
            ) from None
        except jinja2.TemplateSyntaxError as error:
            raise _syntax_error(error) from error
        except ImportError:
            raise
        except Exception as error:  # whatever a template does with what it did not expect
            found = f"{type(error).__name__}: {str(error).strip()[:200]}"
            raise BadChatError("messages that the chat template takes", found) from error
        return str(text)


def _generation_tags(template: str) -> Iterator[tuple[int, str]]:
    """Yield where a template has the words of `TAGS` as tags: not in comments and raw blocks."""
    import jinja2

    lexer = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    at, is_tag = 0, False
    try:
        for _, kind, value in lexer.lex(template):
            at = template.index(value, at)  # past white space that Jinja drops
            if is_tag and kind == "name" and value in TAGS:
                yield at, value
            is_tag = kind == "block_begin" or (is_tag and kind == "whitespace")
            at += len(value)
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(error) from error


def _syntax_error(error: Any) -> ConfigError:
    return ConfigError(
        where=f"documents.chat_template: line {error.lineno}",
        expected="a Jinja template",
        found=f"{error.message}",
        remedy="correct the template",
    )


def _between(written: str, opening: str, closing: str) -> list[CharSpan] | None:
    """Return what stands between the marks, counted without them; None where one has no other.

    For "a[bc]d" with the marks [ and ] it is (1, 3).
    """
    spans, depth, start = [], 0, 0
    for index, match in enumerate(re.finditer(f"[{opening}{closing}]", written)):
        is_opening = match.group() == opening
        if is_opening and depth == 0:
            start = match.start() - index
        depth += 1 if is_opening else -1
        if depth < 0:
            return None
        if depth == 0:
            spans.append((start, match.start() - index))
    return spans if depth == 0 else None


class ChatSpelling:
    """Tells the special tokens that messages spell from those that the template writes.

    A mark is put behind every sign in the messages that special tokens are made of, as < and |
    and > of <|im_end|>; a special token with a mark in it is the messages', also where the
    template joined it or cut something out of it. Letters get no mark, so that
    templates know roles and fields: '<|' + message.role + '|>' is the template's.
    """

    def __init__(self, template: ChatTemplate, special_tokens: Iterable[str]) -> None:
        self._template = template
        names = list(special_tokens)
        self._name = any_of(names)
        self._signs = "".join(sorted({sign for name in names for sign in _signs_of(name)}))
        self._sign = re.compile(f"[{re.escape(self._signs)}]" if names else r"(?!)")

    def find(self, chat: Chat, text: str) -> list[CharSpan]:
        """Return where the text of a chat holds special tokens that they spell.

        Where a template decides by what is marked, as with `'</think>' in content`, it gives
        another text. Then only whole names are marked, and all other special tokens must be
        those that the template wrote among marked messages.

        Raises: BadChatError where that is not so.
        """
        if not self._name.search(text):
            return []
        strings = "\0".join(_strings_of(chat))
        if not self._sign.search(strings):
            return []
        [mark] = self._template.unused_characters(strings, 1)

        def in_all(string: str) -> str:
            for sign in self._signs:  # ten times as fast as str.translate
                string = string.replace(sign, sign + mark)
            return string

        def in_names(string: str) -> str:
            return self._name.sub(lambda name: in_all(name.group()), string)

        try:
            marked_text, spelt, own = self._marked(chat, in_all, mark)
        except BadChatError as error:
            raise _not_separable(error.problem.found) from error
        if marked_text == text:
            return spelt
        marked_text, spelt, own_of_names = self._marked(chat, in_names, mark)
        if marked_text != text:
            raise _not_separable("another text where special tokens that they spell are marked")
        if own_of_names != own:
            raise _not_separable("other special tokens where the signs that they have are marked")
        return spelt

    def _marked(
        self, chat: Chat, with_marks: Callable[[str], str], mark: str
    ) -> tuple[str, list[CharSpan], list[str]]:
        """Return the text of a marked chat without the marks, its special tokens with a
        character of the messages, and those that the template wrote, in their order."""
        changed = {name: _changed(getattr(chat, name), with_marks) for name in _WITH_STRINGS}
        written = self._template.write(replace(chat, **changed))
        between = written.split(mark)
        text = "".join(between)
        marked = [length - 1 for length in accumulate(map(len, between[:-1]))]
        spelt, own = [], []
        for match in self._name.finditer(text):
            first = bisect_left(marked, match.start())
            if first < len(marked) and marked[first] < match.end():
                spelt.append(match.span())
            else:
                own.append(match.group())
        return text, spelt, own


def _signs_of(name: str) -> set[str]:
    """Return what of a special token's name is no letter, digit or space, else its first letter."""
    signs = set(re.findall(r"[^\w\s]", name))
    first = {name[0], name[0].lower(), name[0].upper()}
    return signs or {letter for letter in first if len(letter) == 1}  # of the ß there is none


def _not_separable(found: str) -> BadChatError:
    return BadChatError(
        "a chat template that copies what the messages say",
        found,
        "take the special tokens, and parts of them, out of the messages",
    )


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return messages in which each string is changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_changed(item, change) for item in value]
    return value


def _strings_of(value: object) -> Iterator[str]:
    """Yield every string of a chat, names of fields too: a template may write any."""
    if isinstance(value, Chat):
        value = [getattr(value, name) for name in _WITH_STRINGS]
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings_of(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings_of(item)
