"""BOS and EOS added to the documents of a batch: never twice, and every one accounted for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import Encoded
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True, slots=True)
class ChatMarks:
    """Loss mask and endings of a batch of chats, before BOS and EOS are added."""

    loss_mask: npt.NDArray[np.uint8]
    """Shape (num_tokens,): 1 where the token is supervised."""
    is_ended: npt.NDArray[np.bool_]
    """Shape (num_documents,): the last token that is no white space is EOS."""
    is_supervised_to_its_end: npt.NDArray[np.bool_]
    """Shape (num_documents,): a loss span reaches the end, but for white space."""
    has_boundary_token: npt.NDArray[np.bool_]
    """Shape (num_documents,): a token that is not supervised reaches into a loss span."""
    is_rendered: bool
    """A chat template wrote the text, and may write BOS and EOS anywhere."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of a batch with BOS and EOS, documents end to end."""

    token_ids: npt.NDArray[np.unsignedinteger]
    """Shape (num_tokens,), of the tokenizer's dtype."""
    num_tokens: npt.NDArray[np.int64]
    """Shape (num_documents,)."""
    num_eos: int
    """Ids that are EOS; 0 where documents do not end with it."""
    loss_mask: npt.NDArray[np.uint8] | None = None
    """Shape (num_tokens,); None where every token is supervised."""
    eos_id: int | None = None
    """The id that `num_eos` counts."""
    has_boundary_token: npt.NDArray[np.bool_] | None = None
    """Shape (num_documents,), as in `ChatMarks`; None where every token is supervised."""

    def __getitem__(self, kept: slice) -> "TokenBatch":
        """Return the tokens of some documents, end to end."""
        first, num_tokens = int(self.num_tokens[: kept.start].sum()), self.num_tokens[kept]
        tokens = slice(first, first + int(num_tokens.sum()))
        token_ids, mask = self.token_ids[tokens], self.loss_mask
        has_boundary = self.has_boundary_token
        return TokenBatch(
            token_ids,
            num_tokens,
            _count(token_ids, self.eos_id),
            None if mask is None else mask[tokens],
            self.eos_id,
            None if has_boundary is None else has_boundary[kept],
        )

    @staticmethod
    def joined(batches: Sequence["TokenBatch"]) -> "TokenBatch":
        """Return the tokens of several batches of one encoding, one after another."""
        masks = [some.loss_mask for some in batches if some.loss_mask is not None]
        boundary = [of.has_boundary_token for of in batches if of.has_boundary_token is not None]
        return TokenBatch(
            np.concatenate([some.token_ids for some in batches]),
            np.concatenate([some.num_tokens for some in batches]),
            sum(some.num_eos for some in batches),
            np.concatenate(masks) if masks else None,
            batches[0].eos_id,
            np.concatenate(boundary) if boundary else None,
        )


def add_bos_eos(
    encoded: Encoded,
    encoding: Encoding,
    *,
    chat: ChatMarks | None = None,
    name: Callable[[int], str] = "document {:,}".format,
) -> TokenBatch:
    """Return the tokens of a batch with the BOS and EOS of `encoding`.

    Where texts may spell control tokens, or a chat template writes them, a document that begins
    with BOS or ends with EOS gets no second one; anywhere else such an id in a text is an error,
    so that there is one EOS per document; without `eos_of_empty` one of no tokens has neither.
    `name` is what the error calls a document by its index. An EOS that is added to a chat is
    supervised if the text is to its end; BOS is not.

    Raises: TokenizerError; also where an id is not below vocab_size: nothing ever wraps.
    """
    tokenizer, bos_id, eos_id = encoding.tokenizer, encoding.bos_id, encoding.eos_id
    _check_range(encoded, tokenizer)
    is_control = encoding.config.special_tokens_in_text == "control"
    may_be_in_text = is_control or (chat is not None and chat.is_rendered)
    is_taken = (np.diff(encoded.offsets) > 0) | encoding.config.eos_of_empty
    needs_bos, needs_eos = (is_taken & (id_ is not None) for id_ in (bos_id, eos_id))
    if may_be_in_text:
        needs_bos &= ~_is_at(encoded, encoded.offsets[:-1], bos_id)
        needs_eos &= ~_is_ended(encoded, encoding, chat)
    needs = needs_bos, needs_eos
    token_ids = _spread(encoded.token_ids, encoded.offsets, *needs, tokenizer.dtype, bos_id, eos_id)
    num_eos, num_bos = _count(token_ids, eos_id), _count(token_ids, bos_id)
    is_same = bos_id == eos_id
    eos_in_text = num_eos - int(needs_eos.sum() + needs_bos.sum() * is_same)
    bos_in_text = num_bos - int(needs_bos.sum() + needs_eos.sum() * is_same)
    if not may_be_in_text and (eos_in_text or bos_in_text):
        raise _in_text_error("eos" if eos_in_text else "bos", encoded, encoding, name)
    loss_mask = None
    if chat is not None:
        of_eos = chat.is_supervised_to_its_end[needs_eos]
        loss_mask = _spread(chat.loss_mask, encoded.offsets, *needs, np.dtype(np.uint8), 0, of_eos)
    num_tokens = np.diff(encoded.offsets) + needs_bos + needs_eos
    has_boundary = None if chat is None else chat.has_boundary_token
    return TokenBatch(token_ids, num_tokens, num_eos, loss_mask, eos_id, has_boundary)


def _check_range(encoded: Encoded, tokenizer: Tokenizer) -> None:
    token_ids = encoded.token_ids
    if len(token_ids) and (largest := int(token_ids.max())) >= tokenizer.vocab_size:
        raise TokenizerError(
            where=f"tokenizer {tokenizer.fingerprint[:7]}",
            expected=f"ids below vocab_size {tokenizer.vocab_size:,} ({tokenizer.dtype.name})",
            found=f"id {largest:,}",
            remedy="the tokenizer's files disagree with its engine; "
            "set tokenizer.engine: reference and report it",
        )


def _is_ended(
    encoded: Encoded, encoding: Encoding, chat: ChatMarks | None
) -> npt.NDArray[np.bool_]:
    """Return which documents end with EOS as they are."""
    is_ended = _is_at(encoded, encoded.offsets[1:] - 1, encoding.eos_id)
    if encoding.bos_id == encoding.eos_id:  # one token is not both
        is_ended &= np.diff(encoded.offsets) > 1
    return is_ended if chat is None else is_ended | chat.is_ended


def _is_at(
    encoded: Encoded, positions: npt.NDArray[np.int64], token_id: int | None
) -> npt.NDArray[np.bool_]:
    """Return for which documents the token at a position is `token_id`; of empty ones it is not."""
    is_it = np.diff(encoded.offsets) > 0
    is_it[is_it] = (
        encoded.token_ids[positions[is_it]] == token_id if token_id is not None else False
    )
    return is_it


def _spread(
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    needs_bos: npt.NDArray[np.bool_],
    needs_eos: npt.NDArray[np.bool_],
    dtype: np.dtype[Any],
    of_bos: Any,
    of_eos: Any,
) -> npt.NDArray[Any]:
    """Return one value per token, as `dtype`, with those of BOS and EOS in between."""
    num_tokens = np.diff(offsets) + needs_bos + needs_eos
    ends = np.cumsum(num_tokens)
    bos, eos = (ends - num_tokens)[needs_bos], ends[needs_eos] - 1
    if not len(bos) and not len(eos):
        return values.astype(dtype)
    out = np.empty(len(values) + len(bos) + len(eos), dtype=dtype)
    is_text = np.ones(len(out), dtype=bool)
    is_text[eos] = False
    is_text[bos] = False
    out[is_text] = values
    if len(eos):
        out[eos] = of_eos
    if len(bos):
        out[bos] = of_bos
    return out


def _count(token_ids: npt.NDArray[np.unsignedinteger], token_id: int | None) -> int:
    return 0 if token_id is None else int(np.count_nonzero(token_ids == token_id))


def _in_text_error(
    role: str, encoded: Encoded, encoding: Encoding, name: Callable[[int], str]
) -> TokenizerError:
    tokenizer = encoding.tokenizer
    token_id, token, what = (
        (encoding.eos_id, tokenizer.eos_token, "ends")
        if role == "eos"
        else (encoding.bos_id, tokenizer.bos_token, "begins")
    )
    position = int(np.argmax(encoded.token_ids == token_id))
    document = int(np.searchsorted(encoded.offsets, position, side="right")) - 1
    return TokenizerError(
        where=name(document),
        expected=f"the {role.upper()} id {token_id:,} ({token!r}), which {what} a document, "
        "nowhere in its text",
        found=f"it as token {position - int(encoded.offsets[document]):,} of the text",
        remedy=f"set tokenizer.{role}_token to a token that no text spells, or "
        "tokenizer.special_tokens_in_text: control to accept it",
    )
