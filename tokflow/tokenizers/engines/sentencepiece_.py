"""The reference engine of a SentencePiece model: the `sentencepiece` library."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from tokflow.pools.cores import num_cores
from tokflow.tokenizers.engines.protocol import Encoded, InText, any_of, encoded_from_lists

if TYPE_CHECKING:
    import sentencepiece

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
        if self._ids and _is_prefix_once(path.parent):
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

    def _of_parts(self, strings: Sequence[str], return_type: ReturnType) -> list[list[Any]]:
        """Return what the library makes of the text between the control symbols of each string."""
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


def _is_prefix_once(folder: Path) -> bool:
    """Return whether a tokenizer puts a space before a text alone, and none behind its symbols."""
    path = folder / "tokenizer_config.json"
    fields = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    return fields.get("legacy") is False


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
