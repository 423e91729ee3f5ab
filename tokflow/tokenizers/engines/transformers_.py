"""The reference engine of what only `transformers` can load: tokenizers written in Python."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tokflow.errors import CorruptOutputError, TokenizerError, UntrustedCodeError
from tokflow.store.manifest import OWN_FOLDER, checksums, read_manifest
from tokflow.tokenizers.engines.protocol import Encoded, InText, any_of, encoded_from_lists
from tokflow.tokenizers.tokenizer import check_content

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


def load_pretrained(folder: Path, *, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    """Return the tokenizer whose files are in `folder`; no network is needed.

    Raises: whatever transformers and the tokenizer's own code raise.
    """
    without_advice()
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TokenizerError(
            where=folder,
            expected="transformers, for this tokenizer has no tokenizer.json that is enough",
            found=str(error),
            remedy="install transformers, which needs tokenizers below 1.0",
        ) from error

    # sentencepiece 0.2.3 brings code along that needs protobuf 7; transformers the same for any
    # version from 4 on, by which SentencePiece models are read.
    name = "sentencepiece.sentencepiece_model_pb2"
    if name not in sys.modules:
        from transformers.utils import sentencepiece_model_pb2_new

        sys.modules[name] = sentencepiece_model_pb2_new
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code, local_files_only=True
    )
    # Its config may name a length, which only makes transformers warn of longer texts.
    loaded.model_max_length = 10**30
    return loaded


def special_tokens(loaded: "PreTrainedTokenizerBase") -> dict[str, int]:
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
        raise UntrustedCodeError(
            where=folder,
            expected="consent to run the Python code that is in this tokenizer's folder, "
            "with your rights",
            found="none",
            remedy="read that code, and if you want to run it set tokenizer.trust_remote_code: "
            "true in the dataset's YAML, or give --trust-remote-code where a path is named",
        )
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
