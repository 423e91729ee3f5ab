"""The fast engine: gigatoken, fed with Arrow buffers."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.pools.machine import num_cores
from tokflow.store.tables import text_buffers
from tokflow.tokenizers import flat_steps, special_token_fields
from tokflow.tokenizers.engines import Encoded, InText, encoded_from_lists
from tokflow.tokenizers.engines.reference import MODEL_NAME
from tokflow.tokenizers.tokenizer import RANKS_NAME, Tokenizer, read_encoding, scan_tokenizer_json

CACHE_BUDGET_BYTES = 200_000_000
"""Text after which gigatoken is built anew, since its caches of word pieces have no bound. With
this budget 1 GB of code takes 80 to 90 MB more memory than 100 MB of it; without one, 200 MB
more. Building it takes 0.2 s, and its caches fill again in another 0.2 s."""

ALONE_BYTES = 2_000
"""Size from which texts on average are encoded one by one where no cores share them: of 18 kB in
0.91 of the time of a batch, of 2 kB in the same, of 400 bytes in twice as much. Batches are what
gigatoken answers with arrays of awkward, whose import takes 0.25 s."""

FEW_TEXTS = 3_000
"""Texts of any size in a batch that are not worth that import."""

PRETOKENIZERS = {"gpt2": "gpt2", "r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}
"""tiktoken's encodings to gigatoken's name of their split pattern. p50k is not among them: its
ranks leave a hole at 50,256, which gigatoken's loader refuses."""


UNLIKE_PATTERNS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)
"""Patterns of a tokenizer.json that gigatoken 0.10 splits otherwise than Oniguruma: it takes both
for tiktoken's cl100k. Oniguruma reads `{1,3}+` as any number of digits, and without `\\s++$` the
white space that ends a text is cut after its last line end."""


class GigatokenEngine:
    """A tokenizer through gigatoken 0.10.

    Its file sources are never used: its JSON lines source stops silently at the first bad line.
    """

    name = "gigatoken"

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._tokenizer = build()
        self._num_cores = num_cores()
        self._dtype = np.uint16 if self._tokenizer.vocab_size <= 65_536 else np.uint32
        self._num_bytes = 0

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text."""
        offsets, data = text_buffers(texts)
        num_bytes = int(offsets[-1] - offsets[0])
        if self._num_bytes + num_bytes > CACHE_BUDGET_BYTES and self._num_bytes:
            del self._tokenizer  # its memory is freed before the next one is built
            self._tokenizer = self._build()
            self._num_bytes = 0
        self._num_bytes += num_bytes
        if self._num_cores == 1 and num_bytes >= ALONE_BYTES * (len(texts) - FEW_TEXTS):
            encode, view = self._tokenizer.backend.encode, data.data
            spans = pairwise(offsets.tolist())
            found = [encode(bytes(view[start:stop])) for start, stop in spans]
            return encoded_from_lists(found, self._dtype)
        strings = _strings(offsets, data)
        layout = self._tokenizer.encode_batch(strings, parallel=self._num_cores > 2).layout
        token_offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        token_ids = layout.content.data[token_offsets[0] : token_offsets[-1]]
        return Encoded(token_ids=token_ids, offsets=token_offsets - token_offsets[0])


def open_gigatoken(tokenizer: Tokenizer, *, in_text: InText) -> GigatokenEngine:
    """Return the fast engine for `tokenizer`, on all cores or on one.

    On one where there are no more than two, since reading and writing keep the other busy: with a
    cache for each thread, 300 MB of code take 3.5 s of processor time on two cores and 2.5 s on
    one.

    Raises: whatever gigatoken raises for a tokenizer that it does not support.
    """
    import gigatoken

    if tokenizer.kind == "tiktoken":
        encoding, path = read_encoding(tokenizer.folder), tokenizer.folder / RANKS_NAME
        name = encoding["name"]
        if name not in PRETOKENIZERS:
            raise ValueError(f"gigatoken has no split pattern for the encoding {name!r}")
        special = encoding["special_tokens"] if in_text == "control" else {}
        split = PRETOKENIZERS[name]
        return GigatokenEngine(lambda: gigatoken.Tokenizer.from_tiktoken(path, split, special))
    fields = _tokenizer_json(tokenizer)
    _check_steps(fields)
    if in_text == "ordinary":
        # gigatoken makes a control token of every special token that it knows of; those that
        # are not special (a word added to the vocabulary) must keep working.
        fields["added_tokens"] = [
            token for token in fields.get("added_tokens") or [] if not token["special"]
        ]
    # The reference is called without special tokens, truncation and padding.
    fields.update(post_processor=None, truncation=None, padding=None)
    json_bytes = msgspec.json.encode(fields)
    return GigatokenEngine(lambda: gigatoken.Tokenizer.from_json(json_bytes))


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer.json that was saved, or what gigatoken makes of a .model.

    gigatoken's conversion leaves out one special token, the unknown piece.
    """
    if tokenizer.kind != "sentencepiece":
        if fields := scan_tokenizer_json(tokenizer.folder):
            return fields
        raise ValueError("only transformers can load it")
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    model = (tokenizer.folder / MODEL_NAME).read_bytes()
    fields = msgspec.json.decode(sentencepiece_to_tokenizer_json(model), type=dict[str, Any])
    known = {token["content"] for token in fields["added_tokens"]}
    fields["added_tokens"] += [
        special_token_fields(name, token_id)
        for name, token_id in tokenizer.special_tokens.items()
        if name not in known
    ]
    return fields


def _check_steps(fields: Mapping[str, Any]) -> None:
    """Check that the pre-tokenizer is nothing but patterns and bytes, each used as gigatoken does.

    gigatoken 0.10 looks at the patterns alone: it leaves out steps such as Digits, a second split
    by ByteLevel and what is to be done with a match.

    Raises: ValueError.
    """
    model = fields["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):  # refused, or SentencePiece
        return
    *splits, last = flat_steps(fields.get("pre_tokenizer"), "pretokenizers") or [{"type": "none"}]
    wanted = {(False, "Isolated")} if len(splits) > 1 else {(False, "Isolated"), (True, "Removed")}
    is_plain = last["type"] == "ByteLevel" and last.get("use_regex", True) == (not splits)
    for step in splits:
        how = bool(step.get("invert")), step.get("behavior")
        is_plain = is_plain and step["type"] == "Split" and how in wanted
        if is_plain and step["pattern"].get("Regex") in UNLIKE_PATTERNS:
            raise ValueError(f"it splits otherwise by the pattern {step['pattern']['Regex']}")
    if not is_plain:
        steps = ", ".join(step["type"] for step in (*splits, last))
        raise ValueError(f"its pre_tokenizer ({steps}) is more than patterns and bytes")


def _strings(offsets: np.ndarray, data: np.ndarray) -> Any:
    """Return Arrow's buffers as the array of strings that gigatoken borrows."""
    import awkward
    from awkward.contents import ListOffsetArray, NumpyArray
    from awkward.index import Index64

    characters = NumpyArray(data, parameters={"__array__": "char"})
    return awkward.Array(
        ListOffsetArray(Index64(offsets), characters, parameters={"__array__": "string"})
    )
