"""The reference engines of Hugging Face: `tokenizers` (0.23 or 1.0) for a tokenizer.json, and
`transformers` for what only that can load.

tokenizers 1.0 encodes byte-level BPE some 45 times as fast. It reads files alone, knows the split
patterns of published tokenizers and no others, gives no offsets, and neither normalises nor trains
by itself.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import CorruptOutputError, TokenizerError, UntrustedCodeError
from tokflow.store.manifest import OWN_FOLDER, checksums, read_manifest
from tokflow.tokenizers.engines import Encoded, InText, any_of, encoded_from_lists, panics_as_errors
from tokflow.tokenizers.tokenizer import check_content


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
    expected = f"a version of the library that {what}"
    found = "one that does not, as from 1.0 on"
    remedy = "install tokenizers 0.23, or use a tokenizer that needs no such thing"
    return TokenizerError(where="tokenizers 1.0", expected=expected, found=found, remedy=remedy)


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


class TransformersEngine:
    """A saved tokenizer through its class in `transformers` or the code that came with it.

    `control` is what `encode` does by itself. For `ordinary` a text that spells a special token
    is encoded with `split_special_tokens=True`; since this makes plain text of every added token,
    the text is cut at those that are not special, the longest where several begin, and their ids
    stand between.
    """

    name = "transformers"

    def __init__(self, folder: Path, *, in_text: InText, trust_remote_code: bool) -> None:
        """Load the tokenizer.

        Raises: UntrustedCodeError, CorruptOutputError where its code is not what was saved.
        """
        has_code = holds_code(folder)
        if has_code:
            _check_code(folder, trust_remote_code=trust_remote_code)
        self._loaded = load_pretrained(folder, trust_remote_code=has_code)
        special = special_tokens(self._loaded)
        added = {token: id_ for token, id_ in self._loaded.get_added_vocab().items() if token}
        self._words = {token: id_ for token, id_ in added.items() if token not in special}
        self._special = special
        self._spells_special = any_of(special if in_text == "ordinary" else ())
        self._spells_word = any_of(self._words)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, one after another; no special token is added.

        Raises: TokenizerError where a special token in a text cannot be kept as text, or the
        tokenizer fails at a text.
        """
        try:
            return encoded_from_lists([self._encode(text) for text in texts.to_pylist()])
        except TokenizerError:
            raise
        except Exception as error:  # of the tokenizer's own code
            raise TokenizerError(
                where="the tokenizer's code",
                expected="the tokens of a batch",
                found=f"{type(error).__name__}: {error}",
                remedy="see whether transformers alone can encode these documents",
            ) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids as the tokenizer itself decodes them."""
        decoded = self._loaded.decode(
            [int(token_id) for token_id in token_ids],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return str(decoded)

    def _encode(self, text: str) -> list[int]:
        if not self._spells_special.search(text):
            return list(self._loaded.encode(text, add_special_tokens=False))
        token_ids: list[int] = []
        start = 0
        for match in self._spells_word.finditer(text):
            token_ids += self._encode_ordinary(text[start : match.start()])
            token_ids.append(self._words[match.group()])
            start = match.end()
        return token_ids + self._encode_ordinary(text[start:])

    def _encode_ordinary(self, text: str) -> list[int]:
        if not text:
            return []
        token_ids = list(
            self._loaded.encode(text, add_special_tokens=False, split_special_tokens=True)
        )
        unknown = getattr(self._loaded, "unk_token_id", None)
        for name, token_id in self._special.items():
            if token_id in token_ids and token_id != unknown and name in text:
                raise TokenizerError(
                    where="tokenizer.special_tokens_in_text: ordinary",
                    expected=f"the class {type(self._loaded).__name__} to encode a special token "
                    "in a text as plain text",
                    found=f"the special token itself for {name!r}",
                    remedy="set tokenizer.special_tokens_in_text: control to let it become that, "
                    "or error to stop at such a text",
                )
        return token_ids


def load_pretrained(folder: Path, *, trust_remote_code: bool) -> Any:
    """Return the tokenizer whose files are in `folder`; no network is needed.

    Raises: whatever transformers and the tokenizer's own code raise.
    """
    without_advice()
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        expected = "transformers, for this tokenizer has no tokenizer.json that is enough"
        found = str(error)
        remedy = "install transformers, which needs tokenizers below 1.0"
        raise TokenizerError(where=folder, expected=expected, found=found, remedy=remedy) from error

    # sentencepiece 0.2.3 brings code along that needs protobuf 7; transformers the same for any
    # version from 4 on, by which SentencePiece models are read.
    name = "sentencepiece.sentencepiece_model_pb2"
    if name not in sys.modules:
        from transformers.utils import sentencepiece_model_pb2_new

        sys.modules[name] = sentencepiece_model_pb2_new
    loaded: Any = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code, local_files_only=True
    )
    # Its config may name a length, which only makes transformers warn of longer texts.
    loaded.model_max_length = 10**30
    return loaded


def special_tokens(loaded: Any) -> dict[str, int]:
    """Return the ids of the special tokens by name, in the order of their ids."""
    ids = {
        str(token): int(token_id)
        for token_id, token in loaded.added_tokens_decoder.items()
        if token.special
    }
    for name in loaded.all_special_tokens:
        token_id = loaded.convert_tokens_to_ids(str(name))
        if isinstance(token_id, int):
            ids.setdefault(str(name), token_id)
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def holds_code(folder: Path) -> bool:
    """Return whether a tokenizer's folder holds Python code, or a folder, where code may be;
    tokflow's own has none that is ever run."""
    found = (path for path in folder.iterdir() if path.name != OWN_FOLDER)
    return any(path.suffix.lower() == ".py" or path.is_dir() for path in found)


def _check_code(folder: Path, *, trust_remote_code: bool) -> None:
    """Make sure that code may run, and that it is the code that was saved.

    The manifest is believed as far as `check_content` can.

    Raises: UntrustedCodeError, CorruptOutputError.
    """
    if not trust_remote_code:
        expected = (
            "consent to run the Python code that is in this tokenizer's folder, with your rights"
        )
        remedy = (
            "read that code, and if you want to run it set tokenizer.trust_remote_code: true "
            "in the dataset's YAML, or give --trust-remote-code where a path is named"
        )
        raise UntrustedCodeError(where=folder, expected=expected, found="none", remedy=remedy)
    manifest = read_manifest(folder)
    check_content(manifest, folder)
    if checksums(folder) != manifest.files:
        raise CorruptOutputError(
            where=folder,
            expected="the code that was saved, with the checksums of its manifest, and "
            "nothing else",
            found="other files",
            remedy="remove the folder and run `tokflow run` again",
        )


def without_advice() -> None:
    """Keep transformers from saying that there is no PyTorch, of which no tokenizer has need."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
