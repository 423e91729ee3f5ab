"""Raw text in, training data out: exact, complete, fast, traceable."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokflow.build.api import tokenize_and_save

__all__ = ["tokenize_and_save"]


def __getattr__(name: str) -> Any:
    """Import the one function on first use, since it brings pyarrow with it."""
    if name == "tokenize_and_save":
        from tokflow.build.api import tokenize_and_save

        return tokenize_and_save
    raise AttributeError(f"module 'tokflow' has no attribute {name!r}")
