"""BOS and EOS added to the documents of a batch: never twice, and every one accounted for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import Encoded
from tokflow.tokenizers.tokenizer import Encoding


@dataclass(frozen=True, slots=True)
class ChatMarks:
    """Loss mask and endings of a batch of chats, before BOS and EOS are added."""

    loss_mask: npt.NDArray[np.uint8]
    """Shape (num_tokens,): 1 where the token is supervised."""
    is_ended: npt.NDArray[np.bool_]
    """Shape (num_documents,): True if the last token that is not white space is EOS."""
    is_supervised_to_its_end: npt.NDArray[np.bool_]
    """Shape (num_documents,): True if a loss span reaches the end, ignoring white space."""
    counts: npt.NDArray[np.int64]
    """Shape (num_documents, 1 or more): tokens without loss that reach into a loss span; where a
    chat template wrote the text, also tokens of each of `ROLES`."""
    is_rendered: bool
    """True if a chat template wrote the text: BOS and EOS can stand anywhere in it."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of a batch with BOS and EOS, documents end to end."""

    token_ids: npt.NDArray[np.unsignedinteger]
    """Shape (num_tokens,), of the tokenizer's dtype."""
    num_tokens: npt.NDArray[np.int64]
    """Shape (num_documents,)."""
    loss_mask: npt.NDArray[np.uint8] | None = None
    """Shape (num_tokens,); None where every token is supervised."""
    chat_counts: npt.NDArray[np.int64] | None = None
    """The `counts` of `ChatMarks`; None where every token is supervised."""

    def __getitem__(self, kept: slice) -> "TokenBatch":
        """Return the tokens of some documents, end to end."""
        first, num_tokens = int(self.num_tokens[: kept.start].sum()), self.num_tokens[kept]
        tokens = slice(first, first + int(num_tokens.sum()))
        mask, counts = self.loss_mask, self.chat_counts
        return TokenBatch(
            self.token_ids[tokens],
            num_tokens,
            None if mask is None else mask[tokens],
            None if counts is None else counts[kept],
        )

    @staticmethod
    def joined(batches: Sequence["TokenBatch"]) -> "TokenBatch":
        """Return the tokens of several batches of one encoding, one after another."""
        masks = [each.loss_mask for each in batches if each.loss_mask is not None]
        counts = [each.chat_counts for each in batches if each.chat_counts is not None]
        return TokenBatch(
            np.concatenate([each.token_ids for each in batches]),
            np.concatenate([each.num_tokens for each in batches]),
            np.concatenate(masks) if masks else None,
            np.concatenate(counts) if counts else None,
        )


def add_bos_eos(
    encoded: Encoded,
    encoding: Encoding,
    *,
    chat: ChatMarks | None = None,
    name: Callable[[int], str] = "document {:,}".format,
) -> TokenBatch:
    """Return the tokens of a batch with the BOS and EOS of `encoding`.

    Where texts can contain control tokens, or a chat template writes them, a document that begins
    with BOS or ends with EOS gets no second one; anywhere else such an id in a text is an error,
    so that there is one EOS per document; without `eos_of_empty` a document of no tokens has
    neither. `name`: names a document in errors, by its index. An EOS that is added to a chat is
    supervised if the text is to its end; BOS is not.

    Raises: TokenizerError; also where an id is not below vocab_size: nothing ever wraps.
    """
    sizes, ids = np.diff(encoded.offsets), (encoding.bos_id, encoding.eos_id)
    is_taken = (sizes > 0) | encoding.config.eos_of_empty
    is_added = np.stack([is_taken & (id_ is not None) for id_ in ids], axis=1)
    is_control = encoding.config.special_tokens_in_text == "control"
    can_be_in_text = is_control or (chat is not None and chat.is_rendered)
    _check_ids(encoded, encoding, name, can_be_in_text=can_be_in_text)
    if can_be_in_text:
        is_ended = _is_at(encoded, encoded.offsets[1:] - 1, encoding.eos_id)
        if encoding.bos_id == encoding.eos_id:  # one token is not both
            is_ended &= sizes > 1
        if chat is not None:
            is_ended |= chat.is_ended
        is_begun = _is_at(encoded, encoded.offsets[:-1], encoding.bos_id)
        is_added &= ~np.stack([is_begun, is_ended], axis=1)
    at = np.stack([encoded.offsets[:-1], encoded.offsets[1:]], axis=1)[is_added]
    added = np.broadcast_to([id_ or 0 for id_ in ids], is_added.shape)[is_added]
    token_ids = np.insert(encoded.token_ids.astype(encoding.tokenizer.dtype, copy=False), at, added)
    num_tokens = sizes + is_added.sum(axis=1)
    if chat is None:
        return TokenBatch(token_ids, num_tokens)
    of_eos = chat.is_supervised_to_its_end
    supervised = np.stack([np.zeros_like(of_eos), of_eos], axis=1)[is_added]
    loss_mask = np.insert(chat.loss_mask, at, supervised)
    return TokenBatch(token_ids, num_tokens, loss_mask, chat.counts)


def _check_ids(
    encoded: Encoded, encoding: Encoding, name: Callable[[int], str], *, can_be_in_text: bool
) -> None:
    """Refuse ids past the vocabulary and, unless they can be there, EOS or BOS in a text."""
    tokenizer, token_ids = encoding.tokenizer, encoded.token_ids
    if len(token_ids) and (largest := int(token_ids.max())) >= tokenizer.vocab_size:
        raise TokenizerError(
            where=f"tokenizer {tokenizer.fingerprint[:7]}",
            expected=f"ids below vocab_size {tokenizer.vocab_size:,} ({tokenizer.dtype.name})",
            found=f"id {largest:,}",
            remedy="the tokenizer's files disagree with its engine; "
            "set tokenizer.engine: reference and report it",
        )
    for role, token_id, token, what in (
        ("eos", encoding.eos_id, tokenizer.eos_token, "ends"),
        ("bos", encoding.bos_id, tokenizer.bos_token, "begins"),
    ):
        if can_be_in_text or token_id is None or not (is_it := token_ids == token_id).any():
            continue
        position = int(np.argmax(is_it))
        document = int(np.searchsorted(encoded.offsets, position, side="right")) - 1
        raise TokenizerError(
            where=name(document),
            expected=f"the {role.upper()} id {token_id:,} ({token!r}), which {what} a document, "
            "nowhere in its text",
            found=f"it as token {position - int(encoded.offsets[document]):,} of the text",
            remedy=f"set tokenizer.{role}_token to a token that occurs in no text, or "
            "tokenizer.special_tokens_in_text: control to accept it",
        )


def _is_at(
    encoded: Encoded, positions: npt.NDArray[np.int64], token_id: int | None
) -> npt.NDArray[np.bool_]:
    """Return for which documents the token at a position is `token_id`; False for empty ones."""
    is_it = (np.diff(encoded.offsets) > 0) & (token_id is not None)
    is_it[is_it] = encoded.token_ids[positions[is_it]] == token_id
    return is_it
