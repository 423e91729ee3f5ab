"""What must come out of a case: slow, obvious, and with no code of tokflow."""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

from tokflow_tests.fuzz import functions
from tokflow_tests.fuzz.chats import is_chat, mask_of, written
from tokflow_tests.fuzz.difference import DifferenceError, same
from tokflow_tests.fuzz.orders import document_place, taking_order
from tokflow_tests.fuzz.references import Reference

Config = Mapping[str, Any]
"""A section of the YAML; what is not in it has the default."""


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A raw file as it was made: its records, and the bytes they became."""

    key: str
    """The partition key: the path below the raw folder."""
    data: bytes
    """On disk, compressed as the key's suffix says."""
    records: tuple[Mapping[str, str | None] | None, ...] | None
    """Of each record the text of each column, None where it is no text; None for a record that is
    none at all. Of a txt file there are none."""
    content: bytes
    """Of a txt file: what is in it, decompressed."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """What is read from one raw file."""

    accepted: tuple[tuple[int, str], ...]
    """Row and text of each document."""
    rejected: tuple[int, ...]
    """Rows of bad documents."""
    error_row: int | None = None
    """Row of the bad document that stops the file, with a transform its record; then there are no
    documents."""
    records: tuple[int, ...] = ()
    """With a transform: the record of each document."""
    num_records: int = 0
    """With a transform: records that were read."""
    num_left_out: int = 0
    """Records of which a transform makes no document."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What is tokenized by itself: a document, or where the split cuts it, a piece of one."""

    file: str
    row: int
    char_start: int
    text: str
    tokens: tuple[int, ...]
    """BOS and EOS included."""
    is_cut: bool
    mask: tuple[int, ...]
    """1 for the tokens that are supervised."""


NO_PART = "no_part"
"""What is in no part."""

NO_STRATUM = "no_stratum"
"""What parts would take that is in no stratum; it is in NO_PART, too."""

NONE = (NO_PART, NO_STRATUM)

Pieces = dict[str, dict[str, list[Piece]]]
"""By part, NO_PART among them, and by raw file: its pieces in order."""


def documents_of(
    file: RawFile, config: Config, encode: Callable[[str], Sequence[int]] = str.encode
) -> Documents:
    """Return what is read of a file: up to a limit, the bad documents set aside or an error.

    `encode` gives the tokens that a limit counts.
    """
    limit = config.get("limit") or {}
    max_rejects = 0 if config.get("on_bad_document", "error") == "error" else None
    max_rejects = config.get("max_rejects", 1000) if max_rejects is None else max_rejects
    num_chars = num_documents = num_tokens = 0
    taken: list[_Row] = []
    rows = _rows(file, config)
    for row in rows:
        taken.append(row)
        if row.kind != "document":
            continue
        num_documents += bool(row.text) or limit.get("count_empty", True)
        num_chars += len(row.text)
        num_tokens += len(encode(row.text)) if "tokens" in limit else 0
        taken_so_far = {"documents": num_documents, "characters": num_chars, "tokens": num_tokens}
        if any(num >= limit.get(name, 1e18) for name, num in taken_so_far.items()):
            break
    rejected = [(number, row.record) for number, row in enumerate(taken) if row.kind == "bad"]
    if len(rejected) > max_rejects:
        return Documents(accepted=(), rejected=(), error_row=rejected[max_rejects][1])
    made = [(number, row) for number, row in enumerate(taken) if row.kind == "document"]
    return Documents(
        accepted=tuple((number, row.text) for number, row in made),
        rejected=tuple(number for number, _ in rejected),
        records=tuple(row.record for _, row in made) if "transform" in config else (),
        num_records=len({row.record for row in taken}),
        num_left_out=sum(row.kind == "left out" for row in taken),
    )


def read_all(
    files: Sequence[RawFile],
    config: Config,
    encode: Callable[[str], Sequence[int]],
    shuffle: Config,
) -> dict[str, Documents]:
    """Return what is read of each file; under a limit of all files together, of those it takes."""
    limit = dict(config.get("limit") or {})
    if limit.get("scope") != "dataset":
        return {file.key: documents_of(file, config, encode) for file in files}
    read: dict[str, Documents] = {}
    for key in taking_order((file.key for file in files), shuffle):
        [file] = [file for file in files if file.key == key]
        found = read[key] = documents_of(file, {**config, "limit": limit}, encode)
        texts = [text for _, text in found.accepted]
        taken = {
            "documents": sum(bool(text) or limit.get("count_empty", True) for text in texts),
            "characters": sum(map(len, texts)),
            "tokens": sum(len(encode(text)) for text in texts) if "tokens" in limit else 0,
        }
        limit |= {name: limit[name] - num for name, num in taken.items() if name in limit}
        if found.error_row is not None or any(limit.get(name, 1) <= 0 for name in taken):
            break
    return {file.key: read[file.key] for file in files if file.key in read}


class _Row(NamedTuple):
    record: int
    kind: Literal["document", "bad", "left out"]
    text: str = ""


def _rows(file: RawFile, config: Config) -> list[_Row]:
    """Return what becomes of each record, in order, with a transform perhaps several rows."""
    rows: list[_Row] = []
    for record, value in enumerate(_values(file, config)):
        texts: list[str] | None = None
        if value is not None and "transform" in config:
            texts = functions.apply(config["transform"].partition(":")[2], value)
        elif value is not None:
            texts = [value]
        if texts is None:
            rows.append(_Row(record, "bad"))
        else:
            rows += [_Row(record, "document", text) for text in texts]
            rows += [] if texts else [_Row(record, "left out")]
    return rows


def _values(file: RawFile, config: Config) -> list[Any]:
    """Return what the transform gets of each record, or the texts; None where that is bad."""
    if "transform" not in config or isinstance(config.get("text", "text"), str):
        return _texts(file, config)
    return [
        {name: (record or {})[name] for name in config["text"]} for record in file.records or ()
    ]


def _texts(file: RawFile, config: Config) -> list[str | None]:
    """Return the text of each row; None for one that is bad."""
    if is_chat(config):
        return [written(record, config) for record in file.records or ()]
    if file.records is None:
        return [_decoded(piece) for piece in _pieces_of_txt(file.content, config)]
    columns = config.get("text", "text")
    columns = [columns] if isinstance(columns, str) else columns
    texts: list[str | None] = []
    for record in file.records:
        values = [None if record is None else record[column] for column in columns]
        if config.get("join") is None:
            texts += values
        elif None in values:
            texts.append(None)
        else:
            texts.append(config["join"].join(map(str, values)))
    return texts


def _pieces_of_txt(content: bytes, config: Config) -> list[bytes]:
    per = config.get("document_per", "file")
    content = content.removeprefix(b"\xef\xbb\xbf")
    if per == "file":
        return [content]
    ends = config.get("separator", "").replace("\r\n", "\n").encode().split(b"\n")
    separator = b"\n" if per == "line" else b"\r?\n".join(map(re.escape, ends))
    pieces = re.split(separator, content)
    return pieces if pieces[-1] else pieces[:-1]


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def tokens_of(text: str, reference: Reference, config: Config) -> tuple[int, ...]:
    """Return the tokens of a text, with BOS and EOS; none of them twice where the text has it."""
    is_control = config.get("special_tokens_in_text") == "control"
    ids = reference.encode(text, is_control=is_control)
    if not ids and not config.get("eos_of_empty", True):
        return ()
    has_bos = config.get("bos", "none") == "first"
    has_eos = config.get("eos", "last") == "last"
    before = has_bos and not (ids and ids[0] == reference.bos_id)
    after = has_eos and not (ids and ids[-1] == reference.eos_id)
    if has_bos and has_eos and reference.bos_id == reference.eos_id and len(ids) == 1:
        after = True  # one token is not both
    return (
        *((reference.bos_id,) if before and reference.bos_id is not None else ()),
        *ids,
        *((reference.eos_id,) if after else ()),
    )


def selected(
    documents: Mapping[str, Documents], select: str, encode: Callable[[str], tuple[int, ...]]
) -> Mapping[str, Documents]:
    """Return the documents that an expression says yes to, by Python's own answer."""

    return {
        key: replace(
            of,
            accepted=tuple(each for each in of.accepted if says_yes(select, key, each[1], encode)),
        )
        for key, of in documents.items()
    }


def says_yes(
    expression: str, key: str, text: str, encode: Callable[[str], tuple[int, ...]]
) -> bool:
    """Return Python's own answer about a document."""
    num_tokens = len(encode(text)) if "num_tokens" in expression else 0  # it is slow
    sizes = {"num_chars": len(text), "num_bytes": len(text.encode())}
    values = {"file": key, "num_tokens": num_tokens, **sizes}
    return bool(eval(expression, {}, values))  # of a case that we made


def divided(
    pieces: Pieces,
    documents: Mapping[str, Documents],
    strata: Mapping[str, str],
    encode: Callable[[str], tuple[int, ...]],
) -> Pieces:
    """Return the pieces of each part by the stratum of their document, the first that is true."""
    stratum_of = {
        (key, row): next(
            (of for of, rule in strata.items() if says_yes(rule, key, text, encode)), ""
        )
        for key, found in documents.items()
        for row, text in found.accepted
    }
    names = [f"{part}.{of}" for part in pieces if part != NO_PART for of in strata]
    result: Pieces = {name: {key: [] for key in pieces[NO_PART]} for name in (*names, *NONE)}
    for part, of_files in pieces.items():
        for key, some in of_files.items():
            for piece in some:
                stratum = stratum_of[piece.file, piece.row]
                is_lost = part != NO_PART and not stratum
                name = NO_PART if part == NO_PART or is_lost else f"{part}.{stratum}"
                result[name][key].append(piece)
                result[NO_STRATUM][key] += [piece] * is_lost
    return result


Assigned = Mapping[tuple[str, int], str]
"""Part of each document, by raw file and row, for the forms whose draw only tokflow knows."""


def pieces_of(
    documents: Mapping[str, Documents],
    split: Config | None,
    encode: Callable[[str], tuple[int, ...]],
    assigned: Assigned | None,
) -> Pieces:
    """Return the pieces of each part and file."""
    split = split or {"parts": {"train": {"start": 0}}}
    pieces: Pieces = {
        name: {key: [] for key in sorted(documents)} for name in (*split["parts"], NO_PART)
    }
    first_char = first_document = 0
    for key in sorted(documents):
        if split.get("scope", "file") == "file":
            first_char = first_document = 0
        for row, text in documents[key].accepted:
            if assigned is not None:
                cuts = [(0, assigned[key, row])]
            else:
                cuts = _cuts(text, key, first_char, first_document, split)
            edges = [*(start for start, _ in cuts), len(text)]
            for number, (start, part) in enumerate(cuts):
                side = text[start : edges[number + 1]] if len(cuts) > 1 else text
                tokens = encode(side)
                pieces[part][key].append(
                    Piece(
                        file=key,
                        row=row,
                        char_start=start,
                        text=side,
                        tokens=tokens,
                        is_cut=len(cuts) > 1,
                        mask=tuple(mask_of(side, tokens)),
                    )
                )
            first_char += len(text)
            first_document += 1
    return pieces


def shuffled(pieces: Pieces, shuffle: Config) -> Pieces:
    """Return the pieces of each part and file, or of all files as of one, in the order of the seed,
    if that shuffles them."""
    if "documents" not in shuffle:
        return pieces

    def key_of(piece: Piece) -> int:
        return document_place(piece.file, piece.row, shuffle.get("seed", 0))

    if shuffle["documents"] == "dataset":
        of_all = {part: chain(*of_files.values()) for part, of_files in pieces.items()}
        return {part: {"all": sorted(some, key=key_of)} for part, some in of_all.items()}
    return {
        part: {key: sorted(some, key=key_of) for key, some in of_files.items()}
        for part, of_files in pieces.items()
    }


def form_of(split: Config | None) -> str:
    """Return the form of the parts of a split."""
    parts = (split or {"parts": {"train": {"start": 0}}})["parts"].values()
    given = {name for part in parts for name in part if name != "start" and part[name] is not None}
    return given.pop() if given else "characters"


def _cuts(
    text: str, key: str, first_char: int, first_document: int, split: Config
) -> list[tuple[int, str]]:
    """Return where the pieces of a document begin, and the part of each."""
    form = form_of(split)
    if form == "files":
        names = [n for n, p in split["parts"].items() if fnmatch.fnmatch(key, p["files"])]
        return [(0, names[0] if names else NO_PART)]
    ranges = ranges_of(split)
    if form == "documents":
        return [(0, _part_at(first_document, ranges))]
    if not text:  # goes with the character before it
        return [(0, _part_at(max(first_char - 1, 0), ranges))]
    if split.get("boundary", "document") == "document":
        return [(0, _part_at(first_char, ranges))]
    edges = {edge for start, stop in ranges.values() if start != stop for edge in (start, stop)}
    inside = [at for at in range(1, len(text)) if first_char + at in edges]
    return [(at, _part_at(first_char + at, ranges)) for at in (0, *inside)]


def ranges_of(split: Config) -> dict[str, tuple[int, float]]:
    """Return start and stop of each part, in characters or documents."""
    ranges = {}
    for name, part in split["parts"].items():
        start = part.get("start") or 0
        size = part.get("characters", part.get("documents"))
        ranges[name] = (start, float("inf") if size is None else start + size)
    return ranges


def _part_at(position: int, ranges: Mapping[str, tuple[int, float]]) -> str:
    names = [name for name, (start, stop) in ranges.items() if start <= position < stop]
    return names[0] if names else NO_PART


def check_draw(documents: Mapping[str, Documents], split: Config, assigned: Assigned) -> None:
    """A draw of documents has as many in each part as it should, and puts no equal texts apart."""
    form, parts = form_of(split), split["parts"]
    all_ids = [(key, row) for key in sorted(documents) for row, _ in documents[key].accepted]
    same("documents in one part", expected=sorted(all_ids), found=sorted(assigned))
    if form == "hash_fraction":
        part_of_text: dict[str, str] = {}
        texts = {(key, row): text for key in documents for row, text in documents[key].accepted}
        apart = [
            i for i in all_ids if part_of_text.setdefault(texts[i], assigned[i]) != assigned[i]
        ]
        if sum(part["hash_fraction"] for part in parts.values()) > 1 - 1e-9:
            apart += [i for i in all_ids if assigned[i] == NO_PART]
        same("documents not in the part of the same text, or in none", expected=[], found=apart)
        return
    scopes: Sequence[Sequence[tuple[str, int]]] = [all_ids]
    if split.get("scope", "file") == "file":
        scopes = [[i for i in all_ids if i[0] == key] for key in documents]
    for ids in scopes:
        share = 0.0
        taken = 0
        for name, part in parts.items():
            share += part["fraction"]
            taken += sum(assigned[i] == name for i in ids)
            if abs(taken - share * len(ids)) > 0.5 + 1e-6:
                raise DifferenceError(f"{taken} documents up to {name}, of {len(ids)} at {share}")
