"""Characters of documents that tokens stand for, counted by the bytes of the tokens before them.

Nothing is decoded: the code points of a token are its bytes that begin one, so that those before
any token of a long document are a sum. Where those bytes are not the raw text, for the tokenizer
normalised it, the characters of each token are found in the raw file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.raw_chars import RawChars, RawText
from tokflow.audit.texts import ExportTexts, TokenizedText
from tokflow.errors import MissingOutputError
from tokflow.store.integrity import report_damage_on_error
from tokflow.tokenizers.tokenizer import Tokenizer

TOKENS_AT_ONCE = 2**22

MOST_SPLITS = 256
"""Splits whose tables are read for one page: some 5 ms each of a small raw file."""

RAW_BYTES = 2**30
"""Of raw files that are read again for one page."""

NO_BOS, NO_EOS, NO_SPACE, NORMALISED, EOS_FIRST = 1, 2, 4, 8, 16
"""Flags of a segment. Its first token is a BOS, its last an EOS, that was put around the text and
stands for no character; its first token of the text begins with a space that the text does not
have; characters are counted in the text that the tokenizer normalised, for the raw file cannot be
read again; its first token is the EOS of the text, which the format has before it."""

Place = tuple[int, int] | tuple[int, int, list[int]]
"""Code points of the document before a segment, and its flags; where the raw file was read again
the characters of each of its tokens but BOS and EOS, start and stop, counted from there."""


@dataclass(slots=True)
class _CountedText:
    """A text, and the characters up to the token that was asked for last."""

    text: TokenizedText
    first: int
    """Tokens before the first of the text itself: 1 behind a BOS."""
    stop: int
    """Tokens up to the last of the text itself."""
    space: int
    """1 where its first token begins with a space that the text does not have."""
    is_normalised: bool
    raw: RawText | None = None
    """Where the tokenizer normalised it, and the raw file could be read again."""
    at: int = field(init=False)
    chars: int = 0

    def __post_init__(self) -> None:
        self.at = self.first


class Characters:
    """Counts the characters of tokens in their documents."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        bytes_of: Sequence[bytes | None],
        texts: ExportTexts,
    ) -> None:
        self._texts = texts
        self._raw = RawChars(tokenizer, max_bytes=RAW_BYTES)
        self._special = {tokenizer.eos_id, tokenizer.bos_id} - {None}
        self._bytes = bytes_of
        counts = [sum(byte & 0xC0 != 0x80 for byte in token or b"") for token in bytes_of]
        self._counts = np.array(counts, dtype=np.int64)
        self._last: tuple[object, _CountedText] | None = None
        self.has_left_out = False
        """True once a text was not looked for, since its split is behind the first MOST_SPLITS."""

    def before(self, entry: Mapping[str, Any], first: int, num: int) -> Place | None:
        """Return the code points of the document before the token `first`, counted in the text
        that a row of the index is of, and the flags of the `num` tokens from there; None where the
        store does not have the text, and of the splits behind the first MOST_SPLITS."""
        if self._texts.num_splits >= MOST_SPLITS and not self._texts.is_open(entry):
            self.has_left_out = True
            return None
        try:
            self._texts.open(entry)
        except MissingOutputError:
            return None
        with report_damage_on_error(*self._texts.outputs_of(entry)):
            return self._place_of(self._counted(entry), first, num)

    def _place_of(self, counted: _CountedText, first: int, num: int) -> Place:
        text, raw = counted.text, counted.raw
        is_in = range(first, first + num)
        flags = (
            NO_BOS * (counted.first == 1 and 0 in is_in)
            | NO_EOS * (counted.stop < text.num_tokens and counted.stop in is_in)
            | NO_SPACE * (counted.space == 1 and counted.first in is_in)
            | NORMALISED * counted.is_normalised
        )
        if raw is None:
            return text.char_start + self._up_to(counted, first), flags
        start, _ = raw.between(first, first + num)
        own = slice(max(0, first - raw.first), max(0, first + num - raw.first))
        return text.char_start + start, flags, (raw.chars[own] - start).reshape(-1).tolist()

    def _counted(self, entry: Mapping[str, Any]) -> _CountedText:
        key = tuple(entry[name] for name in ("part", "raw_file", "row", "char_start"))
        if self._last is None or self._last[0] != key:
            text = self._texts.text_of(entry)
            self._last = key, self._of_text(text)
        return self._last[1]

    def _of_text(self, text: TokenizedText) -> _CountedText:
        """Return a text without the BOS and EOS that were put around it.

        A text may hold both itself, as chats do: what is left has as many characters as the text.
        """
        end = text.num_tokens
        ends = text.between(0, 1), text.between(max(end - 1, 0), end)
        first, last = (int(ids[0]) if len(ids) else None for ids in ends)
        has_bos, has_eos = text.may_have_added
        begin = int(has_bos and first in self._special)
        stop = end - int(has_eos and end > begin and last in self._special)
        tries = [(begin, stop)]
        if text.may_hold_special:
            tries = [(0, end), (0, stop), (begin, end), (begin, stop)]
        total = self._num_chars(text, 0, end)
        for inner in tries:
            chars = total - inner[0] * self._chars(first) - (end - inner[1]) * self._chars(last)
            space = int(chars == text.num_chars + 1 and self._is_space(text, inner[0]))
            if chars - space == text.num_chars and self._is_raw(text, inner, space):
                return _CountedText(text, *inner, space, is_normalised=False)
        raw = self._raw.find(text)
        if raw is None:
            return _CountedText(text, begin, stop, 0, is_normalised=True)
        inner = raw.first, raw.first + len(raw.chars)
        return _CountedText(text, *inner, 0, is_normalised=False, raw=raw)

    def _is_raw(self, text: TokenizedText, inner: tuple[int, int], space: int) -> bool:
        token_ids = text.between(*inner).tolist()
        decoded = b"".join([self._bytes[token_id] or b"" for token_id in token_ids])
        return self._raw.is_raw(text, decoded[space:])

    def _is_space(self, text: TokenizedText, index: int) -> bool:
        token_id = int(text.between(index, index + 1)[0])
        return (self._bytes[token_id] or b"").startswith(b" ")

    def _chars(self, token_id: int | None) -> int:
        return 0 if token_id is None else int(self._counts[token_id])

    def _up_to(self, counted: _CountedText, token: int) -> int:
        """Return the characters of the text before a token."""
        token = min(token, counted.stop)
        if token < counted.at:
            counted.at, counted.chars = counted.first, 0
        if token > counted.at:
            counted.chars += self._num_chars(counted.text, counted.at, token)
            counted.at = token
        return counted.chars - counted.space * (token > counted.first)

    def _num_chars(self, text: TokenizedText, start: int, stop: int) -> int:
        return sum(
            int(self._counts[text.between(at, min(at + TOKENS_AT_ONCE, stop))].sum())
            for at in range(start, stop, TOKENS_AT_ONCE)
        )


def is_text_of(bytes_of: Sequence[bytes | None], token_ids: npt.NDArray[Any], decoded: str) -> bool:
    """Return whether the bytes of some tokens are the text that the tokenizer decodes them to, but
    for a space before it and for U+FFFD, by which libraries show some or each byte of half a
    character."""
    token_bytes = b"".join(bytes_of[token_id] or b"" for token_id in token_ids.tolist())
    text, decoded = (
        of.replace("\ufffd", "") for of in (token_bytes.decode(errors="replace"), decoded)
    )
    return decoded in (text, text.removeprefix(" "))
