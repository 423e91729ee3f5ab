"""Raw text in, training data out: exact, complete, fast, traceable."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokflow.exports.reading import open_export
    from tokflow.pipeline.api import tokenize_and_save
    from tokflow.push.upload import push_export

__version__ = "0.1.0"

__all__ = ["open_export", "push_export", "tokenize_and_save"]


def __getattr__(name: str) -> Any:
    """Import a function on first use, since it brings pyarrow with it."""
    if name == "open_export":
        from tokflow.exports.reading import open_export

        return open_export
    if name == "push_export":
        from tokflow.push.upload import push_export

        return push_export
    if name == "tokenize_and_save":
        from tokflow.pipeline.api import tokenize_and_save

        return tokenize_and_save
    raise AttributeError(f"module 'tokflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return its names, those that are not imported yet too: a shell completes them."""
    return sorted({*globals(), *__all__})
