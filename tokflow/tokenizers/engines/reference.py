"""The reference engines: each kind of tokenizer through its own library, whose version and Unicode
table are part of what exact means: split patterns ask for letters and numbers, each version of
Unicode adds some, and a library that does not know a letter splits the text beside it elsewhere.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.pools.machine import num_cores
from tokflow.store.integrity import clear_when_damaged
from tokflow.store.store import StoredOutput
from tokflow.store.tables import text_buffers, to_texts
from tokflow.store.versions import installed_version, newest_change
from tokflow.tokenizers import GPT2, GPT2_REGEX, byte_level_model, pre_tokenizer_fields
from tokflow.tokenizers.engines import Encoded, InText, ReferenceEngine, any_of, encoded_from_lists
from tokflow.tokenizers.engines.hugging_face import TransformersEngine, load_tokenizer_json
from tokflow.tokenizers.tokenizer import (
    BYTES_ENDS,
    RANKS_NAME,
    Tokenizer,
    read_encoding,
    read_ranks,
)

if TYPE_CHECKING:
    import sentencepiece
    import tiktoken


def open_reference(tokenizer: Tokenizer, *, in_text: InText = "ordinary") -> ReferenceEngine:
    """Return the engine whose tokens are right by definition.

    Raises: UntrustedCodeError where it is code, and `tokenizer` does not say that it may run.
    """
    if tokenizer.kind == "bytes":
        return BytesEngine()
    if tokenizer.kind == "tiktoken":
        return TiktokenEngine(open_tiktoken(tokenizer), in_text=in_text)
    if tokenizer.kind == "sentencepiece":
        return SentencePieceEngine(tokenizer.folder / MODEL_NAME, in_text=in_text)
    if not (tokenizer.folder / "tokenizer.json").is_file():
        return TransformersEngine(
            tokenizer.folder, in_text=in_text, trust_remote_code=tokenizer.trust_remote_code
        )
    return load_tokenizer_json((tokenizer.folder / "tokenizer.json").read_bytes(), in_text)


class BytesEngine:
    """Token id = byte of the UTF-8 text; BOS and EOS have ids past 255."""

    name = "bytes"

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the bytes of each text."""
        offsets, data = text_buffers(texts)
        token_ids = data[offsets[0] : offsets[-1]].astype(np.uint16)
        return Encoded(token_ids=token_ids, offsets=offsets - offsets[0])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text; what is no UTF-8 is shown as U+FFFD."""
        parts = (BYTES_ENDS.get(token_id) or bytes([token_id]) for token_id in token_ids)
        return b"".join(parts).decode(errors="replace")


LONG_BYTES = 4_000
"""Texts that are longer on average are worth threads. On two cores 5,000 of 20 bytes take tiktoken
0.01 s one by one and 0.1 s in the threads of its own `encode_batch`; at 10,000 bytes it is even."""


class TiktokenEngine:
    """An encoding of OpenAI's `tiktoken`."""

    name = "tiktoken"

    def __init__(self, encoding: "tiktoken.Encoding", *, in_text: InText) -> None:
        self._encoding = encoding
        self._in_text = in_text

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, of long ones by a thread for each core."""
        offsets, _ = text_buffers(texts)
        strings, num_threads = texts.to_pylist(), num_cores()
        if num_threads == 1 or offsets[-1] - offsets[0] < LONG_BYTES * len(texts):
            return encoded_from_lists(list(map(self._encode, strings)))
        with ThreadPoolExecutor(num_threads) as pool:
            return encoded_from_lists(list(pool.map(self._encode, strings)))

    def _encode(self, text: str) -> list[int]:
        if self._in_text == "ordinary":
            return self._encoding.encode_ordinary(text)
        return self._encoding.encode(text, allowed_special="all")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text; what is no UTF-8 is shown as U+FFFD."""
        return self._encoding.decode(list(token_ids))


@lru_cache(maxsize=2)
def open_tiktoken(tokenizer: Tokenizer) -> "tiktoken.Encoding":
    """Return the encoding that was saved into the store; needs no network."""
    import tiktoken

    encoding = read_encoding(tokenizer.folder)
    return tiktoken.Encoding(
        encoding["name"],
        pat_str=encoding["pattern"],
        mergeable_ranks=read_ranks(tokenizer.folder / RANKS_NAME),
        special_tokens=encoding["special_tokens"],
    )


clear_when_damaged.append(open_tiktoken.cache_clear)


ReturnType = Literal["numpy", "offset_mapping"]

MODEL_NAME = "tokenizer.model"
"""The .model file in the tokenizer's folder."""

SPACE = "\u2581"
"""The character that stands for a space in pieces."""


class SentencePieceEngine:
    """A .model through `sentencepiece`; its normalisation of the text is the tokenizer's own.

    Left alone, SentencePiece never makes a control symbol of text, which is `ordinary`. For
    `control` the text is cut at every control symbol it spells, the longest where several begin,
    the texts between are encoded each on its own (with its own dummy prefix, if the model has
    one, as LlamaTokenizer does it; with `legacy: false` in a tokenizer_config.json beside it none
    after a symbol) and the symbols' ids stand between. User-defined symbols are part of the text in
    both.
    """

    name = "sentencepiece"

    def __init__(self, path: Path, *, in_text: InText) -> None:
        self._processor = load_processor(path.read_bytes())
        self._ids = control_symbols(self._processor) if in_text == "control" else {}
        self._spelt = any_of(self._ids)
        self._behind = self._processor
        """Encodes what comes behind a symbol."""
        config = path.parent / "tokenizer_config.json"
        fields = msgspec.json.decode(config.read_bytes()) if config.is_file() else {}
        if self._ids and fields.get("legacy") is False:  # no space behind symbols
            self._behind = load_processor(path.read_bytes() + _WITHOUT_PREFIX)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text; no BOS and no EOS."""
        strings = texts.to_pylist()
        if not self._ids:
            return encoded_from_lists(_of_library(self._processor, strings, "numpy"))
        documents = []
        for text, parts in zip(strings, self._of_parts(strings, "numpy"), strict=True):
            token_ids = parts[0].tolist()
            for symbol, part in zip(self._spelt.findall(text), parts[1:], strict=True):
                token_ids += [self._ids[symbol], *part.tolist()]
            documents.append(token_ids)
        return encoded_from_lists(documents)

    def char_spans(self, texts: pa.LargeStringArray) -> list[tuple[int, int]]:
        """Return for each token that `encode` gives how many code points of its text are before
        it, and how many up to its end, the texts one after another.

        The library gives a character that became several pieces to the last of them: here each has
        it. A space that is put before the text is none of its characters.
        """
        spans: list[tuple[int, int]] = []
        strings = texts.to_pylist()
        for text, mappings in zip(strings, self._of_parts(strings, "offset_mapping"), strict=True):
            symbols = self._spelt.findall(text)
            between = self._spelt.split(text)
            position = 0
            for index, (one, mapping) in enumerate(zip(between, mappings, strict=True)):
                own: list[tuple[int, int]] = list(mapping["offsets"])
                for at in range(len(own) - 2, -1, -1):
                    is_put_before = at == 0 and mapping["pieces"][0] == SPACE
                    if own[at][0] == own[at][1] == own[at + 1][0] and not is_put_before:
                        own[at] = own[at + 1]  # a character shared with the pieces behind
                spans += [(position + start, position + stop) for start, stop in own]
                position += len(one)
                if index < len(symbols):
                    spans.append((position, position := position + len(symbols[index])))
        return spans

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, control symbols by their names, unknown as ` ⁇ `."""
        symbols = control_symbols(self._processor).items()
        names = {id_: name for name, id_ in symbols if not self._processor.is_unknown(id_)}
        parts: list[str] = []
        pending: list[int] = []
        for token_id in token_ids:
            if token_id in names:
                parts += [self._processor.decode(pending), names[token_id]]
                pending = []
            else:
                pending.append(int(token_id))
        return "".join((*parts, self._processor.decode(pending)))

    def _of_parts(self, strings: Sequence[str], return_type: ReturnType) -> list[list[Any]]:
        """Encode the text between the control symbols of each string with the library."""
        between = [self._spelt.split(text) for text in strings]
        first = _of_library(self._processor, [parts[0] for parts in between], return_type)
        others = [part for parts in between for part in parts[1:]]
        behind = iter(_of_library(self._behind, others, return_type))
        counts = [len(parts) - 1 for parts in between]
        return [[one, *islice(behind, num)] for one, num in zip(first, counts, strict=True)]


def _of_library(
    processor: "sentencepiece.SentencePieceProcessor", strings: list[str], return_type: ReturnType
) -> list[Any]:
    encoded: list[Any] = processor.encode(strings, return_type=return_type, num_threads=num_cores())
    return encoded


_WITHOUT_PREFIX = b"\x1a\x02\x18\x00"
"""Behind a .model: its normalizer_spec (field 3) once more, in which add_dummy_prefix (field 3) is
false; protobuf merges the two, and the last value counts."""


def load_processor(model: bytes) -> "sentencepiece.SentencePieceProcessor":
    """Return the processor of the bytes of a .model.

    Raises: ValueError where they are no model.
    """
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model) if model else None
    except RuntimeError as error:
        raise ValueError(str(error).strip()) from error
    if processor is None or processor.get_piece_size() == 0:
        raise ValueError("a model without pieces")
    return processor


def control_symbols(processor: "sentencepiece.SentencePieceProcessor") -> dict[str, int]:
    """Return the ids of the control symbols and of the unknown piece, by name."""
    return {
        processor.id_to_piece(token_id): token_id
        for token_id in range(processor.get_piece_size())
        if processor.is_control(token_id) or processor.is_unknown(token_id)
    }


def unscored_pieces(model: bytes) -> list[str]:
    """Return the pieces whose score is 0: the user-defined symbols, and often one piece more.

    The library does not say which pieces are user-defined; this is enough to try them all.
    """
    processor = load_processor(model)
    return [
        processor.id_to_piece(token_id)
        for token_id in range(processor.get_piece_size())
        if processor.get_score(token_id) == 0 and not processor.is_byte(token_id)
    ]


LETTERS = {"15": "\U0001e4d0", "15.1": "\U0002ebf0", "16": "\U000105c0", "17": "\U00010940"}
"""New letter of each version of Unicode; in UTF-8 all begin with the byte F0."""


def reference_of(kind: str, folder: Path) -> dict[str, str]:
    """Return `library`, `version` and `unicode` of the reference of a tokenizer in `folder`.

    Empty where a token is a byte. Without `unicode` where transformers makes the ids, and with
    SentencePiece, whose models contain their tables.
    """
    if kind == "bytes":
        return {}
    has_json = (folder / "tokenizer.json").is_file()
    of_json = "tokenizers" if has_json else "transformers"
    return _installed(kind if kind in ("tiktoken", "sentencepiece") else of_json)


def _installed(library: str) -> dict[str, str]:
    found = {"version": installed_version(library), "unicode": unicode_of(library)}
    return {"library": library, **{name: value for name, value in found.items() if value}}


def unicode_of(library: str) -> str | None:
    """Return the newest version of Unicode whose letters the split patterns of a library know.

    A letter that it knows is one word with the `a` before it, so that the merge of `a` and the
    letter's first byte is among the tokens.
    """
    if library == "tokenizers":
        fields = {"version": "1.0", "pre_tokenizer": pre_tokenizer_fields(GPT2)}
        fields["model"] = {"type": "BPE", **byte_level_model([(b"a", b"\xf0")])}
        loaded = load_tokenizer_json(msgspec.json.encode(fields), "ordinary")
        words = to_texts([f"a{letter}" for letter in LETTERS.values()])
        tokens = [ids.tolist() for ids in loaded.encode(words).documents()]
    elif library == "tiktoken":
        import tiktoken

        ranks = {**{bytes([byte]): byte for byte in range(256)}, b"a\xf0": 256}
        encoding = tiktoken.Encoding(
            "letters", pat_str=GPT2_REGEX, mergeable_ranks=ranks, special_tokens={}
        )
        tokens = [encoding.encode_ordinary(f"a{letter}") for letter in LETTERS.values()]
    else:
        return None
    known = [of for of, ids in zip(LETTERS, tokens, strict=True) if 256 in ids]
    return max(known, key=float, default=None)


def describe_reference(reference: Mapping[str, str], libraries: Mapping[str, str]) -> str:
    """Return the reference of tokens in words: `tokenizers 0.23.3 (Unicode 16)`.

    `libraries`: known changes in the recipe of the tokens. With others than those of `reference`,
    the tokens were made again after the tokenizer was saved: `tokenizers 1.0 or newer`.
    """
    library, since = reference["library"], libraries.get(reference["library"])
    known = newest_change(library, reference["version"], "tokens")
    if since == known:
        return _named(reference)
    return f"{library} {since} or newer" if since else f"{library} before {known}"


def _named(reference: Mapping[str, str]) -> str:
    table = f" (Unicode {reference['unicode']})" if "unicode" in reference else ""
    return f"{reference['library']} {reference['version']}{table}"


def reference_change(tokenizer: StoredOutput) -> str | None:
    """Return the change of the reference since a tokenizer was saved.

    None if its version is the same, if it is not installed, or if one of the two versions is known
    to differ: tokens are stale then.
    """
    saved = tokenizer.manifest.details.get("reference")
    now = installed_version(saved["library"]) if saved else None
    if not saved or now is None or now == saved["version"]:
        return None
    library, versions = saved["library"], (saved["version"], now)
    if len({newest_change(library, of, "tokens") for of in versions}) > 1:
        return None
    return f"the reference of its ids was {_named(saved)} and is {_named(_installed(library))} now"
