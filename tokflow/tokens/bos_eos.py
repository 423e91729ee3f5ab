"""BOS and EOS around the documents of a batch: never twice, and every one accounted for."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import Encoded
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig

LONG_DOCUMENT = 500
"""Tokens from which on copying document by document is faster than by a mask. 27 million ids in
batches of a million: documents of 6,500 ids take 16 ms and by a mask 36, of 50 ids 430 and 41."""


@dataclass(frozen=True, slots=True)
class ChatMarks:
    """What is known of the tokens of a batch of chats, before BOS and EOS are added."""

    loss_mask: npt.NDArray[np.uint8]
    """Shape (num_tokens,): 1 where the token is learnt."""
    is_ended: npt.NDArray[np.bool_]
    """Shape (num_documents,): the last token that is no white space is EOS."""
    is_learnt_to_its_end: npt.NDArray[np.bool_]
    """Shape (num_documents,): a loss span reaches the end, but for white space."""
    is_rendered: bool
    """A chat template wrote the text, and may write BOS and EOS anywhere."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The tokens of a batch with BOS and EOS, documents end to end."""

    token_ids: npt.NDArray[np.unsignedinteger]
    """Shape (num_tokens,), of the tokenizer's dtype."""
    num_tokens: npt.NDArray[np.int64]
    """Shape (num_documents,)."""
    num_eos: int
    """Ids that are EOS; 0 where documents do not end with it."""
    loss_mask: npt.NDArray[np.uint8] | None = None
    """Shape (num_tokens,); None where every token counts."""


def with_special_ids(
    encoded: Encoded,
    config: TokenizerConfig,
    tokenizer: Tokenizer,
    *,
    chat: ChatMarks | None = None,
    name: Callable[[int], str] = "document {:,}".format,
) -> Finished:
    """Return the tokens of a batch with BOS and EOS where `config` wants them.

    Where texts may spell control tokens, or a chat template writes them, a document that begins
    with BOS or ends with EOS gets no second one; anywhere else such an id in a text is an error,
    so that there is one EOS per document. `name` is what the error calls a document by its index.

    An EOS that is added to a chat is learnt if the text is to its end; BOS is not.

    Raises: TokenizerError; also where an id is not below vocab_size: nothing ever wraps.
    """
    _check_range(encoded, tokenizer)
    bos_id = tokenizer.bos_id if config.bos == "first" else None
    eos_id = tokenizer.eos_id if config.eos == "last" else None
    num_documents = len(encoded.offsets) - 1
    needs_bos = np.full(num_documents, bos_id is not None)
    needs_eos = np.full(num_documents, eos_id is not None)
    may_be_in_text = config.special_tokens_in_text == "control" or (
        chat is not None and chat.is_rendered
    )
    if may_be_in_text:
        needs_bos &= ~_is_at(encoded, encoded.offsets[:-1], bos_id)
        is_ended = _is_at(encoded, encoded.offsets[1:] - 1, eos_id)
        if bos_id == eos_id:  # one token is not both
            is_ended &= np.diff(encoded.offsets) > 1
        needs_eos &= ~is_ended
        if chat is not None:
            needs_eos &= ~chat.is_ended
    places = _Places(encoded.offsets, needs_bos, needs_eos)
    token_ids = places.spread(encoded.token_ids, tokenizer.dtype, bos=bos_id, eos=eos_id)
    num_eos = 0 if eos_id is None else int(np.count_nonzero(token_ids == eos_id))
    if not may_be_in_text:
        if eos_id is not None and num_eos != num_documents * eos_per_document(config, tokenizer):
            raise _in_text_error("eos", encoded, eos_id, tokenizer, name)
        if bos_id not in (None, eos_id) and np.count_nonzero(token_ids == bos_id) != num_documents:
            raise _in_text_error("bos", encoded, bos_id, tokenizer, name)
    loss_mask = None
    if chat is not None:
        is_learnt = chat.is_learnt_to_its_end[needs_eos]
        loss_mask = places.spread(chat.loss_mask, np.dtype(np.uint8), bos=0, eos=is_learnt)
    return Finished(token_ids, places.num_tokens, num_eos, loss_mask)


def eos_per_document(config: TokenizerConfig, tokenizer: Tokenizer) -> int:
    """Return how many ids around a document are EOS: two where BOS has the same id."""
    if config.eos != "last":
        return 0
    return 2 if config.bos == "first" and tokenizer.bos_id == tokenizer.eos_id else 1


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


def _is_at(
    encoded: Encoded, positions: npt.NDArray[np.int64], token_id: int | None
) -> npt.NDArray[np.bool_]:
    """Say of which documents the token at a position is `token_id`; of empty ones it is not."""
    is_it = np.diff(encoded.offsets) > 0
    is_it[is_it] = (
        encoded.token_ids[positions[is_it]] == token_id if token_id is not None else False
    )
    return is_it


class _Places:
    """Where the tokens of documents stand once BOS and EOS are among them."""

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        needs_bos: npt.NDArray[np.bool_],
        needs_eos: npt.NDArray[np.bool_],
    ) -> None:
        self._offsets = offsets
        self.num_tokens: npt.NDArray[np.int64] = np.diff(offsets) + needs_bos + needs_eos
        ends = np.cumsum(self.num_tokens)
        self._eos = ends[needs_eos] - 1
        self._bos = (ends - self.num_tokens)[needs_bos]
        self._starts = ends - self.num_tokens + needs_bos

    def spread(self, values: npt.NDArray[Any], dtype: np.dtype[Any], *, bos: Any, eos: Any) -> Any:
        """Return one value per token, as `dtype`, with those of BOS and EOS in between."""
        num_added = len(self._bos) + len(self._eos)
        if not num_added:
            return values.astype(dtype)
        out = np.empty(len(values) + num_added, dtype=dtype)
        if len(values) > LONG_DOCUMENT * len(self._starts):
            starts = self._starts.tolist()
            for start, (first, last) in zip(starts, pairwise(self._offsets.tolist()), strict=True):
                out[start : start + last - first] = values[first:last]
        else:
            is_text = np.ones(len(out), dtype=bool)
            is_text[self._eos] = False
            is_text[self._bos] = False
            out[is_text] = values
        if len(self._eos):
            out[self._eos] = eos
        if len(self._bos):
            out[self._bos] = bos
        return out


def _in_text_error(
    role: Literal["eos", "bos"],
    encoded: Encoded,
    token_id: int,
    tokenizer: Tokenizer,
    name: Callable[[int], str],
) -> TokenizerError:
    position = int(np.argmax(encoded.token_ids == token_id))
    document = int(np.searchsorted(encoded.offsets, position, side="right")) - 1
    token = tokenizer.eos_token if role == "eos" else tokenizer.bos_token
    what = "ends" if role == "eos" else "begins"
    return TokenizerError(
        where=name(document),
        expected=f"the {role.upper()} id {token_id:,} ({token!r}), which {what} a document, "
        "nowhere in its text",
        found=f"it as token {position - int(encoded.offsets[document]):,} of the text",
        remedy=f"set tokenizer.{role}_token to a token that no text spells, or "
        "tokenizer.special_tokens_in_text: control to accept it",
    )
