"""Documents of chats -> tokens with a loss mask, whatever the users' words spell."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tokflow.arrays import to_texts
from tokflow.documents import Batch, Spans
from tokflow.engines import Encoded, Engine, GatedEngine, InText, open_reference
from tokflow.errors import TokenizerError, four_parts
from tokflow.loss_mask import (
    CharStarts,
    TokenPlaces,
    chars_without_white_space_at_end,
    loss_mask,
)
from tokflow.special_ids import ChatMarks
from tokflow.tokenizer import Tokenizer, TokenizerConfig

FILLER = "x"
"""Stands for a special token that a message spells where two ways to encode are compared."""

Tokens = tuple[npt.NDArray[np.uint32], CharStarts]
"""Ids, and for each the code points before it."""


class ChatEncoder:
    """An engine for chats; it must be one that takes control tokens where a template writes them.

    With `special_tokens_in_text: ordinary` a special token that a message spells stays plain
    text. Documents with one, which are rare, are cut at the template's own control tokens; what
    is between them is encoded as ordinary text. What a template joins out of pieces of a message
    is its own.
    """

    def __init__(
        self, engine: Engine | GatedEngine, tokenizer: Tokenizer, config: TokenizerConfig
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._is_control = config.special_tokens_in_text == "control"
        self._places = TokenPlaces(tokenizer)
        self._references: dict[InText, Engine] = {}
        self._ids = dict(tokenizer.special_tokens)
        for token, token_id in (
            (tokenizer.eos_token, tokenizer.eos_id),
            (tokenizer.bos_token, tokenizer.bos_id),
        ):
            if token is not None and token_id is not None:  # also one that is not special
                self._ids[token] = token_id
        names = sorted(self._ids, key=lambda name: (-len(name), name))
        self._names = re.compile("|".join(map(re.escape, filter(None, names))) or r"(?!)")

    def encode(
        self, batch: Batch, name: Callable[[int], str] = "document {:,}".format
    ) -> tuple[Encoded, ChatMarks]:
        """Return the tokens of a batch with loss spans, and what is known of them.

        `name` is what an error calls a document by its index.

        Raises: TokenizerError; EngineDiffersError as the engine does.
        """
        spans = batch.loss_spans
        if spans is None:
            raise TypeError("the batch has no loss spans, so that no token is told from another")
        is_rendered = batch.spelt is not None
        in_text: InText = "control" if is_rendered or self._is_control else "ordinary"
        encoded = self._engine.encode(batch.texts)
        starts = self._places.starts(batch.texts, encoded, in_text=in_text)
        if batch.spelt is not None and len(batch.spelt.starts) and not self._is_control:
            encoded, starts = self._with_plain_spelling(batch, batch.spelt, encoded, starts, name)
        length = chars_without_white_space_at_end(batch.texts)
        last_stop = np.full(len(batch.rows), -1, dtype=np.int64)
        document_of_span = np.repeat(np.arange(len(last_stop)), np.diff(spans.offsets))
        np.maximum.at(last_stop, document_of_span, spans.stops)
        marks = ChatMarks(
            loss_mask=loss_mask(starts, encoded, spans, batch.num_chars),
            is_ended=self._is_ended(encoded, starts, length),
            is_learnt_to_its_end=last_stop >= length,
            is_rendered=is_rendered,
        )
        return encoded, marks

    def _is_ended(
        self, encoded: Encoded, starts: CharStarts, length: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Say of which documents the last token that is no white space is EOS."""
        num_tokens = np.diff(encoded.offsets)
        is_before_end = starts < np.repeat(length, num_tokens)
        counted = np.concatenate([[0], np.cumsum(is_before_end)])[encoded.offsets]
        last = encoded.offsets[:-1] + np.diff(counted) - 1
        is_ended = np.diff(counted) > 0
        is_ended[is_ended] = encoded.token_ids[last[is_ended]] == self._tokenizer.eos_id
        return is_ended

    def _with_plain_spelling(
        self,
        batch: Batch,
        spelt: Spans,
        encoded: Encoded,
        starts: CharStarts,
        name: Callable[[int], str],
    ) -> tuple[Encoded, CharStarts]:
        """Return the tokens with those documents encoded again that spell special tokens."""
        ids = [encoded.document(index) for index in range(len(batch.rows))]
        of_documents = np.split(starts, encoded.offsets[1:-1])
        for index in np.flatnonzero(np.diff(spelt.offsets)).tolist():
            text = str(batch.texts[index].as_py())
            ids[index], of_documents[index] = self._encode_cut(
                text, spelt.document(index), name(index)
            )
        offsets = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in ids], out=offsets[1:])
        return Encoded(np.concatenate(ids), offsets), np.concatenate(of_documents)

    def _encode_cut(self, text: str, spelt: Sequence[tuple[int, int]], where: str) -> Tokens:
        """Return the tokens of a text that spells special tokens at `spelt`, as plain text."""
        filled = text
        for start, stop in spelt:
            filled = filled[:start] + FILLER * (stop - start) + filled[stop:]
        cuts = [match.span() for match in self._names.finditer(filled)]
        expected = self._reference("control").encode(to_texts([filled]))
        if not np.array_equal(self._joined(filled, cuts)[0], expected.token_ids):
            raise _not_separable(where, "that encodes what is beside a control token as if alone")
        token_ids, starts = self._joined(text, cuts)
        if np.count_nonzero(np.isin(token_ids, list(self._ids.values()))) != len(cuts):
            raise _not_separable(where, "that makes no control token of plain text")
        return token_ids, starts

    def _reference(self, in_text: InText) -> Engine:
        """Return the engine for the few documents that are cut, kept for the next."""
        if in_text not in self._references:
            self._references[in_text] = open_reference(self._tokenizer, in_text=in_text)
        return self._references[in_text]

    def _joined(self, text: str, cuts: Sequence[tuple[int, int]]) -> Tokens:
        """Return the tokens of the stretches between the cuts, and the control tokens at them."""
        edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
        stretches = to_texts([text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)])
        encoded = self._reference("ordinary").encode(stretches)
        in_stretch = self._places.starts(stretches, encoded, in_text="ordinary")
        ids: list[npt.NDArray[np.uint32]] = []
        starts: list[CharStarts] = []
        for number, first in enumerate(edges[::2]):
            ids.append(encoded.document(number))
            of_stretch = slice(int(encoded.offsets[number]), int(encoded.offsets[number + 1]))
            starts.append(in_stretch[of_stretch] + first)
            if number < len(cuts):
                start, stop = cuts[number]
                ids.append(np.array([self._ids[text[start:stop]]], dtype=np.uint32))
                starts.append(np.array([start], dtype=np.int64))
        return np.concatenate(ids), np.concatenate(starts)


def _not_separable(where: str, expected: str) -> TokenizerError:
    return TokenizerError(
        four_parts(
            where=where,
            expected=f"a tokenizer {expected}, for a message spells a special token",
            found="one that does not",
            remedy="set tokenizer.special_tokens_in_text: control to let it become the control "
            "token, or error to find such documents",
        )
    )
