"""Options that many formats have: names of files, and limits that are kept."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from tokflow.errors import ConfigError, nearest
from tokflow.store.atomic import check_name


def val_names(parts: Sequence[str]) -> dict[str, str]:
    """Return the name of each part in file names: its own, but of `validation` it is `val`.

    Where another part is called val already, validation keeps its name.
    """
    shortened = {"validation": "val"} if "val" not in parts else {}
    return {part: shortened.get(part, part) for part in parts}


def _checked(name: str, *, marks: str) -> str:
    check_name(name, where="", becomes="a file", marks=marks)
    return name


FileName: TypeAlias = Annotated[str, AfterValidator(partial(_checked, marks="-_"))]
"""The name of a file without its suffix, as an option has it."""

FilePrefix: TypeAlias = Annotated[str, AfterValidator(partial(_checked, marks="-_."))]
"""The beginning of the names of files, as an option has it."""


def renamed(own: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return each part's own name in file names, or the one that the option `names` gives it.

    Raises: ConfigError where a part is not known, or two have one name.
    """
    if unknown := [part for part in names if part not in own]:
        raise ConfigError(
            where="names",
            expected=f"parts of the split: {', '.join(own)}",
            found=repr(unknown[0]),
            remedy=nearest(unknown[0], list(own)) or "remove it",
        )
    taken: dict[str, str] = {}
    for part, name in (named := {**own, **names}).items():
        if other := taken.get(name.casefold()):
            raise ConfigError(
                where="names",
                expected="a file name of its own for each part",
                found=f"{name!r} for {other} and {part}",
                remedy="give one of them another",
            )
        taken[name.casefold()] = part
    return named


FILE_DIGITS = 5
"""Of a file's number in most formats, and of `-of-<n>`."""

SHARD_DIGITS = 6
"""Of the number in `numbered_name`."""


def numbered_name(prefix: str | None, part: str, number: int, suffix: str) -> str:
    """Return the name of a shard, such as `fineweb_train_000001.bin`."""
    return "_".join(filter(None, [prefix, part, f"{number:0{SHARD_DIGITS}d}{suffix}"]))


def check_num_files(num_files: int, *, digits: int, option: str) -> None:
    """Refuse more files than numbers of so many digits name in the order of the files: trainers
    sort names.

    Raises: ConfigError that names the option which decides how much goes into a file.
    """
    if num_files > 10**digits:
        raise ConfigError(
            where=option,
            expected=f"at most {10**digits:,} files of a part, whose names sort as they follow "
            "each other",
            found=f"{num_files:,}",
            remedy=f"raise `{option}`",
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


LARGEST_LEVEL = {"gz": 9, "zst": 22, "zstd": 22}
"""The compression levels of a codec go from 1 to this."""


def check_level(compression: str, level: int | None) -> None:
    """Refuse a compression level that the codec does not have; None stands for its default.

    Raises: ConfigError.
    """
    largest = LARGEST_LEVEL.get(compression)
    if level is None or (largest is not None and 1 <= level <= largest):
        return
    raise ConfigError(
        where="compression_level",
        expected=f"1 to {largest}" if largest else "none, for nothing is compressed",
        found=repr(level),
        remedy="change it or leave it out",
    )
