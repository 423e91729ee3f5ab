"""Train a byte-level BPE tokenizer on raw files."""

import json
import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.errors import TokenizerError
from tokflow.pools.pool import Advance
from tokflow.raw import RawFile
from tokflow.store.tables import text_buffers
from tokflow.tokenizers import (
    BYTE_LETTERS,
    GPT2,
    byte_level_model,
    pre_tokenizer_fields,
    special_token_fields,
)
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.engines import panics_as_errors
from tokflow.tokenizers.engines.hugging_face import is_version_1, not_in_version_1
from tokflow.tokenizers.tokenizer import TokenizerConfig

READ_BYTES = 16_000_000
"""Text read at once where `tokenizers` trains."""

SEPARATOR = b"\xff"
"""Stands between documents while training: a byte that no UTF-8 text holds."""


def train_tokenizer(
    raw_files: Mapping[str, RawFile],
    documents: DocumentsConfig,
    config: TokenizerConfig,
    path: Path,
) -> dict[str, Any]:
    """Write a tokenizer.json trained on the documents of `raw_files`; return what it saw.

    The same files give the same bytes, whatever the number of cores. Ids 0 to 255 are the bytes,
    then the merges in the order they were found, then the special tokens, which training never
    sees. A text too small for `vocab_size` gives fewer ids. The merges are those of Hugging
    Face's `BpeTrainer` with the same split pattern: gigatoken finds them where the pattern is
    GPT-2's, the only one it has, and `tokenizers` itself for any other, several times slower.

    Of each raw file the documents are read up to the one in which `max_characters` is reached,
    or the limit of `documents` if that is lower; no document is cut.

    Source: gigatoken 0.10.0 `train_bpe` with ties broken as Hugging Face's trainer breaks them.
    """
    pattern, special_tokens = config.pattern, config.special_tokens
    if _trainer(pattern) == "tokenizers" and is_version_1():
        raise not_in_version_1(f"trains with the pattern {pattern}, and not gpt2")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".training-") as folder:
        text = Path(folder) / "documents.txt"
        seen = _write_text(raw_files, documents, config, text)
        num_merges = config.vocab_size - 256 - len(special_tokens)
        merges = _train(text, num_merges, pattern) if seen["num_bytes"] else []
    fields = _tokenizer_json(merges, special_tokens, pattern)
    path.write_text(json.dumps(fields, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return {**seen, "trainer": _trainer(pattern), "pattern": pattern}


def _trainer(pattern: str) -> str:
    return "gigatoken" if pattern == GPT2 else "tokenizers"


def _write_text(
    raw_files: Mapping[str, RawFile],
    documents: DocumentsConfig,
    config: TokenizerConfig,
    path: Path,
) -> dict[str, int]:
    limits = [of for of in (documents.limit.characters, config.max_characters) if of is not None]
    limit = documents.limit.model_copy(update={"characters": min(limits, default=None)})
    limited = documents.model_copy(update={"limit": limit})
    seen = {"num_documents": 0, "num_characters": 0, "num_bytes": 0}
    render = open_renderer(documents, None)
    # Control tokens that a chat template writes are no text to find merges in.
    names = [re.escape(name.encode()) for name in config.special_tokens]
    control = re.compile(b"|".join(names) or b"(?!)")
    with path.open("wb") as file:
        for key in sorted(raw_files):
            for batch in DocumentSource([raw_files[key].path], limited).batches(render=render):
                offsets, data = text_buffers(batch.texts)
                for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                    text = data[start:stop].data
                    file.write(text if render is None else control.sub(SEPARATOR, text))
                    file.write(SEPARATOR)
                seen["num_documents"] += len(batch.rows)
                seen["num_characters"] += int(batch.num_chars.sum())
                seen["num_bytes"] += int(offsets[-1] - offsets[0])
            raw_files[key].check_unchanged()
    return seen


def _train(text: Path, num_merges: int, pattern: str) -> list[tuple[bytes, bytes]]:
    """Return the merges, found in a process of its own: gigatoken prints while it trains."""
    from tokflow.pools.local import Worker  # 0.04 s to import

    with Worker() as worker:
        worker.begin(pickle.dumps((_find_merges, (text, num_merges, pattern))))
        found: list[tuple[bytes, bytes]] | Exception = worker.result()
    if isinstance(found, Exception):  # of the library, or of a process that was killed
        raise TokenizerError(
            where="tokenizer.kind: trained",
            expected=f"the trainer of {_trainer(pattern)} to finish without an error",
            found=f"{type(found).__name__}: {found}",
            remedy="give it less text with tokenizer.max_characters, or train it on another "
            "machine and use kind: file",
        ) from found
    return found


def _tokenizer_json(
    merges: Sequence[tuple[bytes, bytes]], special_tokens: Sequence[str], pattern: str
) -> dict[str, Any]:
    """Return the fields of a tokenizer.json: byte-level BPE with a split pattern."""
    model = byte_level_model(merges)
    vocab = model["vocab"]
    if taken := [name for name in special_tokens if name in vocab]:
        where = "tokenizer.special_tokens"
        expected = "names that no token made from the text has"
        remedy = "put brackets around it, as in <|name|>"
        raise TokenizerError(where=where, expected=expected, found=repr(taken[0]), remedy=remedy)
    fields: dict[str, Any] = json.loads(_EMPTY_TOKENIZER)
    fields["added_tokens"] = [
        special_token_fields(name, len(vocab) + index) for index, name in enumerate(special_tokens)
    ]
    fields["pre_tokenizer"] = pre_tokenizer_fields(pattern)
    fields["model"] |= model
    return fields


_EMPTY_TOKENIZER = """{
"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
"pre_tokenizer": null, "post_processor": null,
"decoder": {"type": "ByteLevel", "trim_offsets": true, "use_regex": true, "add_prefix_space": true},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
"end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false}}"""
"""The fields of a tokenizer.json in the order of their library."""


def _find_merges(task: tuple[Path, int, str], advance: Advance) -> list[tuple[bytes, bytes]]:
    from tokflow.pools.local import end_with_starter

    text, num_merges, pattern = task
    end_with_starter()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with panics_as_errors():
        if _trainer(pattern) == "tokenizers":
            return _train_tokenizers(text, num_merges, pattern)
        import gigatoken

        _, merges = gigatoken.train_bpe(text, 256 + num_merges, [], separator=SEPARATOR)
        return list(merges)


def _train_tokenizers(text: Path, num_merges: int, pattern: str) -> list[tuple[bytes, bytes]]:
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    def documents() -> Iterator[str]:
        rest = b""
        with text.open("rb") as file:
            while block := file.read(READ_BYTES):
                *whole, rest = (rest + block).split(SEPARATOR)
                yield from map(bytes.decode, whole)

    # `tokenizers` makes a pre-tokenizer from JSON only as part of a whole tokenizer.
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(_tokenizer_json([], [], pattern)))
    tokenizer.model = models.BPE()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        min_frequency=0,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(), trainer)
    byte_of = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}.__getitem__
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(bytes(map(byte_of, left)), bytes(map(byte_of, right))) for left, right in merges]
