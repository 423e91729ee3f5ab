"""One small tokenizer of each kind, with a special token and an added token that is not special.

All know letters of ASCII, the special token `</s>` and, but for bytes and tiktoken, which have no
such thing, the added word `<word>`.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel

from tokflow.tokenizers.tokenizer import Kind, Tokenizer
from tokflow_tests.outputs import make_manifest, stored


def made_tokenizer(folder: Path, kind: Kind = "file", **fields: Any) -> Tokenizer:
    """Return a tokenizer whose files are in a folder, apart from any store."""
    known = dict.fromkeys(("eos_id", "eos_token", "bos_id", "bos_token"))
    known |= {"fingerprint": "0123456789abcdef", "vocab_size": 2_000, "special_tokens": {}}
    return Tokenizer(
        folder=folder, kind=kind, stored=stored(folder, make_manifest()), **{**known, **fields}
    )


LETTERS_CODE = """
import json
from transformers import PreTrainedTokenizer


class LettersTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "vocab.json"}

    def __init__(self, vocab_file, **options):
        with open(vocab_file, encoding="utf-8") as file:
            self._ids = json.load(file)
        self._letters = {token_id: letter for letter, token_id in self._ids.items()}
        super().__init__(**options)

    @property
    def vocab_size(self):
        return len(self._ids)

    def get_vocab(self):
        return {**self._ids, **self.added_tokens_encoder}

    def _tokenize(self, text, **options):
        return TOKENIZE

    def _convert_token_to_id(self, token):
        return self._ids.get(token, self._ids["<unk>"])

    def _convert_id_to_token(self, token_id):
        return self._letters[token_id]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""
LETTERS = ["<unk>", "<s>", "</s>", *map(chr, range(32, 127)), "\n"]


def write_letters(folder: Path, *, tokenize: str = "list(text)", **config: Any) -> Path:
    """Write a tokenizer that is Python code: an id for each letter, `<word>` added as 200."""
    folder.mkdir(parents=True, exist_ok=True)
    code = LETTERS_CODE.replace("TOKENIZE", tokenize)
    (folder / "tokenization_letters.py").write_text(code)
    ids = {letter: token_id for token_id, letter in enumerate(LETTERS)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
    fields = {
        "tokenizer_class": "LettersTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_letters.LettersTokenizer", None]},
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "bos_token": "<s>",
        "added_tokens_decoder": {"200": {"content": "<word>", **flags}},
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return folder


def letter_ids(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def train_model(**options: Any) -> bytes:
    """Return a SentencePiece BPE .model with byte fallback, trained on a few words."""
    model = io.BytesIO()
    words = ["a b c word tokens before after and text in between"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words),
        model_writer=model,
        minloglevel=2,
        **{
            "model_type": "bpe",
            "vocab_size": 290,
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "hard_vocab_limit": False,
            **options,
        },
    )
    return model.getvalue()


def of_tokenizers(folder: Path) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a word in a text"], trainer)
    tokenizer.add_tokens([AddedToken("<word>", normalized=False)])
    tokenizer.save(str(folder / "own.json"))
    return {"kind": "file", "name": str(folder / "own.json"), "eos_token": "</s>"}


def of_sentencepiece(folder: Path) -> dict[str, Any]:
    (folder / "own.model").write_bytes(train_model(user_defined_symbols=["<word>"]))
    return {"kind": "sentencepiece", "name": str(folder / "own.model")}


def of_sentencepiece_without_words(folder: Path) -> dict[str, Any]:
    (folder / "own.model").write_bytes(train_model())
    return {"kind": "sentencepiece", "name": str(folder / "own.model")}


def of_transformers(folder: Path) -> dict[str, Any]:
    name = str(write_letters(folder / "letters"))
    return {"kind": "huggingface", "name": name, "trust_remote_code": True}


def of_tiktoken(folder: Path) -> dict[str, Any]:
    """Put an encoding among those that tiktoken knows, as a plugin of a user's would."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    tiktoken.registry.ENCODINGS["bytes_and_end"] = tiktoken.Encoding(
        "bytes_and_end", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"</s>": 256}
    )
    return {"kind": "tiktoken", "name": "bytes_and_end", "eos_token": "</s>"}


def of_bytes(_: Path) -> dict[str, Any]:
    return {"kind": "bytes"}


Make = Callable[[Path], dict[str, Any]]
"""From a folder for its files to a tokenizer's config."""
