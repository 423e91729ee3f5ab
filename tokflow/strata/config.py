"""Section `strata` of a dataset's YAML, and the names of the parts that come of it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.selection.config import expression_over
from tokflow.stage import DatasetConfig
from tokflow.store.config import Config, check_name, said_of

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression


class StrataConfig(Config):
    """Named subsets of the documents, which divide each part of the split."""

    section: ClassVar[str] = "strata"

    expressions: dict[str, str] = Field(default_factory=dict)
    """Name to expression, in the grammar of `select`. A document is of the first that is true of
    it; one of which none is true is in no part, and counted."""

    def over(self, dataset: DatasetConfig) -> "dict[str, Expression]":
        """Return the expression of each stratum over the columns of a dataset.

        Raises: ConfigError, whose place begins with the stratum, where one is wrong.
        """
        found = {}
        for name, text in self.expressions.items():
            try:
                found[name] = expression_over(dataset, text)
            except ConfigError as error:
                raise said_of(name, error) from None
            if copies := found[name].copies:
                raise ConfigError(
                    where=name,
                    expected="what is known of a document by itself",
                    found=f"not {copies[0]}",
                    remedy="leave copies out by `select`",
                )
        return found

    def check(self) -> None:
        """Refuse names that cannot be those of parts."""
        for name in self.expressions:
            check_name(name, where="", becomes="a file", marks="-_")


def as_strata(strata: object) -> object:
    """Return the fields that expressions by name, or null, stand for; `true` is one that takes
    every document. Raises: ConfigError."""
    if isinstance(strata, StrataConfig) or (
        isinstance(strata, Mapping) and isinstance(strata.get("expressions"), Mapping)
    ):
        return strata
    if strata is None or isinstance(strata, Mapping):
        for name, by in (strata or {}).items():
            if not isinstance(by, str | bool):
                remedy = "write it as text"
                expected = "an expression, or true"
                raise ConfigError(where=name, expected=expected, found=repr(by), remedy=remedy)
        return {"expressions": {name: str(by) for name, by in (strata or {}).items()}}
    raise ConfigError(
        where="",
        expected="names with expressions, such as {hq: number(score) >= 3, rest: true}",
        found=repr(strata),
        remedy="name each stratum",
    )


def divided(parts: Iterable[str], strata: Iterable[str]) -> tuple[str, ...]:
    """Return the names of parts that are divided by strata, `train.hq` and `train.rest` of train;
    the parts themselves where there are none."""
    strata = tuple(strata)
    return tuple(f"{part}.{of}" for part in parts for of in strata) if strata else tuple(parts)


def undivided(name: str) -> str:
    """Return the part that a stratum of it is of: `train` of `train.hq`, and of itself."""
    return name.partition(".")[0]


def parts_within(parts: Iterable[str], name: str) -> list[str]:
    """Return the parts that a name is of: one, or all strata of `train`."""
    return [part for part in parts if part == name or part.startswith(f"{name}.")]
