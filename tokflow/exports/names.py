"""Names of a part's files: by number, and as readers know the part."""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from tokflow.errors import ConfigError, nearest
from tokflow.exports.part import Part
from tokflow.store.atomic import check_name


def val_names(parts: Sequence[str]) -> dict[str, str]:
    """Return the name of each part in file names: its own, but of `validation` it is `val`.

    Where another part is called val already, validation keeps its name.
    """
    shortened = {"validation": "val"} if "val" not in parts else {}
    return {part: shortened.get(part, part) for part in parts}


def _file_name(name: str) -> str:
    check_name(name, where="", becomes="a file", marks="-_")
    return name


def _file_prefix(prefix: str) -> str:
    check_name(prefix, where="", becomes="a file", marks="-_.")
    return prefix


FileName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
"""The name of a file without its suffix, as an option has it."""

FilePrefix: TypeAlias = Annotated[str, AfterValidator(_file_prefix)]
"""The beginning of the names of files, as an option has it."""


def renamed(own: Mapping[str, str], names: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Return each part's own name in file names, or the one that the option `names` gives it.

    Raises: ConfigError where a part is not known, or two have one name.
    """
    if unknown := [part for part in names if part not in own]:
        raise ConfigError(
            where=f"exports: {where}: names",
            expected=f"parts of the split: {', '.join(own)}",
            found=repr(unknown[0]),
            remedy=nearest(unknown[0], list(own)) or "remove it",
        )
    taken: dict[str, str] = {}
    for part, name in (named := {**own, **names}).items():
        if other := taken.get(name.casefold()):
            raise ConfigError(
                where=f"exports: {where}: names",
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


def check_num_files(num_files: int, *, digits: int, where: str, option: str) -> None:
    """Refuse more files than numbers of so many digits name in the order of the files: trainers
    sort names.

    Raises: ConfigError that names the option which decides how much goes into a file.
    """
    if num_files > 10**digits:
        raise ConfigError(
            where=f"exports: {where}: {option}",
            expected=f"at most {10**digits:,} files of a part, whose names sort as they follow "
            "each other",
            found=f"{num_files:,}",
            remedy=f"raise `{option}`",
        )


def numbered_name(prefix: str | None, part: str, number: int, suffix: str) -> str:
    """Return the name of a shard, such as `fineweb_train_000001.bin`."""
    return "_".join(filter(None, [prefix, part, f"{number:0{SHARD_DIGITS}d}{suffix}"]))


def dataset_name(part: Part) -> str | None:
    """Return the name of the dataset that a part is of; None where it has no file."""
    return part.splits[0].manifest.dataset if part.splits else None


def check_size(
    num_tokens: int, *, limit: int, where: str, option: str | None = None, value: int | None = None
) -> None:
    """Refuse a file, or a document, of more tokens than the format can hold.

    `value` is that of the option which decides how many go into a file.

    Raises: ConfigError that names the option, if it is too large, or else asks for documents.
    """
    if num_tokens <= limit:
        return
    is_option = option is not None and (value is None or value > limit)
    raise ConfigError(
        where=f"exports: {where}",
        expected=f"at most {limit:,} tokens in a file"
        if option
        else f"at most {limit:,} tokens in a document",
        found=f"{num_tokens:,}" if is_option else f"{num_tokens:,} in one document",
        remedy=f"set `{option}` to {limit} or less"
        if is_option
        else "cut the raw text into shorter documents, or name another format",
    )
