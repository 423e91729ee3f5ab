"""Documents of chats -> tokens with a loss mask, whatever the users' words spell."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from tokflow.documents import Batch
from tokflow.errors import TokenizerError
from tokflow.store.tables import to_numpy, to_texts
from tokflow.tokenizers.chat.marks import CharSpan
from tokflow.tokenizers.chat.renderer import ROLES, Renderer
from tokflow.tokenizers.engines import Encoded, Engine, InText, any_of, encoded_from_lists
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import SpecialTokensInText, Tokenizer
from tokflow.tokenizers.vocabulary import control_tokens, id_of_unknown
from tokflow.tokens.loss_mask import CharLine, CharStarts, ChatMarks, TokenChars, places_of

Tokens = tuple[npt.NDArray[np.uint32], TokenChars]
"""Ids, and the characters of each."""


class ChatEncoder:
    """An engine for chats; it must be one that takes control tokens where a template writes them.

    With `special_tokens_in_text: ordinary` a special token that a message spells stays plain
    text. Documents with one, which are rare, are cut at the template's own control tokens; what
    is between them is encoded as ordinary text. The same is done with a document that gets a
    control token for what spells none, as a tokenizer that normalises the text may give it; that
    is not among the special tokens that are counted.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        special_tokens_in_text: SpecialTokensInText,
        render: Renderer | None,
        open_plain: Callable[[], Engine] | None = None,
    ) -> None:
        """Take an engine and what renders the chats, if they are messages. `open_plain`: opens the
        engine that takes special tokens as plain text; default: the reference."""
        self._engine = engine
        self._plain = cache(open_plain or partial(open_reference, tokenizer))
        self._tokenizer = tokenizer
        self._is_control = special_tokens_in_text == "control"
        self._is_error = special_tokens_in_text == "error"
        self._places = places_of(tokenizer)
        ids = control_tokens(tokenizer)
        self._ids = render.special_tokens if render else ids
        self._by_use = self._ids.keys() - ids.keys()
        """Tokens that an engine takes wherever they stand, also of plain text."""
        self._names = any_of(self._ids)
        self._filler = _filler(self._ids)
        unknown = {id_of_unknown(tokenizer)} - {tokenizer.eos_id, tokenizer.bos_id}
        self._name_of = {id_: name for name, id_ in self._ids.items() if id_ not in unknown}

    def encode(
        self, batch: Batch, name: Callable[[int], str] = "document {:,}".format
    ) -> tuple[Encoded, ChatMarks]:
        """Return the tokens of a batch with loss spans, and what is known of them.

        `name` is what an error calls a document by its index.

        Raises: TokenizerError; EngineDiffersError as the engine does.
        """
        import pyarrow.compute as pc

        spans = batch.loss_spans
        if spans is None:
            raise TypeError("expected a batch with loss spans, found none")
        encoded, chars = self.with_chars(batch, name)
        starts = chars[:, 0]
        # Code points up to the last that is no white space; the import takes 0.06 s.
        length = to_numpy(pc.utf8_length(pc.utf8_rtrim_whitespace(batch.texts)))
        last_stop = np.full(len(batch.rows), -1, dtype=np.int64)
        document_of_span = np.repeat(np.arange(len(last_stop)), np.diff(spans.offsets))
        np.maximum.at(last_stop, document_of_span, spans.stops)
        line = CharLine(chars, encoded.offsets, batch.num_chars)
        mask = (line.span_of_tokens(spans) >= 0).astype(np.uint8)
        counts = line.num_boundary_tokens(spans, mask)[:, None]
        if batch.turns is not None:
            counts = np.hstack([counts, line.tokens_by_kind(batch.turns, len(ROLES))])
        is_before_end = starts < np.repeat(length, np.diff(encoded.offsets))
        counted = np.concatenate([[0], np.cumsum(is_before_end)])[encoded.offsets]
        last = encoded.offsets[:-1] + np.diff(counted) - 1  # that is not white space
        is_ended = np.diff(counted) > 0
        is_ended[is_ended] = encoded.token_ids[last[is_ended]] == self._tokenizer.eos_id
        marks = ChatMarks(
            loss_mask=mask,
            counts=counts,
            is_ended=is_ended,
            is_supervised_to_its_end=last_stop >= length,
            is_rendered=batch.spelt is not None,
        )
        return encoded, marks

    def with_chars(
        self, batch: Batch, name: Callable[[int], str] = "document {:,}".format
    ) -> tuple[Encoded, TokenChars]:
        """Return the tokens of a batch, and the characters of each. Raises: as `encode`."""
        in_text: InText = "control" if batch.spelt is not None or self._is_control else "ordinary"
        encoded = self._engine.encode(batch.texts)
        chars = self._places.spans(batch.texts, encoded, in_text=in_text)
        if batch.spelt is not None and not self._is_control:
            strays = self._strays(batch, encoded, chars[:, 0])
            if strays and self._is_error:
                where = name(min(strays))
                expected = "no special token in the text"
                found = "one that the tokenizer makes of other characters, which it normalises"
                remedy = (
                    "set tokenizer.special_tokens_in_text: ordinary to encode it as plain "
                    "text, or control to let it become the control token"
                )
                raise TokenizerError(where=where, expected=expected, found=found, remedy=remedy)
            spelt = {
                index: sorted([*batch.spelt.document(index), *strays.get(index, [])])
                for index in {*np.flatnonzero(np.diff(batch.spelt.offsets)).tolist(), *strays}
            }
            if spelt:
                encoded, chars = self._with_plain_spelling(batch, spelt, encoded, chars, name)
        return encoded, chars

    def _strays(
        self, batch: Batch, encoded: Encoded, starts: CharStarts
    ) -> dict[int, list[CharSpan]]:
        """Return what became a control token of each document without being spelt as one.

        A tokenizer may look for special tokens in the normalised text: with Lowercase <|IM_END|>
        is one too.
        """
        found: dict[int, list[CharSpan]] = {}
        positions = np.flatnonzero(np.isin(encoded.token_ids, list(self._name_of)))
        documents = np.searchsorted(encoded.offsets, positions, side="right") - 1
        index, text, last = -1, "", 0
        for position, document in zip(positions.tolist(), documents.tolist(), strict=True):
            if document != index:
                index, text = document, str(batch.texts[document].as_py())
                last = int(encoded.offsets[document + 1])
            start = int(starts[position])
            name = self._name_of[int(encoded.token_ids[position])]
            if text.startswith(name, start):
                continue
            after = starts[position + 1 : last]
            after = after[int(np.searchsorted(after, start, side="right")) :]
            stop = int(after[0]) if len(after) else len(text)
            if not text[start:stop].lstrip().startswith(name):  # lstrip takes white space too
                found.setdefault(document, []).append((start, stop))
        return found

    def _with_plain_spelling(
        self,
        batch: Batch,
        spelt: Mapping[int, Sequence[CharSpan]],
        encoded: Encoded,
        chars: TokenChars,
        name: Callable[[int], str],
    ) -> tuple[Encoded, TokenChars]:
        """Return the tokens with those documents encoded again that spell special tokens."""
        indices = sorted(spelt)
        texts = [str(batch.texts[index].as_py()) for index in indices]
        filled = [self._filled(text, spelt[of]) for text, of in zip(texts, indices, strict=True)]
        cuts = [[match.span() for match in self._names.finditer(text)] for text in filled]
        apart = [
            [
                (start + 1, start + 1)
                for start, stop in spelt[of]
                if text[start:stop] in self._by_use
            ]
            for text, of in zip(texts, indices, strict=True)
        ]  # so that no engine finds them
        whole = self._engine.encode(to_texts(filled)).documents()
        alone = self._joined(filled, cuts)
        plain = self._joined(texts, [sorted(two) for two in map(list.__add__, cuts, apart)])
        ids, of_documents = encoded.documents(), np.split(chars, encoded.offsets[1:-1])
        for at, index in enumerate(indices):
            if not np.array_equal(alone[at][0], whole[at]):
                found = "that encodes what is beside a control token as if alone"
                raise _not_separable(name(index), found)
            of_template = [self._ids[texts[at][start:stop]] for start, stop in cuts[at]]
            if self._num_control(plain[at][0]) != self._num_control(of_template):
                raise _not_separable(name(index), "that makes no control token of plain text")
            ids[index], of_documents[index] = plain[at]
        return encoded_from_lists(ids), np.concatenate(of_documents)

    def _num_control(self, ids: npt.ArrayLike) -> int:
        return int(np.count_nonzero(np.isin(ids, list(self._name_of))))

    def _filled(self, text: str, spelt: Sequence[CharSpan]) -> str:
        """Return a text without the special tokens that it spells, as long as it was."""
        for start, stop in spelt:
            text = text[:start] + self._filler * (stop - start) + text[stop:]
        return text

    def _joined(self, texts: Sequence[str], cuts: Sequence[Sequence[CharSpan]]) -> list[Tokens]:
        """Return for each text the tokens of what is between its cuts, encoded as plain text, and
        the control tokens at them."""
        edges = [
            np.array([0, *chain(*of_text), len(text)]).reshape(-1, 2)
            for text, of_text in zip(texts, cuts, strict=True)
        ]
        pairs = zip(texts, edges, strict=True)
        between = to_texts([text[start:stop] for text, of in pairs for start, stop in of.tolist()])
        encoded = self._plain().encode(between)
        places = self._places.spans(between, encoded, in_text="ordinary")
        found: list[Tokens] = []
        first = 0
        for text, of_text, own in zip(texts, cuts, edges, strict=True):
            offsets = encoded.offsets[first : first + len(own) + 1]
            first += len(own)
            tokens = slice(offsets[0], offsets[-1])
            chars = places[tokens] + np.repeat(own[:, 0], np.diff(offsets))[:, None]
            names = np.array(of_text, dtype=np.int64).reshape(-1, 2)
            is_token = names[:, 1] > names[:, 0]
            at = (offsets[1:-1] - offsets[0])[is_token]
            of_names = [self._ids[text[start:stop]] for start, stop in names[is_token].tolist()]
            ids = np.insert(encoded.token_ids[tokens].astype(np.uint32), at, of_names)
            found.append((ids, np.insert(chars, at, names[is_token], axis=0)))
        return found


def _filler(names: Iterable[str]) -> str:
    """Return what stands for a spelt special token where two ways to encode are compared.

    A letter that no special token has, so that none comes about.
    """
    used = set("".join(names))
    letters = (*string.ascii_lowercase, *string.ascii_uppercase, *string.digits)
    return next((letter for letter in letters[::-1] if letter not in used), "\N{BULLET}")


def _not_separable(where: str, expected: str) -> TokenizerError:
    return TokenizerError(
        where=where,
        expected=f"a tokenizer {expected}, for a message spells a special token",
        found="one that does not",
        remedy="set tokenizer.special_tokens_in_text: control to let it become the control "
        "token, or error to find such documents",
    )
