"""nanoGPT's .bin: the token ids of a part, documents end to end, and nothing else.

    train.bin, val.bin, ...   one file per part, and none of a part without tokens; `validation`
            is called val, as nanoGPT has it, unless another part is; see the option `names`
    bytes   num_tokens * itemsize, little-endian, no header
    dtype   not in the file; the manifest names it: uint16 up to id 65,535, else uint32
    lost    where documents begin: a reader sees them by EOS alone; the loss mask

nanoGPT's train.py reads uint16 only; for a larger vocabulary change the dtype in its `np.memmap`
calls. It has no meta.pkl: with one, sample.py would take the tokens for characters.

Source: karpathy/nanoGPT at 3adf61e, data/openwebtext/prepare.py lines 58-81, train.py 116-131.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from tokflow.errors import ConfigError
from tokflow.exports import FileFacts, Format, Layout, Part
from tokflow.exports.options import names_in_files
from tokflow.exports.token_files import write_tokens
from tokflow.store.config import Config, check_name


def _bin_name(name: str) -> str:
    if not name.endswith(".bin"):
        raise ConfigError(
            where="",
            expected="a name that ends in .bin",
            found=repr(name),
            remedy=f"write {name + '.bin'!r}",
        )
    check_name(name.removesuffix(".bin"), where="", becomes="a file", marks="-_")
    return name


class BinOptions(Config):
    """nanoGPT: train.bin, val.bin, raw uint16 or uint32, documents end to end."""

    names: dict[str, Annotated[str, AfterValidator(_bin_name)]] = Field(default_factory=dict)
    """The file of a part: `{validation: validation.bin}`. Of the others `<part>.bin`, or val.bin of
    validation."""


def write(part: Part, options: BinOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the tokens of a part to its file."""
    write_tokens(part, folder / part.file_name, part.dtype)
    yield {}


FORMAT = Format(
    BinOptions,
    lambda options: Layout("stream", ("token_ids",)),
    write,
    lambda part, *_: part,
    load=lambda export, name: {"token_ids": export.stored.numbers(name, export.dtype)},
    file_names=lambda options, parts: names_in_files(parts, options.names, suffix=".bin"),
    version=2,
)
