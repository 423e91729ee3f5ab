"""Content of a viewer's page as JSON: as many windows of each part as fit, and their vocabulary."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.characters import Characters, TextChars
from tokflow.audit.inspection import segments_of
from tokflow.audit.texts import ExportTexts
from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import MissingOutputError
from tokflow.exports import Export
from tokflow.exports.columns import ALL_POSITIONS, positions_in_files
from tokflow.exports.index import read_index, read_spans
from tokflow.exports.options import cut, equal_sizes
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput

LEAST_BYTES = 2
"""Smallest size of a token in the page: a digit of its id, and a comma."""

PADDING = -1
"""The file of a segment that is padding."""


STREAM_WINDOW = 1_024
"""Tokens of a window where there are no sequences."""

LONGEST_WINDOW = 4_096
"""Positions of a window at most: a longer sequence is several, for a browser to draw each at
once."""

POSITIONS_AT_ONCE = 2**18

NO_BOS, NO_EOS, NO_SPACE, NORMALISED, EOS_FIRST = 1, 2, 4, 8, 16
"""Flags of a segment. Its first token is a BOS, its last an EOS, that was put around the text and
stands for no character; its first token of the text begins with a space that the text does not
have; characters are counted in the text that the tokenizer normalised, for the raw file cannot be
read again; its first token is the EOS of the text, which the format has before it."""

Place = tuple[Any, ...]
"""Code points of the document before a segment, and its flags; where bytes do not tell them, the
characters of each of its tokens but BOS and EOS, start and stop, counted from there, or 0; of chats
the turns that its tokens are of: how many tokens, and words that say whose and why."""


def as_json(value: Any) -> bytes:
    """Return JSON that can stand in a script element: nothing in it ends the element or begins a
    comment. A file's name that is no UTF-8 keeps its bytes, as Python spells them."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Neighbouring positions of a part, all of one sequence or of a stream."""

    position: int
    """Its first position in the part."""
    token_ids: npt.NDArray[np.unsignedinteger]
    """(num_positions,), tokens and padding."""
    loss_mask: npt.NDArray[np.bool_]
    """(num_positions,), True at loss tokens; of padding anything."""
    entries: list[dict[str, Any]]
    """Rows of the index that touch it; what none touches is padding."""

    def segments(self) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
        """Yield where each segment begins and ends in the window, and its row of the index; None of
        padding."""
        positions = range(self.position, self.position + len(self.token_ids))
        for begin, end, entry in segments_of(self.entries, positions):
            yield begin - self.position, end - self.position, entry


class PartWindows:
    """The windows of one part of an export, read in order: of all its sequences, or of chosen
    spans of positions."""

    def __init__(
        self, output: StoredOutput, part: str, *, chosen: Sequence[range] = (), name: str = ""
    ) -> None:
        """`chosen`: each a window, of sequences whole ones; `name`: by default that of the part."""
        self.output, self.part, self.name = output, part, name or part
        self.export = Export(output).of_part(part)
        """The export, with the sequence_length of the part."""
        longest = max(map(len, chosen), default=STREAM_WINDOW)
        self.length = self.export.sequence_length or longest
        """Positions of a sequence; of a stream those of a window."""
        end = self.export.num_positions(part)
        self.chosen = [range(of.start, min(of.stop, end)) for of in chosen]
        self.num_sequences = len(chosen) or -(-end // self.length)
        """Sequences of the part; of a stream, and of what is chosen, windows."""
        is_stream = self.export.sequence_length is None
        self.written = ALL_POSITIONS if is_stream else positions_in_files(self.export, part)
        """The positions of each sequence that are in the files; None: those of its tokens."""

    def windows(self, first: int, num: int) -> Iterator[Window]:
        """Yield those of `num` sequences from the sequence `first` on; a sequence that is longer
        than LONGEST_WINDOW is several.

        Of the files no more is read than portions with one of them.
        """
        if self.chosen:
            spans = self.chosen[first : first + num]
            of_spans = read_spans(self.output, self.part, [(of.start, of.stop) for of in spans])
            for span, entries in zip(spans, of_spans, strict=True):
                yield from self._cut(span.start, np.concatenate([*self._tokens(span)]), entries)
            return
        position = first * self.length
        at_once = max(1, POSITIONS_AT_ONCE // self.length) * self.length
        sizes = equal_sizes(max(0, min(num, self.num_sequences - first)) * self.length, at_once)
        for taken in cut(self._tokens(range(position, position + sum(sizes))), sizes):
            tokens = np.concatenate([*taken])
            entries = read_index(self.output, self.part, position, position + len(tokens))
            yield from self._cut(position, tokens, entries)
            position += len(tokens)

    def _cut(
        self, position: int, tokens: npt.NDArray[Any], entries: list[dict[str, Any]]
    ) -> Iterator[Window]:
        """Yield the windows of tokens from a position on, given the rows of the index there."""
        starts = [entry["position"] for entry in entries]
        ends = [entry["position"] + entry["num_tokens"] for entry in entries]
        for window in self._edges(len(tokens)):
            here = range(position + window.start, position + window.stop)
            yield Window(
                position=here.start,
                token_ids=tokens["token_ids"][window],
                loss_mask=tokens["loss_mask"][window],
                entries=entries[bisect_right(ends, here.start) : bisect_left(starts, here.stop)],
            )

    def _edges(self, num: int) -> Iterator["slice[int, int, None]"]:
        """Yield the edges of the windows of `num` positions, which are whole sequences."""
        for sequence in range(0, num, self.length):
            stop = min(sequence + self.length, num)
            for start in range(sequence, stop, LONGEST_WINDOW):
                yield slice(start, min(start + LONGEST_WINDOW, stop))

    def _tokens(self, positions: range) -> Iterator[npt.NDArray[Any]]:
        """Yield what stands at some positions, whole sequences of them: the fields token_ids and
        loss_mask, (num_positions,); without a mask every token counts. Raises: as
        `Export.between`."""
        found, export = self.export.between(self.part, positions.start, positions.stop), self.export
        if not export.is_read:  # what the files were made from
            part = next(part for part in Ancestry().parts(self.output) if part.name == self.part)
            within = range(positions.start // self.length, positions.stop // self.length)
            made = part.packed.sequences(within=within)
            found = ({"token_ids": of.token_ids, "loss_mask": of.loss_mask} for of in made)
        for fields in found:
            token_ids = fields["token_ids"].reshape(-1)
            export.check_ids(token_ids, self.output.folder)
            tokens = np.ones(len(token_ids), [("token_ids", export.dtype), ("loss_mask", np.bool_)])
            tokens["token_ids"] = token_ids
            if (mask := fields.get("loss_mask")) is not None:
                tokens["loss_mask"] = mask.reshape(-1)
            yield tokens


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
            found = self._found(entry)
            text, raw = found.text, found.raw
            is_in = range(first, first + num)
            flags = (
                NO_BOS * (found.first == 1 and 0 in is_in)
                | NO_EOS * (found.stop < text.num_tokens and found.stop in is_in)
                | NO_SPACE * (found.space == 1 and found.first in is_in)
                | NORMALISED * found.is_normalised
            )
            spans = self._characters.spans_of_chat(text, first, first + num)
            said = [(num_of, ": ".join(filter(None, (of.role, of.reason)))) for num_of, of in spans]
            turns = [said] if any(words for _, words in said) else []
            if raw is None:
                before = text.char_start + self._characters.before(found, first)
                return before, flags, *([0, *turns] if turns else [])
            start, _ = raw.between(first, first + num)
            own = slice(max(0, first - raw.first), max(0, first + num - raw.first))
            chars = (raw.chars[own] - start).reshape(-1).tolist()
            return text.char_start + start, flags, chars, *turns

    def _found(self, entry: Mapping[str, Any]) -> TextChars:
        key = tuple(entry[name] for name in ("part", "raw_file", "row", "char_start"))
        if self._last is None or self._last[0] != key:
            self._last = key, self._characters.of(self.texts.text_of(entry))
        return self._last[1]


@dataclass(slots=True)
class Content:
    """Windows, raw files and tokens of a page, as long as they are less than `room` bytes."""

    special: Sequence[int]
    """The ids of special tokens."""
    texts: TokenTexts | None = None
    """None: tokens are shown as ids alone."""
    places: Mapping[Path, Places] = field(default_factory=dict)
    """By the folders of exports; none where the store is not there that one was made in."""
    room: int = 0
    """Bytes that are left."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The names of raw files as JSON; segments refer to them by their order."""
    tokens: dict[int, bytes] = field(default_factory=dict)
    """The tokens of the page: of each id its text or, where that is no UTF-8, its bytes."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the vocabulary for the head of the page."""
        return {"special": list(self.special), "areBytes": self._bytes is not None}

    @property
    def _bytes(self) -> Sequence[bytes | None] | None:
        return self.texts.bytes_by_id if self.texts else None

    def add(self, of_part: PartWindows, first: int, num: int | None, room: int) -> bytes:
        """Return the JSON of a part: at most `num` of its sequences from `first` on, in at most
        `room` bytes with the tokens and files that are new."""
        limit = self.room - room
        most = max(1, room // LEAST_BYTES // of_part.length + 1)
        asked = of_part.num_sequences - first if num is None else num
        windows: list[bytes] = []
        num_shown = first * of_part.length
        for window in of_part.windows(first, min(asked, most)):
            made, tokens, files = self._window(of_part, window)
            added = sum(len(each) + 1 for each in [made, *tokens.values(), *files.values()])
            if self.room - added < limit:
                break
            self.room -= added
            self.tokens |= tokens
            self.files |= files
            windows.append(made)
            num_shown = window.position + len(window.token_ids)
        fields = self.fields_of(of_part, first, num_shown)
        return as_json(fields)[:-1] + b',"windows":[%b]}' % b",".join(windows)

    def fields_of(self, of_part: PartWindows, first: int, stop: int) -> dict[str, Any]:
        """Return what the page says of a part of which it has sequences from `first` on, and
        positions up to `stop`."""
        export = of_part.export
        if of_part.chosen:
            stop = first = 0
        return {
            "name": of_part.name,
            **({"chosen": len(of_part.chosen)} if of_part.chosen else {}),
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
        text, and its Place, of which the first is null where it is not known]. Of
        padding, whose ids are left out, it is [tokens, PADDING, id, 1 if it is in the files]. The
        loss mask is the lengths of its runs, loss tokens first; of a window where every token
        counts, 0.
        """
        token_ids: list[int] = []
        segments: list[list[Any]] = []
        numbers = {name: number for number, name in enumerate(self.files)}
        mask: list[bool] = []
        places = self.places.get(of_part.output.folder)
        for begin, end, entry in window.segments():
            if entry is None:
                segments += _padding(window, begin, end, of_part)
                continue
            number = numbers.setdefault(entry["raw_file"], len(numbers))
            token = entry["token_in_piece"] + window.position + begin - entry["position"]
            known = places and places.of(entry, token, end - begin)
            segments.append([end - begin, number, entry["row"], token, *(known or (None, 0))])
            token_ids += window.token_ids[begin:end].tolist()
            mask += window.loss_mask[begin:end].tolist()
        if of_part.export.layout.eos_first:
            segments = _with_eos(segments)
        made = as_json([window.position, token_ids, segments, 0 if all(mask) else _runs(mask)])
        files = {name: as_json(name) for name in numbers if name not in self.files}
        ids = set(np.unique(window.token_ids).tolist()) - self.tokens.keys()
        shown = {id_: self._shown(id_) for id_ in sorted(ids)}
        tokens = {
            id_: b'"%d":%b' % (id_, as_json(of)) for id_, of in shown.items() if of is not None
        }
        return made, tokens, files

    def _shown(self, token_id: int) -> str | list[int] | None:
        if self._bytes is None:
            return self.texts.of(token_id) if self.texts else None
        token = self._bytes[token_id] if token_id < len(self._bytes) else None
        try:
            return None if token is None else token.decode()
        except UnicodeDecodeError:
            return list(token or b"")


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
