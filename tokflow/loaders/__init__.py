"""Exports and token stores as a training loop reads them: rows, orders, mixtures, batches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokflow.loaders.loader import Loader
    from tokflow.loaders.mixed_samples import mix
    from tokflow.loaders.rows import open_rows
    from tokflow.loaders.samples import collate
    from tokflow.loaders.token_arrays import open_tokens

__all__ = ["Loader", "collate", "mix", "open_rows", "open_tokens"]

_MODULES = {
    "Loader": "loader",
    "collate": "samples",
    "mix": "mixed_samples",
    "open_rows": "rows",
    "open_tokens": "token_arrays",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use: readers of exports bring pyarrow with them."""
    if name in _MODULES:
        return getattr(import_module(f"tokflow.loaders.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'tokflow.loaders' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return its names, those that are not imported yet too: a shell completes them."""
    return sorted({*globals(), *__all__})
