"""Operations on columns in which values are missing, for expressions."""

import ast
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$"
"""Text that `number` takes for one."""


COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    # of a division by zero nothing is known
    ast.Div: lambda a, b: pc.divide(a, pc.if_else(pc.not_equal(b, 0.0), b, None)),
}
OF_TEXT: dict[str, Callable[[Any, str], Any]] = {
    "startswith": lambda text, part: pc.starts_with(text, pattern=part),
    "endswith": lambda text, part: pc.ends_with(text, pattern=part),
}


def finite(numbers: Any) -> Any:
    """Return numbers, null in place of one that is none: of an overflow nothing is known."""
    return pc.if_else(pc.is_finite(numbers), numbers, None)


def folded(operator: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """Return what an operator makes of values, from left to right."""
    found = values[0]
    for value in values[1:]:
        found = operator(found, value)
    return found


def is_in(values: Any, known: pa.Array) -> Any:
    """Return whether values are known ones; of what is missing nothing is known."""
    return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=known), None)


def as_number(text: Any) -> Any:
    """Return the numbers that texts are, null for those that are none."""
    numbers = pc.if_else(pc.match_substring_regex(text, pattern=NUMBER), text, None)
    return finite(pc.cast(pc.utf8_trim_whitespace(numbers), pa.float64()))
