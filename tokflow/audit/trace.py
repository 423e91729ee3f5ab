"""Trace tokens of an export back to raw file, row and characters."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.raw_chars import RawChars
from tokflow.audit.texts import ExportTexts, TokenizedText, open_tokenizer
from tokflow.errors import ConfigError, MissingOutputError, UntrustedCodeError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.index import INDEX_SCHEMA, read_index
from tokflow.store.integrity import check_files
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import find_export
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenOrigin:
    """The document, and the characters of it, that neighbouring tokens came from."""

    position: int
    """Of the first token in the part; in a format of sequences, row times length plus column, as
    if each row were filled, also where `padding` leaves padding out of the files."""
    num_tokens: int
    raw_file: str
    """Its key: the path below the raw folder."""
    row: int
    """Ordinal of the document in the raw file."""
    token_in_text: int
    """Tokens before the first one of the text that was tokenized: the document or, where the
    split cut it, the span."""
    char_start: int | None = None
    """Code points of the document before the first character that the tokens touch; None, as is
    all that needs the tokenizer, where that is not there or may not run."""
    char_stop: int | None = None
    """Code points of the document up to and with the last one."""
    token_ids: tuple[int, ...] | None = None
    """None where the store is not there that the export was made in."""
    text: str | None = None
    """Those characters."""
    is_normalised: bool = False
    """True if characters and text are those of the text as the tokenizer normalised it, for what
    the tokens decode to is not the raw text, and that cannot be read again."""
    added: tuple[str, ...] = ()
    """`BOS` and `EOS`, where they are among the tokens: they stand for no character."""
    record: int | None = None
    """With a transform: the ordinal in the raw file of the record that the document was made of,
    in whose text, as the function returned it, characters count; None without, and where the
    store is not there."""
    kept: Mapping[str, str | None] = field(default_factory=dict)
    """The columns of the raw file that `documents.keep_columns` names."""


def trace_tokens(
    path: str | Path | StoredOutput,
    *,
    part: str,
    start: int,
    stop: int,
    trust_remote_code: bool = False,
) -> list[TokenOrigin]:
    """Return the origins of the tokens from `start` to `stop` of a part, one per document.

    Positions count each sequence as filled up to sequence_length, as `open_export` reads it.
    Padding comes from nowhere and is left out. Characters are those of the raw text: where the
    tokenizer normalised that, the raw file is read again up to the document, if it is on this disk
    where it was when the tokens were made. BOS and EOS stand for no character. A token that is less
    than a character is said to have the whole of it.
    Of an export that was copied out of its store the index tells the documents, and no more. A
    tokenizer that is Python code runs only with `trust_remote_code`. The index, the tables of the
    documents' files and the tokenizer are compared with their checksums; the tokens are not, for
    that would read all of them; nor is a large index at a URL, of which what is read comes.

    Raises: MissingOutputError where there is no export; ConfigError for a part or a position
    that the export does not have; CorruptOutputError where one of those files is damaged.
    """
    found = find_export(path)
    export = Export(found)
    export.check_part(part)
    if not found.store.is_far(found.folder / INDEX_NAME):
        check_files(found, only={INDEX_NAME})
    entries = read_index(found, part, start, stop)
    if not entries:
        raise _no_token(found.name, export, part, start)
    origins = [_origin(entry, start, stop) for entry in entries]
    ancestry = Ancestry()
    texts = ExportTexts(found, ancestry)
    try:
        of_origins = [texts.text_of(entry) for entry in entries]
    except MissingOutputError:
        return origins
    if (tokenizer := open_tokenizer(found, ancestry)) is None:
        return origins
    decoder = _Decoder(replace(tokenizer, trust_remote_code=trust_remote_code))
    # Those of a raw file in their order there, so that what is read again is read once.
    in_file_order = sorted(range(len(origins)), key=lambda n: (origins[n].raw_file, origins[n].row))
    for index in in_file_order:
        origins[index] = decoder.with_text(origins[index], of_origins[index])
    return origins


def _no_token(name: str, export: Export, part: str, position: int) -> ConfigError:
    num_positions = export.num_positions(part)
    found, remedy = f"a part of {num_positions:,} positions", "name an earlier position"
    length = export.of_part(part).sequence_length
    if length is not None and position < num_positions:
        sequence, column = divmod(position, length)
        start = sequence * length
        entries = read_index(export.stored, part, start, start + length)
        first = min(entry["position"] for entry in entries)
        last = max(entry["position"] + entry["num_tokens"] for entry in entries) - 1
        found = f"padding: column {column:,} of sequence {sequence:,}"
        remedy = (
            f"name one of {first:,} to {last:,}, its tokens (positions count each sequence as "
            f"filled up to {length:,}, also where `padding` leaves that out of the files), or the "
            f"sequence by --sequence {sequence}"
        )
    return ConfigError(
        where=f"{name}: {part}: position {position:,}",
        expected="a token of a document",
        found=found,
        remedy=remedy,
    )


def _origin(entry: dict[str, Any], start: int, stop: int) -> TokenOrigin:
    """Return what the index alone tells of the tokens between `start` and `stop`."""
    begin = max(start, entry["position"])
    end = min(stop, entry["position"] + entry["num_tokens"])
    return TokenOrigin(
        position=begin,
        num_tokens=end - begin,
        raw_file=entry["raw_file"],
        row=entry["row"],
        token_in_text=entry["token_in_piece"] + begin - entry["position"],
        kept={name: value for name, value in entry.items() if name not in INDEX_SCHEMA.names},
    )


def sequence_range(path: str | Path | StoredOutput, part: str, sequence: int) -> tuple[int, int]:
    """Return the positions of one sequence of a part of an export.

    Raises: ConfigError for a part that it does not have, and a format without sequences.
    """
    found = find_export(path)
    length = Export(found).of_part(part).sequence_length
    if length is None:
        raise ConfigError(
            where="--sequence",
            expected="an export made of sequences",
            found=f"{found.name}, a stream of tokens",
            remedy="name a token by --token",
        )
    return sequence * length, (sequence + 1) * length


class _Decoder:
    """Finds the characters of tokens by decoding what comes before them or, of a text that the
    tokenizer normalised, in the raw file."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special = {tokenizer.eos_id, tokenizer.bos_id} - {None}
        self._engine: ReferenceEngine | None = None
        """None where the tokenizer is Python code that may not run."""
        with suppress(UntrustedCodeError):
            self._engine = open_reference(tokenizer)
        self._raw = RawChars(tokenizer)

    def with_text(self, origin: TokenOrigin, text: TokenizedText) -> TokenOrigin:
        """Return the origin with its tokens, which are of `text`, and their characters."""
        first = origin.token_in_text
        last = first + origin.num_tokens
        all_ids = text.token_ids
        shown = tuple(all_ids[first:last].tolist())
        origin = replace(origin, token_ids=shown, record=text.record)
        if self._engine is None:
            return origin
        inner = self._without_added(text, all_ids)
        decoded = self._decoded(all_ids[inner])
        is_raw = self._raw.is_raw(text, decoded.encode())
        raw = None if is_raw else self._raw.find(text)
        if raw is not None:
            inner = slice(raw.first, raw.first + len(raw.chars))
            left, right = raw.between(first, last)
            decoded = raw.text
        else:
            left, right = self._characters(all_ids[inner], first - inner.start, last - inner.start)
        return replace(
            origin,
            char_start=text.char_start + left,
            char_stop=text.char_start + right,
            text=decoded[left:right],
            is_normalised=not is_raw and raw is None,
            added=(("BOS",) if first < inner.start else ())
            + (("EOS",) if last > inner.stop else ()),
        )

    def _characters(self, token_ids: npt.NDArray[Any], first: int, last: int) -> tuple[int, int]:
        """Return which characters of what all tokens decode to some of them are."""
        decoded = self._decoded(token_ids)
        num_before = max(0, min(first, len(token_ids)))
        up_to = token_ids[: max(0, last)]
        left = self._characters_before(token_ids, num_before, decoded)
        right = _shared(self._decoded(up_to), decoded)
        is_text = len(up_to) > num_before
        if is_text and (right == left or len(self._decoded(up_to)) > right):
            right = min(right + 1, len(decoded))  # the last token is less than a character
        return left, right

    def _without_added(
        self, text: TokenizedText, token_ids: npt.NDArray[Any]
    ) -> "slice[int, int, None]":
        """Return the tokens of the text itself, without the BOS and EOS that were put around it.

        A text may hold both itself, as chats do: what is left must be as long as the text. Where
        BOS and EOS are one id, and a text begins or ends with it, the tokens do not tell which of
        two is its own: the first is taken for that.
        """
        has_bos, has_eos = text.may_have_added
        end = len(token_ids)
        begin = int(has_bos and end > 0 and int(token_ids[0]) in self._special)
        end -= has_eos and end > begin and int(token_ids[-1]) in self._special
        whole = slice(begin, end, None)
        if not text.may_hold_special:
            return whole
        tries = [slice(0, len(token_ids)), slice(0, end), slice(begin, len(token_ids))]
        is_it = (t for t in tries if len(self._decoded(token_ids[t])) == text.num_chars)
        return next(is_it, whole)

    def _characters_before(self, token_ids: npt.NDArray[Any], position: int, text: str) -> int:
        """Return how many characters of a text end before a token of it.

        A token that is less than a character is decoded as U+FFFD, which the text itself may
        have: only where a character ends are both sides of the cut together as long as the text.
        """
        before = self._decoded(token_ids[:position])
        shared = _shared(before, text)
        if shared < len(before) or not before.endswith("\ufffd"):
            return shared
        return shared - (shared + len(self._decoded(token_ids[position:])) > len(text))

    def _decoded(self, token_ids: npt.NDArray[Any]) -> str:
        return "" if self._engine is None else self._engine.decode(token_ids.tolist())


def _shared(left: str, right: str) -> int:
    """Return how many characters two texts have in common from their beginning."""
    return len(os.path.commonprefix([left, right]))  # noqa: RUF071  # letters, not folders
