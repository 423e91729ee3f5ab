"""Content of a viewer's page as JSON: as many windows of each part as fit, and their vocabulary."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from tokflow.audit.ancestry import ExportTexts
from tokflow.audit.characters import Characters, TextChars
from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import MissingOutputError
from tokflow.store.integrity import report_damage_on_error
from tokflow.views.windows import PartWindows, Window

LEAST_BYTES = 2
"""Of a token: a digit of its id, and a comma."""

PADDING = -1
"""The file of a segment that is padding."""


NO_BOS, NO_EOS, NO_SPACE, NORMALISED, EOS_FIRST = 1, 2, 4, 8, 16
"""Flags of a segment. Its first token is a BOS, its last an EOS, that was put around the text and
stands for no character; its first token of the text begins with a space that the text does not
have; characters are counted in the text that the tokenizer normalised, for the raw file cannot be
read again; its first token is the EOS of the text, which the format has before it."""

Place = tuple[int, int] | tuple[int, int, list[int]]
"""Code points of the document before a segment, and its flags; where the raw file was read again
the characters of each of its tokens but BOS and EOS, start and stop, counted from there."""


def as_json(value: Any) -> bytes:
    """Return JSON that can stand in a script element: nothing in it ends the element or begins a
    comment. A file's name that is no UTF-8 keeps its bytes, as Python spells them."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode(errors="backslashreplace")


@dataclass(slots=True)
class Vocabulary:
    """The tokens that stand in a page: of each id its text or, where that is no UTF-8, bytes."""

    special: Sequence[int]
    """The ids of special tokens."""
    texts: TokenTexts | None = None
    """None: tokens are shown as ids alone."""
    entries: dict[int, bytes] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What the head of the page says of it."""
        return {"special": list(self.special), "areBytes": self._bytes is not None}

    def new(self, window: Window) -> dict[int, bytes]:
        """Return the tokens of a window that are not there yet, as JSON."""
        ids = set(np.unique(window.token_ids).tolist()) - self.entries.keys()
        found = {id_: self._shown(id_) for id_ in sorted(ids)}
        return {
            id_: b'"%d":%b' % (id_, as_json(shown))
            for id_, shown in found.items()
            if shown is not None
        }

    @property
    def _bytes(self) -> Sequence[bytes | None] | None:
        return self.texts.bytes_by_id if self.texts else None

    def _shown(self, token_id: int) -> str | list[int] | None:
        if self._bytes is None:
            return self.texts.of(token_id) if self.texts else None
        token = self._bytes[token_id] if token_id < len(self._bytes) else None
        try:
            return None if token is None else token.decode()
        except UnicodeDecodeError:
            return list(token or b"")


class Places:
    """Finds the characters of segments in their documents."""

    def __init__(self, characters: Characters, texts: ExportTexts) -> None:
        self._characters, self.texts = characters, texts
        self._last: tuple[object, TextChars] | None = None

    def of(self, entry: Mapping[str, Any], first: int, num: int) -> Place | None:
        """Return the code points of the document before the token `first`, counted in the text
        that a row of the index is of, and the flags of the `num` tokens from there; None where the
        store does not have the text."""
        try:
            outputs = self.texts.outputs_of(entry)
        except MissingOutputError:
            return None
        with report_damage_on_error(*outputs):
            return self._place_of(self._found(entry), first, num)

    def _place_of(self, found: TextChars, first: int, num: int) -> Place:
        text, raw = found.text, found.raw
        is_in = range(first, first + num)
        flags = (
            NO_BOS * (found.first == 1 and 0 in is_in)
            | NO_EOS * (found.stop < text.num_tokens and found.stop in is_in)
            | NO_SPACE * (found.space == 1 and found.first in is_in)
            | NORMALISED * found.is_normalised
        )
        if raw is None:
            return text.char_start + self._characters.before(found, first), flags
        start, _ = raw.between(first, first + num)
        own = slice(max(0, first - raw.first), max(0, first + num - raw.first))
        return text.char_start + start, flags, (raw.chars[own] - start).reshape(-1).tolist()

    def _found(self, entry: Mapping[str, Any]) -> TextChars:
        key = tuple(entry[name] for name in ("part", "raw_file", "row", "char_start"))
        if self._last is None or self._last[0] != key:
            self._last = key, self._characters.of(self.texts.text_of(entry))
        return self._last[1]


@dataclass(slots=True)
class Content:
    """Windows, raw files and tokens of a page, as long as they are less than `room` bytes."""

    vocabulary: Vocabulary
    places: Places | None = None
    """None where the store that the export was made in is not there."""
    room: int = 0
    """Bytes that are left."""
    files: dict[str, int] = field(default_factory=dict)
    """Raw files by name, each with its ordinal in the page."""
    file_json: list[bytes] = field(default_factory=list)

    def json_of(self, parts: Sequence[bytes]) -> bytes:
        """Return the fields of a page: parts that were added, raw files and tokens."""
        return b'"parts":[%b],"files":[%b],"vocabulary":{%b}' % (
            b",".join(parts),
            b",".join(self.file_json),
            b",".join(self.vocabulary.entries.values()),
        )

    def add(self, of_part: PartWindows, first: int, num: int | None, room: int) -> bytes:
        """Return the JSON of a part: at most `num` of its sequences from `first` on, in at most
        `room` bytes with the tokens and files that are new."""
        limit = self.room - room
        most = max(1, room // LEAST_BYTES // of_part.length + 1)
        asked = of_part.num_sequences - first if num is None else num
        windows: list[bytes] = []
        num_shown = first * of_part.length
        for window in of_part.windows(first, min(asked, most)):
            made = self._made(of_part, window, limit)
            if made is None:
                break
            windows.append(made)
            num_shown = window.position + len(window.token_ids)
        fields = self.fields_of(of_part, first, num_shown)
        return as_json(fields)[:-1] + b',"windows":[%b]}' % b",".join(windows)

    def _made(self, of_part: PartWindows, window: Window, limit: int) -> bytes | None:
        """Return a window as JSON, and keep the tokens and files that are new in it; None where it
        would leave less room than `limit`."""
        made, tokens, files = self._window(of_part, window)
        added = sum(len(each) + 1 for each in [made, *tokens.values(), *files.values()])
        if self.room - added < limit:
            return None
        self.room -= added
        self.vocabulary.entries |= tokens
        self.files |= {name: len(self.files) + n for n, name in enumerate(files)}
        self.file_json += files.values()
        return made

    def fields_of(self, of_part: PartWindows, first: int, stop: int) -> dict[str, Any]:
        """Return what the page says of a part of which it has sequences from `first` on, and
        positions up to `stop`."""
        export = of_part.export
        return {
            "name": of_part.part,
            "length": of_part.length,
            "isStream": export.sequence_length is None,
            "numSequences": of_part.num_sequences,
            "numTokens": export.counts[f"{of_part.part}.num_tokens"],
            "first": first,
            "stop": -(-stop // of_part.length),
            "isCut": bool(stop % of_part.length) and stop < export.num_positions(of_part.part),
        }

    def _window(
        self, of_part: PartWindows, window: Window
    ) -> tuple[bytes, dict[int, bytes], dict[str, bytes]]:
        """Return a window as JSON, and the tokens and files that are new in it.

        [position, token ids, segments, loss mask]. A segment is [tokens, file, row, token in its
        text, characters before it or null, flags] and, where the bytes of its tokens do not tell
        them, the characters of each but BOS and EOS: start and stop, counted from there. Of
        padding, whose ids are left out, it is [tokens, PADDING, id, 1 if it is in the files]. The
        loss mask is the lengths of its runs, loss tokens first; of a window where every token
        counts, 0.
        """
        token_ids: list[int] = []
        segments: list[list[Any]] = []
        numbers = dict(self.files)
        mask: list[bool] = []
        for begin, end, entry in window.segments():
            if entry is None:
                segments += _padding(window, begin, end, of_part)
                continue
            number = numbers.setdefault(entry["raw_file"], len(numbers))
            token = entry["token_in_piece"] + window.position + begin - entry["position"]
            known = self.places and self.places.of(entry, token, end - begin)
            segments.append([end - begin, number, entry["row"], token, *(known or (None, 0))])
            token_ids += window.token_ids[begin:end].tolist()
            mask += window.loss_mask[begin:end].tolist()
        if of_part.export.layout.eos_first:
            segments = _with_eos(segments)
        made = as_json([window.position, token_ids, segments, 0 if all(mask) else _runs(mask)])
        files = {name: as_json(name) for name in numbers if name not in self.files}
        return made, self.vocabulary.new(window), files


def _padding(window: Window, begin: int, end: int, of_part: PartWindows) -> Iterator[list[int]]:
    """Yield what of some padding is in the files, and what is not."""
    length, written = of_part.length, of_part.written
    columns = range(length)[written] if written is not None else range(0)
    offset = window.position % length
    inner = (min(max(at - offset, begin), end) for at in (columns.start, columns.stop))
    edges = sorted({begin, end, *inner})
    for start, stop in pairwise(edges):
        pad_id, is_in_files = int(window.token_ids[start]), start + offset in columns
        yield [stop - start, PADDING, pad_id, int(is_in_files)]


def _with_eos(segments: list[list[Any]]) -> list[list[Any]]:
    """Return segments of a format that has the EOS of a document before it: both are one."""
    made: list[list[Any]] = []
    for segment in segments:
        num, file, row, token, chars, flags, *places = segment
        is_behind_eos = made and made[-1][:3] == [1, file, row] and made[-1][3] > 0 == token
        if is_behind_eos:
            made[-1] = [num + 1, file, row, 0, chars, flags | EOS_FIRST, *places]
        else:
            made.append(segment)
    return made


def _runs(mask: list[bool]) -> list[int]:
    """Return the lengths of the runs of a mask, those of True first.

    For [False, False, True]: [0, 2, 1].
    """
    runs = [(value, len(list(same))) for value, same in groupby(mask)]
    return [0] * (not runs[0][0]) + [num for _, num in runs]
