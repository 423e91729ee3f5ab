"""Functions that a random case may name as `documents.transform`, for tokflow and for the model."""

from collections.abc import Iterator
from typing import Any


def some(text: str) -> str | list[str] | None:
    """Return the text, its two sides or nothing, by its length."""
    if len(text) % 4 == 3:
        return None
    return [text[:1], text[1:]] if len(text) % 4 == 2 else text


def words(text: str) -> Iterator[str]:
    """Yield the words, of which one with a capital is none."""
    for word in text.split():
        if word[0].isupper():
            raise ValueError(f"a word that is\nnone: {word}")
        yield word


def joined(record: dict[str, Any]) -> str | tuple[str, ...] | None:
    """Return the columns with their names, or each by itself, or nothing where one is empty."""
    if "" in record.values():
        return None
    if len(next(iter(record.values()))) % 3 == 0:
        return tuple(record.values())
    return "; ".join(f"{name}={text}" for name, text in record.items())


def apply(name: str, value: Any) -> list[str] | None:
    """Return the texts that a function makes; None where it raises."""
    try:
        made = {"some": some, "words": words, "joined": joined}[name](value)
        return [made] if isinstance(made, str) else list(made or ())
    except ValueError:
        return None
