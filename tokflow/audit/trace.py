"""Trace tokens of an export back to raw file, row and characters."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokflow.audit.ancestry import Ancestry, open_tokenizer
from tokflow.audit.characters import Characters
from tokflow.audit.texts import ExportTexts, Texts, TokenizedText
from tokflow.errors import ConfigError, MissingOutputError, UntrustedCodeError
from tokflow.exports import Export
from tokflow.exports.index import INDEX_SCHEMA
from tokflow.exports.reading import find_export, is_export
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import token_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenOrigin:
    """The document, and the characters of it, that neighbouring tokens came from."""

    position: int
    """Position of the first token in the part; in a format of sequences, row times length plus
    column, as if each row were filled, also where `padding` leaves padding out of the files."""
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
    """The characters between char_start and char_stop."""
    is_normalised: bool = False
    """True if characters and text are those of the text as the tokenizer normalised it, for what
    the tokens decode to is not the raw text, and that cannot be read again."""
    added: tuple[str, ...] = ()
    """`BOS` and `EOS`, where they are among the tokens: they stand for no character."""
    record: int | None = None
    """Ordinal in the raw file of the record that a transform made the document of, in whose text,
    as the function returned it, characters count; None without a transform or the store."""
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
    than a character counts as the whole of it.
    For an export that was copied out of its store only the documents are known, by its index. A
    tokenizer that is Python code runs only with `trust_remote_code`. The index, the tables of the
    documents' files and the tokenizer are compared with their checksums; the tokens are not, for
    that would read all of them; nor is a large index at a URL, of which what is read comes.

    Raises: MissingOutputError where there is no export; ConfigError for a part or a position
    that the export does not have; CorruptOutputError where one of those files is damaged.
    """
    tracer = Tracer(find_export(path), trust_remote_code=trust_remote_code)
    [origins] = tracer.origins(part, [(start, stop)])
    if not origins:
        raise _no_token(tracer.stored.name, Export(tracer.stored), part, start)
    return origins


class Tracer:
    """Finds the origins of tokens of an export, or of a token store, as `trace_tokens` does; what
    many tokens need of it is opened once."""

    def __init__(self, stored: StoredOutput, *, trust_remote_code: bool = False) -> None:
        self.stored, self._trust = stored, trust_remote_code
        self._ancestry = Ancestry()
        self._texts: ExportTexts | Texts = (
            ExportTexts(stored, self._ancestry)
            if is_export(stored.manifest)
            else Texts(self._ancestry.shard(stored))
        )

    def origins(
        self, part: str | None, spans: Sequence[tuple[int, int]]
    ) -> list[list[TokenOrigin]]:
        """Return the origins of the tokens from one position to another, of several such spans;
        part: None of a token store. Raises: as `trace_tokens`."""
        of_spans = self._texts.entries(part, spans)
        origins = [
            _origin(entry, *span)
            for span, entries in zip(spans, of_spans, strict=True)
            for entry in entries
        ]
        self._add_texts(origins, [entry for entries in of_spans for entry in entries])
        found = iter(origins)
        return [[next(found) for _ in entries] for entries in of_spans]

    def _add_texts(self, origins: list[TokenOrigin], entries: Sequence[Mapping[str, Any]]) -> None:
        """Replace origins by those with tokens and characters, as far as the store has them."""
        try:
            texts = [self._texts.text_of(entry) for entry in entries]
        except MissingOutputError:
            return
        if self._tokenizer is None:
            return
        # Those of a raw file in their order there, so that what is read again is read once.
        for index in sorted(
            range(len(origins)), key=lambda n: (origins[n].raw_file, origins[n].row)
        ):
            with (
                suppress(MissingOutputError),  # of tokens that were dropped, and are elsewhere
                report_damage_on_error(*self._texts.outputs_of(entries[index])),
            ):
                origins[index] = _with_text(origins[index], texts[index], self._characters)

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return open_tokenizer(self.stored, self._ancestry)

    @cached_property
    def _characters(self) -> Characters | None:
        """None where the tokenizer is Python code that may not run."""
        tokenizer = replace(cast(Tokenizer, self._tokenizer), trust_remote_code=self._trust)
        with suppress(UntrustedCodeError):
            return Characters(tokenizer, open_reference(tokenizer), token_bytes(tokenizer))
        return None


def _with_text(
    origin: TokenOrigin, text: TokenizedText, characters: Characters | None
) -> TokenOrigin:
    """Return the origin with its tokens, which are of `text`, and their characters; without these
    where the tokenizer is Python code that may not run."""
    first, last = origin.token_in_text, origin.token_in_text + origin.num_tokens
    token_ids = tuple(text.between(first, last).tolist())
    origin = replace(origin, token_ids=token_ids, record=text.record)
    if characters is None:
        return origin
    found = characters.of(text)
    left, right = characters.between(found, first, last)
    return replace(
        origin,
        char_start=text.char_start + left,
        char_stop=text.char_start + right,
        text=characters.shown(found)[left:right],
        is_normalised=found.is_normalised,
        added=(("BOS",) if first < found.first else ()) + (("EOS",) if last > found.stop else ()),
    )


def _no_token(name: str, export: Export, part: str, position: int) -> ConfigError:
    num_positions = export.num_positions(part)
    found, remedy = f"a part of {num_positions:,} positions", "name an earlier position"
    length = export.of_part(part).sequence_length
    if length is not None and position < num_positions:
        sequence, column = divmod(position, length)
        found = f"padding: column {column:,} of sequence {sequence:,}"
        remedy = (
            f"name the sequence by --sequence {sequence} (positions count each sequence as filled "
            f"up to {length:,}, also where `padding` leaves that out of the files)"
        )
    return ConfigError(
        where=f"{name}: {part}: position {position:,}",
        expected="a token of a document",
        found=found,
        remedy=remedy,
    )


def _origin(entry: dict[str, Any], start: int, stop: int) -> TokenOrigin:
    """Return the origin of the tokens between `start` and `stop`, as far as the index has it."""
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
