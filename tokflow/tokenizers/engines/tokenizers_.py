"""The reference engine of a tokenizer.json: the `tokenizers` library, 0.23 or 1.0.

1.0 encodes byte-level BPE some 45 times as fast. It reads files alone, knows the split patterns of
published tokenizers and no others, gives no offsets, and neither normalises nor trains by itself.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import (
    Encoded,
    InText,
    encoded_from_lists,
    panics_as_errors,
)


@lru_cache(maxsize=3)  # two of a tokenizer, and that which tells the version of Unicode
def load_tokenizer_json(content: bytes, in_text: InText) -> "JsonTokenizer":
    """Return the tokenizer of a tokenizer.json.

    Kept for the next call, since loading takes 0.2 s: a tokenizer that has just been saved, and
    so checked, is about to be used.

    Raises: TokenizerError where 1.0 does not do what it asks for; whatever 0.23 raises.
    """
    with panics_as_errors():
        engine = Tokenizers1Engine if is_version_1() else TokenizersEngine
        return engine(content, in_text)


def is_version_1() -> bool:
    """Return whether the installed library is 1.0 or newer."""
    import tokenizers

    return not tokenizers.__version__.startswith("0.")


def not_in_version_1(what: str) -> TokenizerError:
    """Return the error that 1.0 does not do something."""
    return TokenizerError(
        where="tokenizers 1.0",
        expected=f"a version of the library that {what}",
        found="one that does not, as from 1.0 on",
        remedy="install tokenizers 0.23, or use a tokenizer that needs no such thing",
    )


class TokenizersEngine:
    """A tokenizer.json in 0.23, free of what would change its tokens."""

    name = "tokenizers"

    def __init__(self, content: bytes, in_text: InText) -> None:
        import tokenizers

        self._library = library = tokenizers.Tokenizer.from_buffer(content)
        # A file may ask for truncation or padding, which would cut or add tokens silently.
        library.no_truncation()
        library.no_padding()
        if isinstance(library.model, tokenizers.models.BPE):
            library.model.dropout = None  # draws merges at random: other tokens each time
        library.encode_special_tokens = in_text == "ordinary"

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text; no special token is added."""
        encodings = self._library.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        return encoded_from_lists([encoding.ids for encoding in encodings])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids as the tokenizer's own decoder gives it."""
        return str(self._library.decode(list(token_ids), skip_special_tokens=False))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the ids of the model's tokens, without those added to it."""
        return self._library.get_vocab(with_added_tokens=False)

    def id_in_model(self, token: str) -> int | None:
        """Return the id of a token of the model; None where it has no such token."""
        found: int | None = self._library.model.token_to_id(token)
        return found

    def added_tokens(self) -> Mapping[int, Any]:
        """Return the added tokens by their ids, ascending: each with its `content` and flags."""
        return self._library.get_added_tokens_decoder()

    def version_0(self, what: str) -> Any:
        """Return the library's own tokenizer, for what 1.0 does not do."""
        return self._library


class Tokenizers1Engine:
    """A tokenizer.json in 1.0, whose vocabulary is read from the file."""

    name = "tokenizers"

    def __init__(self, content: bytes, in_text: InText) -> None:
        fields = msgspec.json.decode(content, type=dict[str, Any])
        fields["model"]["dropout"] = None  # which 1.0 refuses
        vocab = fields["model"]["vocab"]  # of Unigram pieces with scores
        is_numbered = isinstance(vocab, dict)
        self._vocabulary = vocab if is_numbered else {of[0]: id_ for id_, of in enumerate(vocab)}
        self._added = [of for of in fields.get("added_tokens") or [] if of["content"]]
        self._is_ordinary = in_text == "ordinary"
        import tokenizers

        try:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(msgspec.json.encode(fields))
                file.flush()
                # mypy knows the types of 0.23.
                self._library: Any = tokenizers.Tokenizer.from_file(file.name)
            self._library.encode("a")  # a pattern that it does not know is an error here
        except ValueError as error:
            raise not_in_version_1(f"reads this tokenizer.json ({error})") from error

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text; no special token is added."""
        return encoded_from_lists(self._encode(texts.to_pylist(), is_ordinary=self._is_ordinary))

    def _encode(self, texts: list[str], *, is_ordinary: bool) -> list[npt.NDArray[Any]]:
        """Encode with each argument named: by default special tokens in a text become control
        tokens, and texts are cut and padded as the file asks for it."""
        encodings = self._library.encode_batch(
            texts,
            add_special_tokens=False,
            encode_special_tokens=is_ordinary,
            padding=None,
            truncation=None,
        )
        return [encoding.ids_array for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids as the tokenizer's own decoder gives it."""
        return str(self._library.decode(list(token_ids), skip_special_tokens=False))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the ids of the model's tokens, without those added to it."""
        return self._vocabulary

    def id_in_model(self, token: str) -> int | None:
        """Return the id of a token of the model; None where it has no such token."""
        return self._vocabulary.get(token)

    def added_tokens(self) -> Mapping[int, Any]:
        """Return the added tokens by the ids that the library has for their names, which need not
        be those of the file."""
        ids = self._encode([of["content"] for of in self._added], is_ordinary=False)
        pairs = zip(ids, self._added, strict=True)
        return dict(sorted((int(one[0]), SimpleNamespace(**of)) for one, of in pairs))

    def version_0(self, what: str) -> Any:
        """Raise the error that 1.0 does not do `what`."""
        raise not_in_version_1(what)


JsonTokenizer = TokenizersEngine | Tokenizers1Engine
