"""Options that many formats have: names of files, their sizes, columns; limits that are kept."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tokflow.errors import ConfigError, nearest
from tokflow.store.config import Config, Count, Listed, Size, check_name
from tokflow.strata.stage import parts_within


def _checked(name: str, *, marks: str) -> str:
    check_name(name, where="", becomes="a file", marks=marks)
    return name


FileName: TypeAlias = Annotated[str, AfterValidator(partial(_checked, marks="-_"))]
"""The name of a file without its suffix, as an option has it."""

FilePrefix: TypeAlias = Annotated[str, AfterValidator(partial(_checked, marks="-_."))]
"""The beginning of the names of files, as an option has it."""


def names_in_files(
    parts: Sequence[str], names: Mapping[str, str], *, suffix: str = "", is_val: bool = True
) -> dict[str, str]:
    """Return the name of each part in file names: the one that the option `names` gives it, or its
    own and the suffix. `is_val`: `validation` is `val`, unless another part is called so.

    Raises: ConfigError where a part is not known, or two have one name.
    """
    short = "val" if is_val and not parts_within(parts, "val") else "validation"
    own = {part: re.sub(r"^validation(?=\.|$)", short, part) + suffix for part in parts}
    taken: dict[str, str] = {}
    for part, name in (named := {**own, **names}).items():
        if part not in own:
            expected, found = f"parts of the split: {', '.join(own)}", repr(part)
            remedy = nearest(part, list(own)) or "remove it"
        elif other := taken.get(name.casefold()):
            expected, remedy = "a file name of its own for each part", "give one of them another"
            found = f"{name!r} for {other} and {part}"
        else:
            taken[name.casefold()] = part
            continue
        raise ConfigError(where="names", expected=expected, found=found, remedy=remedy)
    return named


def equal_sizes(total: int, per_file: int) -> list[int]:
    """Return the sizes of the files that `total` values fill, `per_file` each; the last has the
    rest. Empty where there is nothing."""
    return [min(per_file, total - start) for start in range(0, total, per_file)]


def even_sizes(total: int, num: int) -> list[int]:
    """Return the sizes of `num` files that `total` values fill, none of which has two more than
    another; fewer files where there are fewer values.

    Of 10 values in 4 files: 3, 3, 2, 2.
    """
    size, more = divmod(total, max(1, min(num, total)))
    return [size + 1] * more + [size] * (min(num, total) - more)


def cut(arrays: Iterator[Any], sizes: Iterable[int]) -> Iterator[Iterator[Any]]:
    """Yield for each size the arrays that hold so many values, in order; nothing is copied. They
    may be sequences, or whatever else has a length and can be sliced.

    What was yielded before must have been taken to its end. A size that is past the end of
    `arrays` yields what is left.

    For arrays of 5 and 4 values and the sizes 3, 6: [3], [2, 4].
    """
    rest: Any = None

    def taken(size: int) -> Iterator[Any]:
        nonlocal rest
        while size:
            array = next(arrays, None) if rest is None else rest
            if array is None:
                return
            rest = array[size:] if len(array) > size else None
            size -= min(size, len(array))
            yield array if rest is None else array[: len(array) - len(rest)]

    for size in sizes:
        yield taken(size)


def batches_of(
    arrays: Iterator[npt.NDArray[Any]], total: int, size: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield what the arrays hold, `size` of `total` values each time, however long they are."""
    batches = map(list, cut(arrays, equal_sizes(total, size)))
    yield from (np.concatenate(batch) for batch in batches if batch)


def files_together(files: Sequence[tuple[str, int]], most: int) -> list[slice]:
    """Return which raw files are written together: some that have up to `most` values, or one.

    `files`: key and number of values of each; the last is what is made of the tails of all, and is
    alone, unless all have no more than `most` or one raw file has all. Behind a file whose key says
    so others begin, one for each half of `most` on average, so that a file more changes nothing
    behind the next such file.
    """
    numbers = [num for _, num in files]
    if sum(numbers) <= most or sum(map(bool, numbers[:-1])) < 2:
        return [slice(0, len(files))]
    edges, gathered = [0], 0
    for number, (key, num) in enumerate(files[:-1]):
        if gathered and gathered + num > most:
            edges, gathered = [*edges, number], 0
        gathered += num
        draw = xxhash.xxh3_64_intdigest(key.encode()) / 2**64
        if draw < min(0.5, 2 * num / most):
            edges, gathered = [*edges, number + 1], 0
    if not gathered and len(edges) > 1:  # files of nothing go with what is before them
        edges.pop()
    edges += [len(files) - 1, len(files)]
    return [slice(*of) for of in pairwise(edges) if of[0] < of[1]]


FILE_DIGITS = 5
"""Digits of a file's number in most formats, and of `-of-<n>`."""

SHARD_DIGITS = 6
"""Digits of the number in `numbered_name`."""


def numbered_name(prefix: str | None, part: str, number: int, suffix: str) -> str:
    """Return the name of a shard, such as `fineweb_train_000001.bin`."""
    return "_".join(filter(None, [prefix, part, f"{number:0{SHARD_DIGITS}d}{suffix}"]))


BY_FILE_BYTES = 2**24
"""Bytes of whole raw files in a file, unless an option says otherwise or the part is large."""

BY_FILE_MOST = 2**10
"""Where a part has more than so many times BY_FILE_BYTES, a file has twice of them, and so on."""


@dataclass(frozen=True, slots=True)
class PartRows:
    """Facts of a part that decide, with its options, how its sequences are divided into files."""

    num_sequences: int
    sequence_length: int
    has_loss_mask: bool
    """Only some tokens are loss tokens: documents are chats."""
    dtype: np.dtype[np.unsignedinteger]
    """Dtype of token ids."""
    files: Sequence[tuple[str, int]] = ()
    """Key and sequences of each raw file, in order; last those made of tails, or all where
    sequences are not in the order of files."""
    shards: Sequence[int] | None = None
    """Sequences of each file that was written of whole raw files; None: they are worked out."""


LARGEST_LEVEL = {"gz": 9, "zst": 22, "zstd": 22}
"""The compression levels of a codec go from 1 to this."""


class ShardOptions(Config):
    """Division of a part into files, by number or by size."""

    shards: Count | Literal["by_file"] | None = None
    """Files of each part, of equal size as far as it can be divided (num_shards); fewer where a
    part has less. Give it or `shard_size`. by_file: each has whole raw files, up to `shard_size`
    (default: 16 MiB, and more of a part of 16 GiB), so that another raw file leaves most as they
    were: links to those of the last export. null: files of `shard_size`, or of the usual size."""
    shard_size: Size | None = None
    """Most bytes of a file, such as 500MB."""

    def check(self) -> None:
        """Refuse a number of files beside their size, and a compression level that the codec does
        not have; None stands for its default."""
        if self.num_shards is not None and self.shard_size is not None:
            raise ConfigError(
                where="shards",
                expected="none beside shard_size",
                found=f"{self.num_shards:,}",
                remedy="keep one of them",
            )
        level: int | None = getattr(self, "compression_level", None)
        largest = LARGEST_LEVEL.get(getattr(self, "compression", ""), 0)
        if level is not None and not 1 <= level <= largest:
            raise ConfigError(
                where="compression_level",
                expected=f"1 to {largest}" if largest else "none, for nothing is compressed",
                found=repr(level),
                remedy="change it or leave it out",
            )

    @property
    def is_by_file(self) -> bool:
        """True where files are of whole raw files, unless a shuffle mixes those of all."""
        return self.shards == "by_file"

    @property
    def num_shards(self) -> int | None:
        """Files of each part, where the YAML says how many."""
        return None if self.shards == "by_file" else self.shards

    @property
    def is_divided(self) -> bool:
        """True where the YAML says how many files there are, or of which size."""
        return self.shards is not None or self.shard_size is not None

    def bytes_together(self, total_bytes: int) -> int:
        """Return how many bytes of raw files are written together, of a part of so many."""
        doublings = (total_bytes // (BY_FILE_BYTES * BY_FILE_MOST)).bit_length()
        return self.shard_size or BY_FILE_BYTES << doublings

    def sizes(
        self,
        items: PartRows | int,
        item_bytes: int,
        usual: int | None = None,
        *,
        most: int | None = None,
        unit: str = "sequences",
    ) -> list[int]:
        """Return how many items, each of so many bytes, go into each file of a part.

        `items`: the sequences of a part, which can be divided by raw files (of one that is larger
        than a file, as of all others, files are of the usual size); or a number of tokens. `usual`:
        into each file where the YAML does not say; None: one file has all. `most`: what a file can
        hold; `unit`: what messages call the items.

        Raises: ConfigError where files of such a number have more than `most`.
        """
        rows = None if isinstance(items, int) else items
        total = items if isinstance(items, int) else items.num_sequences
        if self.num_shards is not None:
            sizes = even_sizes(total, self.num_shards)
            self.check_largest(max(sizes, default=0), most=most, unit=unit)
            return sizes
        if rows is not None and rows.shards is not None:
            return [*rows.shards]
        per_file = usual or total if self.shard_size is None else self.shard_size // item_bytes
        per_file = max(1, min(per_file, most or per_file))
        if rows is None or not self.is_by_file:
            return equal_sizes(total, per_file)
        together = max(1, min(self.bytes_together(total * item_bytes) // item_bytes, per_file))
        found = (
            sum(num for _, num in rows.files[of]) for of in files_together(rows.files, together)
        )
        return [size for num in found for size in equal_sizes(num, per_file)]

    def check_largest(self, largest: int, *, most: int | None, unit: str) -> None:
        """Refuse a number of files that makes the largest of them larger than a file can be.

        Raises: ConfigError.
        """
        if most is not None and largest > most:
            raise ConfigError(
                where="shards",
                expected=f"files of at most {most:,} {unit}",
                found=f"{self.num_shards:,}, and {largest:,} in one of them",
                remedy="raise `shards`, or leave it out",
            )

    def check_num_files(self, num_files: int, *, digits: int = FILE_DIGITS) -> None:
        """Refuse more files than numbers of so many digits name in the order of the files: trainers
        sort names.

        Raises: ConfigError.
        """
        if num_files > 10**digits:
            option, change = ("shards", "lower") if self.num_shards else ("shard_size", "raise")
            raise ConfigError(
                where=option,
                expected=f"at most {10**digits:,} files of a part, whose names sort as they follow "
                "each other",
                found=f"{num_files:,}",
                remedy=f"{change} `{option}`",
            )


def check_document_size(num_tokens: int, *, limit: int) -> None:
    """Refuse a document, of which a file holds the whole, of more tokens than it can hold.

    Raises: ConfigError.
    """
    if num_tokens > limit:
        raise ConfigError(
            where="",
            expected=f"at most {limit:,} tokens in a document",
            found=f"{num_tokens:,}",
            remedy="cut the raw text into shorter documents, or name another format",
        )


Column = Literal[
    "attention_mask",
    "segment_ids",
    "position_ids",
    "loss_mask",
    "labels",
    "next_loss_mask",
    "seq_lengths",
    "seq_start_id",
]
"""A column beside input_ids, as an option names it."""

Padding: TypeAlias = Annotated[
    Literal["none", "longest", "max"],
    BeforeValidator(lambda value: ("none", "max")[value] if isinstance(value, bool) else value),
    PlainSerializer(lambda value: {"none": False, "max": True}.get(value, value)),
    WithJsonSchema({"enum": ["none", "longest", "max", True, False]}),
]
"""The padding of each row, as options have it; `true` and `false`, which recipes have too, are max
and none."""


class ByFileOptions(ShardOptions):
    """Division of a part into files whose readers take files of any size, each of them whole."""

    shards: Count | Literal["by_file"] | None = "by_file"


class TableOptions(ByFileOptions):
    """Options of the formats with a record per sequence."""

    mask_column: ClassVar[str] = "loss_mask"
    """The column that tells the loss tokens of chats."""

    padding: Padding = "max"
    """max: sequences are filled up to sequence_length; longest: up to the longest of the part;
    none: a list has its tokens alone. Sizes of files, and positions of the index and of trace,
    count sequences as filled."""


class ColumnOptions(TableOptions):
    """Options of the formats whose columns an option names."""

    columns: Listed[Column] = ()
    """Columns beside input_ids."""

    def check(self) -> None:
        """Refuse columns that are named twice or cannot be."""
        super().check()
        problem = None
        if len(set(self.columns)) < len(self.columns):
            problem = "each column once", ", ".join(self.columns), "name it once"
        elif self.padding != "none" and {"seq_lengths", "seq_start_id"} & {*self.columns}:
            problem = (
                "segments that add up to their row, as TRL's collator has it",
                "rows with padding",
                "add `padding: none`",
            )
        if problem is not None:
            expected, found, remedy = problem
            raise ConfigError(where="columns", expected=expected, found=found, remedy=remedy)


USUAL_COLUMNS: tuple[Column, ...] = ("attention_mask", "segment_ids", "position_ids")
"""The columns of parquet and arrow, unless an option says otherwise."""


class FileSizeOptions(TableOptions):
    """Options of the formats whose files can be sized by their bytes."""

    shard_size: Size | None = None
    """Most bytes of a file, such as 500MB, counted as in memory: before compression, as `datasets`
    counts max_shard_size. Default: 125 million tokens, padding included."""
    padding: Annotated[Padding, Field(exclude_if=lambda padding: padding == "max")] = "max"
    """max: sequences are filled up to sequence_length; longest: up to the longest of the part;
    none: a list has its tokens alone. Sizes of files, and positions of the index and of trace,
    count sequences as filled."""


class RowOptions(FileSizeOptions, ColumnOptions):
    """Options of parquet and arrow; their recipes have what is as usual of these no more than
    those of older exports."""

    columns: Annotated[
        Listed[Column], Field(exclude_if=lambda columns: columns == USUAL_COLUMNS)
    ] = USUAL_COLUMNS
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added where no other tells of it), labels (-100 at other than loss tokens and at the first
    token of each segment), next_loss_mask (the loss mask of labels that are shifted), seq_lengths
    (tokens of each segment), seq_start_id (where each begins)."""
