"""The bytes that each token of a vocabulary stands for, where tokens are bytes of the text."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tokflow.tokenizers.engines.reference import load_tokenizer_json, open_tiktoken
from tokflow.tokenizers.engines.sentencepiece_ import (
    MODEL_NAME,
    SPACE,
    control_symbols,
    load_processor,
)
from tokflow.tokenizers.patterns import byte_letters
from tokflow.tokenizers.tokenizer import BYTES_BOS_ID, BYTES_EOS_ID, Tokenizer

if TYPE_CHECKING:
    import tokenizers

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None] | None:
    """Return the bytes of each id of a tokenizer, special tokens as their names; None for an id
    that no token has.

    The bytes of a document's tokens, BOS and EOS left out, are its text in UTF-8, unless the
    tokenizer normalises; a tokenizer that marks words by SentencePiece's ▁ may have a space before
    them. None of a tokenizer whose tokens are not pieces of the text, such as WordPiece, and of
    one without tokenizer.json: nothing of what was published with it is run.
    """
    if tokenizer.kind == "bytes":
        names = {BYTES_BOS_ID: b"<bos>", BYTES_EOS_ID: b"<eos>"}
        return [names.get(id_) or bytes([id_]) for id_ in range(tokenizer.vocab_size)]
    if tokenizer.kind == "tiktoken":
        return _of_tiktoken(tokenizer)
    if tokenizer.kind == "sentencepiece":
        return _of_sentencepiece(tokenizer)
    path = tokenizer.folder / "tokenizer.json"
    return _of_json(path.read_bytes()) if path.is_file() else None


def _of_tiktoken(tokenizer: Tokenizer) -> list[bytes | None]:
    encoding = open_tiktoken(tokenizer)
    found: list[bytes | None] = [None] * tokenizer.vocab_size
    for id_ in range(tokenizer.vocab_size):
        with suppress(KeyError):  # ids between the ranks and the special tokens may be nobody's
            found[id_] = encoding.decode_single_token_bytes(id_)
    return found


def _of_sentencepiece(tokenizer: Tokenizer) -> list[bytes | None]:
    processor = load_processor((tokenizer.folder / MODEL_NAME).read_bytes())
    found: list[bytes | None] = [
        _of_piece(processor.id_to_piece(id_)) for id_ in range(processor.get_piece_size())
    ]
    for name, id_ in control_symbols(processor).items():
        found[id_] = name.encode()
    return found


class _Step(msgspec.Struct):
    type: str = ""
    decoders: list["_Step"] = []


class _Fields(msgspec.Struct):
    """The field of a tokenizer.json that must be known, read without its vocabulary."""

    decoder: _Step | None = None


def _of_json(content: bytes) -> list[bytes | None] | None:
    decoder = msgspec.json.decode(content, type=_Fields).decoder
    steps = [] if decoder is None else [decoder, *decoder.decoders]
    types = {step.type for step in steps}
    if "ByteLevel" not in types and not types & {"ByteFallback", "Metaspace"}:
        return None
    loaded = load_tokenizer_json(content, "ordinary")
    return _of_loaded(loaded, is_byte_level="ByteLevel" in types)


def _of_loaded(loaded: "tokenizers.Tokenizer", *, is_byte_level: bool) -> list[bytes | None]:
    vocabulary = loaded.get_vocab()
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    found: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, id_ in vocabulary.items():
        if not is_byte_level:
            found[id_] = _of_piece(token)
        elif all(letter in byte_of for letter in token):
            found[id_] = bytes(map(byte_of.__getitem__, token))
        else:
            found[id_] = token.encode()
    for id_, added in loaded.get_added_tokens_decoder().items():
        found[id_] = added.content.encode()
    return found


def _of_piece(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()
