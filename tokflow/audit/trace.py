"""From a token of an export back to the raw file, the row and the characters it came from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.stored import Found, find_export, find_output
from tokflow.errors import ConfigError, MissingOutputError, UntrustedCodeError
from tokflow.exports import INDEX_NAME
from tokflow.exports.index import read_runs
from tokflow.split.spans import SPANS_NAME, Split
from tokflow.store.arrow import to_numpy
from tokflow.store.integrity import check_files
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.writer import DOCUMENTS_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a run of tokens of one document came from."""

    position: int
    """Of the first token in the part; in a format of sequences, row times length plus column."""
    num_tokens: int
    raw_file: str
    """The partition key: the path below the raw folder."""
    row: int
    """Ordinal of the document in the raw file."""
    token_in_text: int
    """Tokens before the first one of the text that was tokenized: the document or, where the
    split cut it, the piece."""
    char_start: int | None
    """Code points of the document before the first character that the tokens touch; None, as is
    all that needs the tokenizer, where that is not there or may not run."""
    char_stop: int | None
    """Code points of the document up to and with the last one."""
    token_ids: tuple[int, ...] | None
    """None where the store is not there that the export was made in."""
    text: str | None
    """Those characters, decoded from the document's tokens in the store."""


def trace_tokens(
    path: Path, *, part: str, start: int, stop: int, trust_remote_code: bool = False
) -> list[Origin]:
    """Return where the tokens from `start` to `stop` of a part came from, a run per document.

    Padding comes from nowhere and is left out. Characters are counted in the text that the
    tokenizer decodes: the raw text itself, unless the tokenizer normalises. BOS and EOS stand
    for no character. A token that is a piece of a character is said to have the whole of it.
    Of an export that was copied out of its store the index tells the documents, and no more. A
    tokenizer that is Python code runs only with `trust_remote_code`. The index, the tables of the
    documents' files and the tokenizer are compared with their checksums; the tokens are not, for
    that would read all of them.

    Raises: MissingOutputError where there is no export; ConfigError for a part or a position
    that the export does not have; CorruptOutputError where one of those files is damaged.
    """
    found = find_export(path)
    _check_part(found, part)
    check_files(found, only={INDEX_NAME})
    runs = read_runs(found.folder / INDEX_NAME, part, start, stop)
    if not runs:
        raise _no_token(found, part, start)
    try:
        tokenizer = found.tokenizer()
        splits = {name: found.split_of(name) for name in {run["raw_file"] for run in runs}}
    except MissingOutputError:
        tokenizer = None
    if tokenizer is None:
        return [_origin(run, start, stop) for run in runs]
    check_files(tokenizer)
    for split in splits.values():
        check_files(split, split.shard, only={SPANS_NAME, DOCUMENTS_NAME})
    decoder = _open_decoder(replace(tokenizer, trust_remote_code=trust_remote_code))
    origins = []
    for run in runs:
        split = splits[run["raw_file"]]
        piece = _piece_tokens(split, part, run)
        origin = _with_ids(_origin(run, start, stop), piece)
        origins.append(decoder.with_text(origin, piece, split, run) if decoder else origin)
    return origins


def _check_part(found: Found, part: str) -> None:
    parts = found.manifest.details["parts"]
    if part not in parts:
        raise ConfigError(
            where="--part",
            expected=f"one of {', '.join(parts)}",
            found=repr(part),
            remedy="name one of them",
        )


def _no_token(found: Found, part: str, position: int) -> ConfigError:
    counts = found.manifest.counts
    num_slots = counts[f"{part}.num_tokens"] + counts.get(f"{part}.num_padding", 0)
    return ConfigError(
        where=f"{found.name}: {part}: position {position:,}",
        expected="a token of a document",
        found="padding" if position < num_slots else f"a part of {num_slots:,} positions",
        remedy="name an earlier position",
    )


def _origin(run: dict[str, Any], start: int, stop: int) -> Origin:
    """Return what the index alone tells of the tokens between `start` and `stop`."""
    begin = max(start, run["position"])
    end = min(stop, run["position"] + run["num_tokens"])
    return Origin(
        position=begin,
        num_tokens=end - begin,
        raw_file=run["raw_file"],
        row=run["row"],
        token_in_text=run["token_in_piece"] + begin - run["position"],
        char_start=None,
        char_stop=None,
        token_ids=None,
        text=None,
    )


def sequence_range(path: Path, sequence: int) -> tuple[int, int]:
    """Return the positions of one sequence of an export.

    Raises: ConfigError for a format without sequences.
    """
    found = find_output(path)
    length = found.manifest.details.get("sequence_length")
    if length is None:
        raise ConfigError(
            where="--sequence",
            expected="an export made of sequences",
            found=f"{found.name}, a stream of tokens",
            remedy="name a token by --token",
        )
    return sequence * length, (sequence + 1) * length


def _with_ids(origin: Origin, piece: npt.NDArray[Any]) -> Origin:
    stop = origin.token_in_text + origin.num_tokens
    token_ids = piece[origin.token_in_text : stop]
    return replace(origin, token_ids=tuple(int(token_id) for token_id in token_ids))


def _open_decoder(tokenizer: Tokenizer) -> "_Decoder | None":
    """Return what decodes; None where the tokenizer is Python code that may not run."""
    try:
        return _Decoder(tokenizer)
    except UntrustedCodeError:
        return None


class _Decoder:
    """Finds the characters of tokens by decoding what comes before them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._engine: ReferenceEngine = open_reference(tokenizer)
        self._special = {tokenizer.eos_id, tokenizer.bos_id} - {None}

    def with_text(
        self, origin: Origin, piece: npt.NDArray[Any], split: Split, run: dict[str, Any]
    ) -> Origin:
        """Return the origin with the characters of its tokens, which are of the text `piece`."""
        first = origin.token_in_text
        last = first + origin.num_tokens
        inner = self._without_added(piece, split, run)
        text = self._decoded(piece[inner])
        before = piece[inner.start : min(first, inner.stop)]
        up_to = piece[inner.start : min(last, inner.stop)]
        left = self._characters_before(piece[inner], len(before), text)
        right = _shared(self._decoded(up_to), text)
        is_text = len(up_to) > len(before)
        if is_text and (right == left or len(self._decoded(up_to)) > right):
            right = min(right + 1, len(text))  # the last token is a piece of a character
        return replace(
            origin,
            char_start=run["char_start"] + left,
            char_stop=run["char_start"] + right,
            text=text[left:right],
        )

    def _without_added(
        self, piece: npt.NDArray[Any], split: Split, run: dict[str, Any]
    ) -> "slice[int, int, None]":
        """Return the tokens of the text itself, without the BOS and EOS that were put around it.

        A text may hold both itself, as chats do: what is left must be as long as the text.
        """
        begin = 1 if len(piece) and int(piece[0]) in self._special else 0
        end = len(piece)
        end -= end > begin and int(piece[-1]) in self._special
        whole = slice(begin, end, None)
        shard = split.shard
        is_control = shard.manifest.config["special_tokens_in_text"] == "control"
        if not (is_control or shard.has_loss_mask):
            return whole
        num_chars = _num_chars(split, run)
        tries = [slice(0, len(piece), None), slice(0, end, None), slice(begin, len(piece), None)]
        return next((t for t in tries if len(self._decoded(piece[t])) == num_chars), whole)

    def _characters_before(self, token_ids: npt.NDArray[Any], position: int, text: str) -> int:
        """Return how many characters of a text end before a token of it.

        A piece of a character is decoded as U+FFFD, which the text itself may have: only where
        a character ends are both sides of the cut together as long as the text.
        """
        before = self._decoded(token_ids[:position])
        shared = _shared(before, text)
        if shared < len(before) or not before.endswith("\ufffd"):
            return shared
        return shared - (shared + len(self._decoded(token_ids[position:])) > len(text))

    def _decoded(self, token_ids: npt.NDArray[Any]) -> str:
        return self._engine.decode([int(token_id) for token_id in token_ids])


def _num_chars(split: Split, run: dict[str, Any]) -> int:
    """Return the code points of the text that a run is of: a document, or a piece of a cut one."""
    table = split.shard.documents(["row", "num_chars"])
    document = int(np.searchsorted(to_numpy(table["row"]), run["row"]))
    spans = split.spans(run["part"])
    is_piece = to_numpy(spans["is_cut"]) & (to_numpy(spans["document"]) == document)
    is_piece &= to_numpy(spans["char_start"]) == run["char_start"]
    if is_piece.any():
        return int(to_numpy(spans["num_chars"])[is_piece][0])
    return int(to_numpy(table["num_chars"])[document])


def _piece_tokens(split: Split, part: str, run: dict[str, Any]) -> npt.NDArray[Any]:
    """Return all tokens of the text that the run is of: a document, or a piece of a cut one."""
    rows = to_numpy(split.shard.documents(["row"])["row"])
    document = int(np.searchsorted(rows, run["row"]))
    pieces = split.pieces(part)
    is_it = (pieces.document == document) & (pieces.char_start == run["char_start"])
    return split.token_source().take(pieces.token_start[is_it][:1], pieces.num_tokens[is_it][:1])


def _shared(left: str, right: str) -> int:
    """Return how many characters two texts have in common from their beginning."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(index for index in range(size) if left[index] != right[index])
