"""The reference engine of a SentencePiece model: the `sentencepiece` library."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tokflow.pools.cores import num_cores
from tokflow.tokenizers.engines.protocol import Encoded, InText, any_of, encoded_from_lists

if TYPE_CHECKING:
    import sentencepiece

MODEL_NAME = "tokenizer.model"
"""The .model file in the tokenizer's folder."""

SPACE = "\u2581"
"""The character that stands for a space in pieces."""


class SentencePieceEngine:
    """A .model through `sentencepiece`; its normalisation of the text is the tokenizer's own.

    Left alone, SentencePiece never makes a control symbol of text, which is `ordinary`. For
    `control` the text is cut at every control symbol it spells, the longest where several begin,
    the texts between are encoded each on its own (with its own dummy prefix, if the model has
    one, as LlamaTokenizer does it) and the symbols' ids stand between. User-defined symbols are
    part of the text in both.
    """

    name = "sentencepiece"

    def __init__(self, path: Path, *, in_text: InText) -> None:
        self._processor = load_processor(path.read_bytes())
        self._ids = control_symbols(self._processor) if in_text == "control" else {}
        self._spelt = any_of(self._ids)

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text; no BOS and no EOS."""
        strings = texts.to_pylist()
        if not self._ids:
            return encoded_from_lists(self._of_library(strings, "numpy"))
        between = [self._spelt.split(text) for text in strings]
        encoded = iter(self._of_library([one for parts in between for one in parts], "numpy"))
        documents = []
        for text, parts in zip(strings, between, strict=True):
            token_ids = next(encoded).tolist()
            for symbol, _ in zip(self._spelt.findall(text), parts[1:], strict=True):
                token_ids += [self._ids[symbol], *next(encoded).tolist()]
            documents.append(token_ids)
        return encoded_from_lists(documents)

    def char_spans(self, texts: pa.LargeStringArray) -> list[tuple[int, int]]:
        """Return for each token that `encode` gives how many code points of its text are before
        it, and how many up to its end, the texts one after another.

        The library gives a character that became several pieces to the last of them: here each has
        it. A space that is put before the text is none of its characters.
        """
        spans: list[tuple[int, int]] = []
        for text in texts.to_pylist():
            symbols = self._spelt.findall(text)
            between = self._spelt.split(text)
            position = 0
            mappings = self._of_library(between, "offset_mapping")
            for index, (one, mapping) in enumerate(zip(between, mappings, strict=True)):
                shared = _with_shared(mapping["pieces"], mapping["offsets"])
                spans += [(position + start, position + stop) for start, stop in shared]
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

    def _of_library(
        self, strings: list[str], return_type: Literal["numpy", "offset_mapping"]
    ) -> list[Any]:
        encoded: list[Any] = self._processor.encode(
            strings, return_type=return_type, num_threads=num_cores()
        )
        return encoded


def _with_shared(
    pieces: Sequence[str], offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the offsets of pieces with the characters that a piece shares with those behind it."""
    spans = list(offsets)
    for index in range(len(spans) - 2, -1, -1):
        (start, stop), following = spans[index], spans[index + 1]
        is_put_before = index == 0 and pieces[0] == SPACE
        if start == stop == following[0] and not is_put_before:
            spans[index] = following
    return spans


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
