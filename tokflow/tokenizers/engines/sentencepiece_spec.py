"""The settings in a SentencePiece .model, which its library does not tell.

Source: sentencepiece 0.2.3, sentencepiece_model.proto: ModelProto.pieces = 1, .trainer_spec = 2,
.normalizer_spec = 3; TrainerSpec.model_type = 3, .treat_whitespace_as_suffix = 24;
NormalizerSpec.name = 1, .add_dummy_prefix = 3, .remove_extra_whitespaces = 4,
.escape_whitespaces = 5, .normalization_rule_tsv = 6; SentencePiece.piece = 1. The package's own
Python classes need a protobuf as new as the one that made them; gigatoken reads the fields without.
"""

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
    from gigatoken._load.sentencepiece import _fields as fields_of  # yields (number, value)

    fields = list(fields_of(model))
    message = dict(fields)  # the last of each number
    trainer, normalizer = dict(fields_of(message.get(2, b""))), dict(fields_of(message.get(3, b"")))
    pieces = [dict(fields_of(value)) for number, value in fields if number == 1]
    return ModelSpec(
        model_type=trainer.get(3, 1),
        pieces=tuple(piece.get(1, b"").decode() for piece in pieces),
        rules=normalizer.get(1, b"").decode(),
        has_own_rules=bool(normalizer.get(6)),
        adds_prefix=bool(normalizer.get(3, 1)),
        removes_spaces=bool(normalizer.get(4, 1)),
        escapes_spaces=bool(normalizer.get(5, 1)),
        has_suffixes=bool(trainer.get(24, 0)),
    )
