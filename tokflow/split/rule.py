"""The rule of a split: the part that each document, or each span of one, belongs to."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BeforeValidator, Field

from tokflow.errors import ConfigError, nearest
from tokflow.split.permutation import mixed, ranks_of_draw
from tokflow.store.config import Config, check_name
from tokflow.store.tables import to_numpy
from tokflow.tokens.shard_files import hashes_as_array

Form = Literal["characters", "documents", "fraction", "hash_fraction", "files", "source_split"]

Scope = Literal["file", "dataset"]

_FORMS_OF_RANGES = ("characters", "documents")

NO_PART = -1

LONGEST = "num_tokens_of_longest"
"""Name of a count that is a maximum, no sum; old splits do not have it."""

NOT_TAKEN = "no_part"
"""The name that counts give to the text that no part takes."""


class PartConfig(Config):
    """One named part; exactly one form, the same for all parts of a split."""

    section: ClassVar[str] = "split.parts"

    start: Annotated[int | None, Field(ge=0)] = None
    """First character (or document, with `documents`) of the part; default 0."""
    characters: Annotated[int | None, Field(ge=0)] = None
    """Code points from `start` on; without it the part runs to the end."""
    documents: Annotated[int | None, Field(ge=0)] = None
    """Documents from `start` on."""
    fraction: Annotated[float | None, Field(ge=0, le=1), "a share"] = None
    """Share of the documents, drawn without replacement with the split's seed; 1.0 takes all."""
    hash_fraction: Annotated[float | None, Field(ge=0, le=1), "a share"] = None
    """Share of the documents by a hash of their text: a text stays in its part when files come
    and go, and equal texts are always in the same part."""
    files: str | None = None
    """Whole raw files, a pattern over their keys such as `val-*.parquet`."""
    source_split: str | None = None
    """Whole raw files: those of a split that the source itself has, as a dataset of the hub or a
    folder of `save_to_disk`. A split that no part takes is not read."""

    @property
    def form(self) -> Form | None:
        """The form this part has; None where `start` alone does not tell."""
        return next((form for form in get_args(Form) if getattr(self, form) is not None), None)

    def check(self) -> None:
        """Refuse two forms in one part."""
        has_start = self.start is not None
        forms = [form for form in get_args(Form) if getattr(self, form) is not None]
        if len(forms) > 1 or (has_start and self.form not in (None, *_FORMS_OF_RANGES)):
            raise ConfigError(
                where="",
                expected="one form per part: {start, characters}, {start, documents}, "
                "{fraction}, {hash_fraction}, {files} or {source_split}",
                found=" and ".join([*forms, *(["start"] if has_start else [])]),
                remedy="keep one",
            )


Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""A part that is a bare number: its share of the documents."""


def as_part(part: object) -> object:
    """Return the fields that a bare share stands for; anything else as it is."""
    if isinstance(part, int | str):
        raise ConfigError(
            where="",
            expected="a share with a point, or a mapping",
            found=repr(part),
            remedy="write it as 0.9, as {documents: 1000} or as {characters: 1_000_000}",
        )
    return {"fraction": part} if isinstance(part, float) else part


def with_parts(split: object) -> object:
    """Return the fields of a split whose parts stand beside them as shares: `{train: 0.9, seed: 1}`
    is `{parts: {train: 0.9}, seed: 1}`; anything else as it is."""
    if not isinstance(split, Mapping) or "parts" in split:
        return split
    fields = list(SplitConfig.model_fields)
    shares = {n: of for n, of in split.items() if isinstance(of, float) and n not in fields}
    rest = {name: of for name, of in split.items() if name not in shares}
    for name, of in rest.items():
        if isinstance(of, Mapping | int) and nearest(name, fields) is None:
            raise ConfigError(
                where="",
                expected="parts as shares with a point, or under `parts`",
                found=f"{name}: {of}",
                remedy=f"write `parts: {{{name}: ...}}`",
            )
    if shares and "train" not in shares and sum(shares.values()) < 1:  # a field that is misspelt?
        given = ", ".join(f"{name}: {of}" for name, of in shares.items())
        raise ConfigError(
            where="",
            expected="`train` among the shares, 1.0 together, or parts under `parts`",
            found=given,
            remedy=f"write `parts: {{{given}}}` if these are parts",
        )
    return {**rest, "parts": shares} if shares else split


class SplitConfig(Config):
    """Division of the accepted text of the dataset into named parts."""

    section: ClassVar[str] = "split"

    parts: dict[
        str,
        Annotated[PartConfig, BeforeValidator(as_part, json_schema_input_type=PartConfig | Share)],
    ] = Field(default_factory=lambda: {"train": PartConfig(start=0)})
    """Name to part, in the order of the YAML; without a split everything is `train`. A number with
    a point stands for a fraction: `{train: 0.9, validation: 0.1}`."""
    scope: Scope = "file"
    """file: every raw file, or group of them, is divided by itself; dataset: offsets run over all
    files in the order of their keys."""
    boundary: Literal["document", "character"] = "document"
    """document: a document belongs whole to the part its first character falls in; character:
    it is cut there, and each side is tokenized on its own."""
    seed: int = 0
    """For `fraction` and `hash_fraction`: another seed gives another, independent draw."""

    @property
    def form(self) -> Form:
        """The one form of all parts; {start} alone counts characters, if no other part does not."""
        forms = (part.form for part in self.parts.values())
        return next((form for form in forms if form is not None), "characters")

    def ranges(self) -> dict[str, tuple[int, int | None]]:
        """Return name to (start, stop) in characters or documents; None runs to the end."""
        ranges: dict[str, tuple[int, int | None]] = {}
        for name, part in self.parts.items():
            start = part.start or 0
            size = part.characters if part.characters is not None else part.documents
            ranges[name] = (start, None if size is None else start + size)
        return ranges

    def of_file(self, key: str, source_split: str | None) -> "SplitConfig":
        """Return the split of one raw file, given its key and the split of its source that it is
        of: where parts take whole files, at most one part has all characters, the rest have none.

        Raises: ConfigError for a file that matches the patterns of two parts.
        """
        if not self.takes_whole_files:
            return self
        taking = part_of_file(key, source_split, self)
        parts = {
            name: PartConfig(start=0, characters=None if number == taking else 0)
            for number, name in enumerate(self.parts)
        }
        return SplitConfig(parts=parts)

    @property
    def takes_whole_files(self) -> bool:
        """True if parts take raw files whole: `of_file` says which."""
        return self.form in ("files", "source_split")

    @property
    def is_drawn(self) -> bool:
        """True if the seed decides which documents a part takes: a part has a share of them that is
        neither none nor all."""
        shares = [of.fraction or of.hash_fraction or 0 for of in self.parts.values()]
        return not {0, 1}.issuperset(shares)

    def check(self) -> None:
        """Refuse names that cannot be, parts of two forms, and parts that overlap."""
        if not self.parts:
            remedy = "name one, or leave `split` out to put everything into train"
            raise _error_of_parts("at least one part", "none", remedy)
        for name in self.parts:
            check_name(name, where="parts", becomes="a file", marks="-_")
        if NOT_TAKEN in self.parts:
            remedy = "rename the part: counts use that name for text in no part"
            raise _error_of_parts("another name", repr(NOT_TAKEN), remedy)
        is_of_ranges = self.form in _FORMS_OF_RANGES
        forms = {of.form or (self.form if is_of_ranges else "none") for of in self.parts.values()}
        if len(forms) > 1:
            *forms_but_last, last = get_args(Form)
            remedy = f"declare all parts by {', '.join(forms_but_last)} or {last}"
            raise _error_of_parts("the same form in all parts", " and ".join(sorted(forms)), remedy)
        if self.boundary == "character" and self.form != "characters":
            raise ConfigError(
                where="boundary",
                expected="document, or parts of the form {start, characters}",
                found=f"character, with parts by {self.form}",
                remedy="set split.boundary: document",
            )
        if is_of_ranges:
            _check_ranges(self.ranges(), unit=self.form)
        elif self.form == "source_split":
            first_with: dict[str | None, str] = {}
            for name, part in self.parts.items():
                if (other := first_with.setdefault(part.source_split, name)) != name:
                    found = f"{part.source_split} of the source in {other} and in {name}"
                    raise _error_of_parts("parts that do not overlap", found, "keep one of them")
        elif self.form != "files":
            total = sum(getattr(part, self.form) for part in self.parts.values())
            if total > 1 + 1e-9:
                remedy = "lower one, since parts may not overlap"
                raise _error_of_parts("fractions that add up to at most 1", f"{total:g}", remedy)


def _error_of_parts(expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where="parts", expected=expected, found=found, remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePosition:
    """The place of a raw file in its dataset; needed for scope dataset alone."""

    first_char: int = 0
    """Accepted characters in all files before this one."""
    first_document: int = 0
    """Accepted documents in all files before this one."""
    total_documents: int = 0
    """Accepted documents in all files; used by `fraction`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSpans:
    """The spans of one file, in file order: a document is one span or, if it is cut, several.

    Every array has shape (num_spans,), int64 except `is_cut`.
    """

    document: npt.NDArray[np.int64]
    """Index of the span's document in documents.parquet."""
    char_start: npt.NDArray[np.int64]
    """Code points of the document before the span; 0 unless the document is cut."""
    num_chars: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]
    """Ordinal in the config of the part that takes the span, or NO_PART."""
    is_cut: npt.NDArray[np.bool_]
    """The span is less than its document."""


def assign_parts(
    documents: pa.Table, config: SplitConfig, key: str, position: FilePosition
) -> FileSpans:
    """Return the part that each document of one file belongs to, cut where the config says so.

    Every character of the file is in exactly one span. An empty document goes with the
    character before it. `documents`: columns of documents.parquet; `key`: its raw file's;
    `config`: as `of_file` returns it.

    Parts of {start: 0, characters: 5} and {start: 5, characters: 4} over documents of 3, 4 and
    3 characters:

        boundary document    part  [0, 0, 1]
        boundary character   document  [0, 1, 1, 2, 2]   num_chars  [3, 2, 2, 2, 1]
                             part      [0, 0, 1, 1, -1]
    """
    num, num_chars = documents.num_rows, to_numpy(documents["num_chars"])
    ordinals = np.arange(num, dtype=np.int64)
    match config.form:
        case "characters":
            starts = to_numpy(documents["char_offset"]) + position.first_char
            if config.boundary == "character":
                return _cut(starts, num_chars, config)
            part = _part_of_position(np.maximum(starts - (num_chars == 0), 0), config)
        case "documents":
            part = _part_of_position(ordinals + position.first_document, config)
        case "fraction":
            total, first = num, 0
            if config.scope == "dataset":
                key, total, first = "", position.total_documents, position.first_document
            ranks = ranks_of_draw(total, config.seed, key)[first : first + num]
            shares = np.cumsum([part.fraction or 0.0 for part in config.parts.values()])
            edges = np.floor(shares * total + 0.5 + 1e-9).astype(np.int64)
            part = np.searchsorted(edges, ranks, side="right")
            part = np.where(part < len(edges), part, NO_PART)
        case "hash_fraction":
            shares = np.cumsum([part.hash_fraction or 0.0 for part in config.parts.values()])
            texts = hashes_as_array(documents["text_hash"])
            uniform = mixed(texts.view(">u8")[0::2].astype(np.uint64), config.seed) / 2.0**64
            part = np.searchsorted(shares, uniform, side="right")
            part[(part == len(shares)) & (shares[-1] > 1 - 1e-9)] = len(shares) - 1
            part = np.where(part < len(shares), part, NO_PART)
    return FileSpans(
        document=ordinals,
        char_start=np.zeros(num, dtype=np.int64),
        num_chars=num_chars,
        part=part,
        is_cut=np.zeros(num, dtype=bool),
    )


def part_of_file(key: str, source_split: str | None, config: SplitConfig) -> int:
    """Return the ordinal of the part that takes a raw file whole, by its key or by the split of
    its source; NO_PART where none does.

    Raises: ConfigError where two do.
    """
    matching = [
        name
        for name, part in config.parts.items()
        if (part.files is not None and fnmatch.fnmatch(key, part.files))
        or (source_split is not None and part.source_split == source_split)
    ]
    if len(matching) > 1:
        raise ConfigError(
            where=f"split.parts: {key}",
            expected="a raw file in at most one part",
            found=f"it matches {' and '.join(matching)}",
            remedy="narrow the patterns, since parts may not overlap",
        )
    return list(config.parts).index(matching[0]) if matching else NO_PART


def _part_of_position(
    positions: npt.NDArray[np.int64], config: SplitConfig
) -> npt.NDArray[np.int64]:
    part = np.full(len(positions), NO_PART, dtype=np.int64)
    for ordinal, (start, stop) in enumerate(config.ranges().values()):
        is_inside = positions >= start
        if stop is not None:
            is_inside &= positions < stop
        part[is_inside] = ordinal
    return part


def _cut(
    starts: npt.NDArray[np.int64], num_chars: npt.NDArray[np.int64], config: SplitConfig
) -> FileSpans:
    """Cut documents, which begin at `starts`, at every edge of a part that falls inside them."""
    ranges = [(start, stop) for start, stop in config.ranges().values() if start != stop]
    edges = sorted({edge for range_ in ranges for edge in range_ if edge})
    inside = [np.flatnonzero((starts < edge) & (edge < starts + num_chars)) for edge in edges]
    cuts = [edge - starts[some] for edge, some in zip(edges, inside, strict=True)]
    document = np.concatenate([np.arange(len(starts)), *inside])
    char_start = np.concatenate([np.zeros_like(starts), *cuts])
    order = np.lexsort((char_start, document))
    document, char_start = document[order], char_start[order]
    is_last = np.diff(document, append=len(starts)) != 0
    size = np.where(is_last, num_chars[document], np.append(char_start[1:], 0)) - char_start
    return FileSpans(
        document=document,
        char_start=char_start,
        num_chars=size,
        part=_part_of_position(np.maximum(starts[document] + char_start - (size == 0), 0), config),
        is_cut=size != num_chars[document],
    )


def _check_ranges(ranges: dict[str, tuple[int, int | None]], *, unit: str) -> None:
    taken = [item for item in ranges.items() if item[1][0] != item[1][1]]  # not the empty ones
    by_start = sorted(taken, key=lambda item: item[1][0])
    for (left, (start, stop)), (right, (next_start, _)) in pairwise(by_start):
        if stop is None or stop > next_start:
            end = "the end" if stop is None else f"{stop:,}"
            found = f"{left} takes {unit} {start:,} to {end} and {right} starts at {next_start:,}"
            remedy = f"start {right} where {left} ends, or shorten {left}"
            raise _error_of_parts("parts that do not overlap", found, remedy)


def span_counts(
    spans: FileSpans, num_tokens: npt.NDArray[np.int64], names: tuple[str, ...]
) -> dict[str, int]:
    """Count for each part, and for what no part takes, the documents, characters and tokens.

    num_cut_pieces counts spans that are less than their document, num_documents whole documents.
    num_tokens of a cut span are those of its text alone, also where no part takes it.
    num_tokens_of_longest is the most that a span has.
    """
    counts: dict[str, int] = {}
    for ordinal, name in enumerate((*names, NOT_TAKEN)):
        is_in = spans.part == (NO_PART if name == NOT_TAKEN else ordinal)
        counts[f"{name}.num_documents"] = int(np.count_nonzero(is_in & ~spans.is_cut))
        counts[f"{name}.num_cut_pieces"] = int(np.count_nonzero(is_in & spans.is_cut))
        counts[f"{name}.num_chars"] = int(spans.num_chars[is_in].sum())
        counts[f"{name}.num_tokens"] = int(num_tokens[is_in].sum())
        counts[f"{name}.{LONGEST}"] = int(num_tokens[is_in].max(initial=0))
    return counts
