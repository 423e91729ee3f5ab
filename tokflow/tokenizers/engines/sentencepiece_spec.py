"""What a SentencePiece .model says of itself, which its library does not tell.

Source: sentencepiece 0.2.3, sentencepiece_model.proto: ModelProto.pieces = 1, .trainer_spec = 2,
.normalizer_spec = 3; TrainerSpec.model_type = 3, .treat_whitespace_as_suffix = 24;
NormalizerSpec.name = 1, .add_dummy_prefix = 3, .remove_extra_whitespaces = 4,
.escape_whitespaces = 5, .normalization_rule_tsv = 6; SentencePiece.piece = 1. The package's own
Python classes need a protobuf as new as the one that made them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

BPE = 2
"""TrainerSpec.ModelType; unigram is 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The parts of a model that decide where its tokens can begin."""

    model_type: int
    pieces: tuple[str, ...]
    """Every piece, control symbols and user-defined ones too, in the order of their ids."""
    rules: str
    """Name of the normalization rules, such as nmt_nfkc."""
    has_own_rules: bool
    """Whether rules were given as a table beside, or instead of, the named ones."""
    adds_prefix: bool
    """Whether a space is put in front of every text."""
    removes_spaces: bool
    """Whether leading, trailing and repeated spaces are dropped."""
    escapes_spaces: bool
    """Whether a space becomes U+2581."""
    has_suffixes: bool
    """Whether a space belongs to the word before it."""


def read_spec(model: bytes) -> ModelSpec:
    """Return what the bytes of a .model say; they are known to be one."""
    fields = list(_fields(model))
    trainer = _last(fields, 2)
    normalizer = _last(fields, 3)
    pieces = [dict(_fields(value)) for number, value in fields if number == 1]
    return ModelSpec(
        model_type=int(trainer.get(3, 1)),
        pieces=tuple(bytes(piece.get(1, b"")).decode() for piece in pieces),
        rules=bytes(normalizer.get(1, b"")).decode(),
        has_own_rules=bool(normalizer.get(6)),
        adds_prefix=bool(normalizer.get(3, 1)),
        removes_spaces=bool(normalizer.get(4, 1)),
        escapes_spaces=bool(normalizer.get(5, 1)),
        has_suffixes=bool(trainer.get(24, 0)),
    )


def _last(fields: list[tuple[int, bytes | int]], number: int) -> dict[int, bytes | int]:
    """Return the fields of a message that is a field itself."""
    values = [value for found, value in fields if found == number]
    return dict(_fields(values[-1])) if values else {}


def _fields(message: bytes | int) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a protobuf message, floats as their four bytes."""
    data = bytes(message)
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(wire_type)
        if size is None:
            size, position = _varint(data, position)
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at `position`, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position
