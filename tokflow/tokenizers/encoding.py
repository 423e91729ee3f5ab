"""One resolved encoding: a tokenizer with all that a dataset's config says of its use."""

from dataclasses import dataclass

from tokflow.documents import DocumentsConfig
from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import InText
from tokflow.tokenizers.tokenizer import (
    SpecialTokensInText,
    Tokenizer,
    TokenizerConfig,
    some_names,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """All that makes tokens of the text of documents."""

    config: TokenizerConfig
    tokenizer: Tokenizer
    bos_id: int | None
    """Begins each document; None where nothing does."""
    eos_id: int | None
    """Ends each document; None where nothing does."""

    @property
    def eos_per_document(self) -> int:
        """Ids around a document that are EOS: two where BOS has the same id."""
        return 0 if self.eos_id is None else 1 + (self.bos_id == self.eos_id)


def in_text_of(documents: DocumentsConfig, special_tokens_in_text: SpecialTokensInText) -> InText:
    """Return what an engine makes of special tokens in the text of documents.

    A chat template writes control tokens in it, whatever becomes of those that messages spell.
    """
    if documents.messages is not None or special_tokens_in_text == "control":
        return "control"
    return "ordinary"


def resolve_encoding(config: TokenizerConfig, tokenizer: Tokenizer) -> Encoding:
    """Return the encoding that `config` asks for with `tokenizer`.

    Raises: TokenizerError with the choices where the tokenizer has no such EOS or BOS.
    """
    ids = {
        "eos": tokenizer.eos_id if config.eos == "last" else None,
        "bos": tokenizer.bos_id if config.bos == "first" else None,
    }
    for role, is_wanted in (("bos", config.bos == "first"), ("eos", config.eos == "last")):
        if is_wanted and ids[role] is None:
            raise TokenizerError(
                where=f"tokenizer.{role}",
                expected=f"a tokenizer that names its {role.upper()}",
                found=f"none; its special tokens are {some_names(tokenizer.special_tokens)}",
                remedy=f"set tokenizer.{role}_token to one of them, or tokenizer.{role}: none",
            )
    return Encoding(config=config, tokenizer=tokenizer, bos_id=ids["bos"], eos_id=ids["eos"])
