"""What the files of a part are called where their readers know `train` and `val` alone."""

from collections.abc import Sequence

from tokflow.errors import ConfigError, four_parts
from tokflow.exports.part import Part
from tokflow.manifest import Manifest
from tokflow.storage import check_name


def val_names(parts: Sequence[str]) -> dict[str, str]:
    """Return the name of each part in file names: its own, but of `validation` it is `val`.

    Where another part is called val already, validation keeps its name.
    """
    shortened = {"validation": "val"} if "val" not in parts else {}
    return {part: shortened.get(part, part) for part in parts}


def numbered_name(prefix: str | None, part: str, number: int, suffix: str) -> str:
    """Return the name of a shard, such as `fineweb_train_000001.bin`."""
    return "_".join(filter(None, [prefix, part, f"{number:06d}{suffix}"]))


def numbered_names(manifest: Manifest, prefix: str | None, part: str, suffix: str) -> list[str]:
    """Return the shards of a part that an export has, in order."""
    name = val_names(manifest.details["parts"])[part]
    found: list[str] = []
    while (next_ := numbered_name(prefix, name, len(found), suffix)) in manifest.files:
        found.append(next_)
    return found


def dataset_name(part: Part) -> str | None:
    """Return the name of the dataset that a part is of; None where it has no file."""
    return part.splits[0].manifest.dataset if part.splits else None


def check_prefix(prefix: str | None, *, where: str) -> None:
    """Make sure that a file's name can begin with the option `prefix`.

    Raises: ConfigError.
    """
    if prefix is not None:
        check_name(prefix, where=f"exports: {where}: prefix", becomes="a file", marks="-_.")


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
        four_parts(
            where=f"exports: {where}",
            expected=f"at most {limit:,} tokens in a file"
            if option
            else f"at most {limit:,} tokens in a document",
            found=f"{num_tokens:,}" if is_option else f"{num_tokens:,} in one document",
            remedy=f"set `{option}` to {limit} or less"
            if is_option
            else "cut the raw text into shorter documents, or name another format",
        )
    )
