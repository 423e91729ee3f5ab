"""The registry of export formats, of which each is imported when it is used."""

import importlib
from collections.abc import Iterator, Mapping

from tokflow.errors import ConfigError, nearest
from tokflow.exports.format import Format

_MODULES = {
    "archai": "archai",
    "arrow": "arrow_",
    "bin": "bin_",
    "datatrove": "datatrove",
    "easydel": "easydel",
    "hf_dataset": "hf_dataset",
    "jsonl": "jsonl",
    "lance": "lance_",
    "levanter": "levanter",
    "litdata": "litdata",
    "llmc": "llmc",
    "mds": "mds",
    "megatron": "megatron",
    "modalities": "modalities",
    "npy": "npy",
    "olmo": "olmo",
    "parquet": "parquet_",
    "pickle": "pickle_",
    "webdataset": "webdataset_",
}


class Formats(Mapping[str, Format]):
    """The formats by name. Their names are known without importing one."""

    def __getitem__(self, name: str) -> Format:
        format_: Format = importlib.import_module(f"tokflow.exports.{_MODULES[name]}").FORMAT
        return format_

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


FORMATS = Formats()


def check_format(name: str, *, where: str) -> Format:
    """Return the format called `name`.

    Raises: ConfigError that lists the formats.
    """
    if name not in FORMATS:
        raise ConfigError(
            where=where,
            expected=f"one of {', '.join(FORMATS)}",
            found=repr(name),
            remedy=nearest(name, list(FORMATS)) or "name one of them",
        )
    return FORMATS[name]
