"""The export formats: each is a module of this folder, imported when it is used."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from tokflow.errors import ConfigError, nearest
from tokflow.exports.format import Format

_NAMES = sorted(module.name for module in pkgutil.iter_modules(__path__))


class Formats(Mapping[str, Format]):
    """The formats by name. Their names are known without importing one."""

    def __getitem__(self, name: str) -> Format:
        if name not in _NAMES:
            raise KeyError(name)
        format_: Format = importlib.import_module(f"{__name__}.{name}").FORMAT
        return format_

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


FORMATS = Formats()


def check_format(name: str, *, where: str) -> Format:
    """Return the format called `name`.

    Raises: ConfigError that lists the formats.
    """
    if (format_ := FORMATS.get(name)) is None:
        raise ConfigError(
            where=where,
            expected=f"one of {', '.join(FORMATS)}",
            found=repr(name),
            remedy=nearest(name, list(FORMATS)) or "name one of them",
        )
    return format_
