"""The language of `select`: Python's own grammar through an allow-list, computed by pyarrow.

Python evaluates nothing: the text is parsed, each node is one that is named here or an error, and
the values are columns. Three-valued logic, as in SQL: a comparison with a missing value is unknown,
and so is its negation.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.config import MAX_INTEGER, Kind
from tokflow.errors import ConfigError, nearest
from tokflow.near_duplicates.stage import COPIES
from tokflow.store.config import relocated
from tokflow.store.tables import to_numpy

MAX_CHARS = 10_000
MAX_DEPTH = 50
"""Operators within each other; more would exhaust the stack of another machine."""

QUANTILES = {"quantile": "dataset", "file_quantile": "file"}
"""Names of the functions that give a quantile, and of which documents."""

SIGNS = {
    "&&": "write `and`",
    "||": "write `or`",
    " AND ": "write `and`",
    " OR ": "write `or`",
    "!": "write `not`",
    " = ": "write `==`",
    "=": "write `==` for equal",
}
"""Remedies for what other languages have, where the text is no Python."""

WORDS = {"true": "write True", "false": "write False", "null": "write `is None`"}
"""Remedies for names that other languages have."""

GRAMMAR = (
    "comparisons, and, or, not, in, + - * /, .startswith(''), .endswith(''), number(), quantile()"
)


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Columns of documents, of equal length, and quantiles over all files."""

    columns: Mapping[str, pa.Array]
    """float64, string or bool, with nulls."""
    quantiles: Mapping[str, float | pa.Array | None] = field(default_factory=dict)
    """Quantiles by their names: of all files, or one for each document; None where no document has
    a value."""


Run: TypeAlias = Callable[[KnownValues], Any]
"""From documents to an array, or a scalar, of values."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile that an expression compares with."""

    name: str
    fraction: float
    scope: str
    values: Run
    """The values that it is of."""

    def of(self, values: npt.NDArray[np.float64]) -> float | None:
        """Return the quantile of values, between two of them by the line through them; None of
        none."""
        return float(np.quantile(values, self.fraction)) if len(values) else None

    def values_of(self, documents: KnownValues) -> npt.NDArray[np.float64]:
        """Return the values that some documents have, without what is missing."""
        found: npt.NDArray[np.float64] = to_numpy(pc.drop_null(self.values(documents)))
        return found


@dataclass(frozen=True, slots=True)
class Rule:
    """A yes or no about each document."""

    text: str
    """Canonical: equal for spellings that differ in spaces, quotes and brackets alone."""
    run: Run

    def __call__(self, documents: KnownValues) -> pa.BooleanArray:
        """Return the answer for each document, null where it is unknown."""
        num = len(next(iter(documents.columns.values())))
        found = self.run(documents)
        return (
            pa.array([found.as_py()] * num, pa.bool_()) if isinstance(found, pa.Scalar) else found
        )


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression."""

    text: str
    """Canonical, as that of a rule."""
    rules: tuple[Rule, ...]
    """The terms of its outermost `and`: a document is kept that all of them say yes to, and that no
    copy makes needless."""
    copies: tuple[str, ...]
    """Those of `COPIES` that are left out."""
    names: tuple[str, ...]
    """The columns that it reads, sorted."""
    quantiles: tuple[Quantile, ...]


ALL = Expression(text="", rules=(), copies=(), names=(), quantiles=())
"""That which keeps every document, where there is none."""


def parse(text: str, columns: Mapping[str, Kind]) -> Expression:
    """Return an expression over columns of these kinds.

    Raises: ConfigError, with the character at which it is wrong, for what is not in the grammar, a
    column that is not there, and kinds that do not go together.
    """
    if len(text) > MAX_CHARS:
        raise _error(f"at most {MAX_CHARS:,} characters", f"{len(text):,}", "shorten it")
    compiler = _Compiler(columns)
    try:
        tree = ast.parse(f"({text}\n)", mode="eval").body  # brackets, for it may have lines
        match tree:
            case ast.BoolOp(op=ast.And(), values=terms):
                pass
            case _:
                terms = [tree]
        copies = {ast.unparse(term) for term in terms} & {f"not {name}" for name in COPIES}
        terms = [term for term in terms if ast.unparse(term) not in copies]
        rules = tuple(Rule(ast.unparse(term), compiler.expect("bool", term)) for term in terms)
    except _RefusedError as refused:
        before = text.split("\n")[refused.line - 1].encode()[: refused.num_bytes]
        place = _place(refused.line, len(before.decode(errors="ignore")))
        raise relocated(refused.error, place) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, at = getattr(error, "lineno", None) or 0, getattr(error, "offset", None) or 0
        is_inside = 0 < line <= text.count("\n") + 1 and at
        raise ConfigError(
            where=_place(line, at - 1 - (line == 1)) if is_inside else "",
            expected="an expression, such as num_tokens >= 20",
            found=str(getattr(error, "msg", error)),
            remedy=next((said for sign, said in SIGNS.items() if sign in text), GRAMMAR),
        ) from None
    return Expression(
        text=ast.unparse(tree),
        rules=rules,
        copies=tuple(name for name in COPIES if f"not {name}" in copies),
        names=tuple(sorted(compiler.names)),
        quantiles=tuple(compiler.quantiles.values()),
    )


class _RefusedError(Exception):
    """A node that is not in the grammar, or does not fit; with its line, and the bytes of UTF-8
    before it there. A bracket stands before the first line."""

    def __init__(self, node: ast.expr, error: ConfigError) -> None:
        super().__init__(error)
        self.error, self.line = error, node.lineno
        self.num_bytes = node.col_offset - (node.lineno == 1)


def _place(line: int, num_chars: int) -> str:
    """Return where something begins that has so many characters before it in its line."""
    return f"line {line}, " * (line > 1) + f"character {num_chars + 1}"


def _error(expected: str, found: str, remedy: str = "") -> ConfigError:
    remedy = remedy or "correct the expression"
    return ConfigError(where="", expected=expected, found=found, remedy=remedy)


def _refuse(node: ast.expr, expected: str, found: str, remedy: str = "") -> NoReturn:
    raise _RefusedError(node, _error(expected, found, remedy))


class _Compiler:
    """From nodes of a tree to what computes them."""

    def __init__(self, columns: Mapping[str, Kind]) -> None:
        self.columns = columns
        self.names: set[str] = set()
        self.quantiles: dict[str, Quantile] = {}
        self._depth = 0

    def expect(self, kind: Kind, node: ast.expr, beside: ast.expr | None = None) -> Run:
        """Return what computes a node of this kind; `beside`: one of this kind that it is compared
        with."""
        found, run = self.compile(node)
        if found != kind:
            text = {kind: beside, found: node}.get("text") if "number" in (kind, found) else None
            remedy = (
                "" if text is None or _is_literal(text) else f"write number({ast.unparse(text)})"
            )
            _refuse(node, f"a {kind}", f"a {found}: {ast.unparse(node)}", remedy)
        return run

    def compile(self, node: ast.expr) -> tuple[Kind, Run]:
        """Return the kind of a node's value, and what computes it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(node, f"at most {MAX_DEPTH} operators within each other", "more")
        try:
            return self._compile(node)
        finally:
            self._depth -= 1

    def _compile(self, node: ast.expr) -> tuple[Kind, Run]:
        match node:
            case ast.Constant():
                return _constant(node)
            case ast.Name() | ast.Attribute():
                return self._column(node)
            case ast.BoolOp():
                runs = [self.expect("bool", of) for of in node.values]
                both = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
                return "bool", lambda of: reduce(both, [run(of) for run in runs])
            case ast.UnaryOp(op=ast.Not()):
                run = self.expect("bool", node.operand)
                return "bool", lambda of: pc.invert(run(of))
            case ast.UnaryOp(op=ast.USub()):
                run = self.expect("number", node.operand)
                return "number", lambda of: pc.negate(run(of))
            case ast.BinOp() if type(node.op) in ARITHMETIC:
                left, right = (self.expect("number", of) for of in (node.left, node.right))
                operator = ARITHMETIC[type(node.op)]
                return "number", lambda of: finite(operator(left(of), right(of)))
            case ast.Compare():
                operands = [node.left, *node.comparators]
                triples = zip(operands, node.ops, node.comparators, strict=False)
                runs = [self._compare(*triple) for triple in triples]
                return "bool", lambda of: reduce(pc.and_kleene, [run(of) for run in runs])
            case ast.Call(func=ast.Name(id="number"), args=[of_text], keywords=[]):
                run = self.expect("text", of_text)
                return "number", lambda of: as_number(run(of))
            case ast.Call(
                func=ast.Attribute(value=of_text, attr=attr),
                args=[ast.Constant(value=str(part))],
                keywords=[],
            ) if attr in OF_TEXT:
                run, test = self.expect("text", of_text), OF_TEXT[attr]
                return "bool", lambda of: test(run(of), part)
            case ast.Call(func=ast.Name(id=name)) if name in QUANTILES:
                _refuse(node, f"a comparison with a number beside {name}()", ast.unparse(node))
        _refuse(node, GRAMMAR, ast.unparse(node))

    def _column(self, node: ast.Name | ast.Attribute) -> tuple[Kind, Run]:
        """Return the values of a column, whose name may have dots."""
        name = ast.unparse(node)
        if name in COPIES:
            _refuse(node, f"`not {name}` between the outermost `and`", name)
        if name not in self.columns:
            expected = f"a column: {', '.join(self.columns)}"
            remedy = WORDS.get(name) or nearest(name, [*self.columns])
            remedy = remedy or "add it to documents.keep_columns"
            _refuse(node, expected, name, remedy)
        self.names.add(name)
        return self.columns[name], lambda of: of.columns[name]

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Run:
        """Return the yes or no of one comparison."""
        match op, right:
            case ((ast.Is() | ast.IsNot()), ast.Constant(value=None)):
                _, run = self.compile(left)
                test = pc.is_null if isinstance(op, ast.Is) else pc.is_valid
                return lambda of: test(run(of))
            case ((ast.In() | ast.NotIn()), _):
                run = self._contains(left, right)
                return run if isinstance(op, ast.In) else lambda of: pc.invert(run(of))
        if type(op) not in COMPARISONS:
            _refuse(right, "`is None`, or == in place of `is`", ast.unparse(right))
        if (first := self._quantile(left, of=right)) is not None:
            kind, second = self.compile(right)
        else:
            kind, first = self.compile(left)
            second = self._quantile(right, of=left) or self.expect(kind, right, beside=left)
        if kind == "bool" and not isinstance(op, ast.Eq | ast.NotEq):
            _refuse(right, "== or != of a bool", ast.unparse(right))
        compare = COMPARISONS[type(op)]
        return lambda of: compare(first(of), second(of))

    def _contains(self, left: ast.expr, right: ast.expr) -> Run:
        """Return whether a value is in a list, or a text within another."""
        if isinstance(right, ast.List | ast.Tuple) and right.elts:
            kind, run = self.compile(left)
            values = [self._value(kind, of) for of in right.elts]
            return lambda of: is_in(run(of), pa.array(values))
        if isinstance(left, ast.Constant) and isinstance(part := left.value, str):
            run = self.expect("text", right)
            return lambda of: pc.match_substring(run(of), pattern=part)
        _refuse(right, "a list of values, or 'part' in a text", ast.unparse(right))

    def _value(self, kind: Kind, node: ast.expr) -> float | str | bool:
        """Return a literal of a list."""
        run = self.expect(kind, node)
        if not _is_literal(node):
            _refuse(node, f"a {kind} that is written out", ast.unparse(node))
        found: float | str | bool = run(KnownValues({})).as_py()
        return found

    def _quantile(self, node: ast.expr, *, of: ast.expr) -> Run | None:
        """Return the quantile that values are compared with; None where a node is none."""
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in QUANTILES):
            return None
        match node.args, node.keywords:
            case [ast.Constant(value=float() | int() as fraction)], [] if (
                0 <= fraction <= 1 and not isinstance(fraction, bool)
            ):
                if _is_literal(of):
                    _refuse(of, "a column beside a quantile", ast.unparse(of))
                values, name = self.expect("number", of), f"{ast.unparse(of)}: {ast.unparse(node)}"
                scope = QUANTILES[ast.unparse(node.func)]
                found = Quantile(name, float(fraction), scope, values)
                self.quantiles[name] = found
                return lambda of: _limit(of.quantiles[name])
        _refuse(node, f"{ast.unparse(node.func)}(0.9), a share from 0 to 1", ast.unparse(node))


def _constant(node: ast.Constant) -> tuple[Kind, Run]:
    match node.value:
        case bool() as value:
            found: tuple[Kind, Any] = "bool", pa.scalar(value)
        case int() as value if abs(value) >= MAX_INTEGER:
            _refuse(node, f"a number below {MAX_INTEGER:,}", str(value))
        case float() as value if not np.isfinite(value):
            _refuse(node, "a finite number", str(value))
        case int() | float() as value:
            found = "number", pa.scalar(float(value))
        case str() as value if value.encode(errors="replace").decode() == value:
            found = "text", pa.scalar(value)
        case _:
            _refuse(
                node,
                "a number, a text, True or False (`is None` for what is missing)",
                ast.unparse(node),
            )
    kind, scalar = found
    return kind, lambda _: scalar


def _limit(value: float | pa.Array | None) -> pa.Array | pa.Scalar:
    return value if isinstance(value, pa.Array) else pa.scalar(value, pa.float64())


def _is_literal(node: ast.expr) -> bool:
    return not any(isinstance(of, ast.Name | ast.Call) for of in ast.walk(node))


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


def is_in(values: Any, known: pa.Array) -> Any:
    """Return whether values are known ones; of what is missing nothing is known."""
    return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=known), None)


def as_number(text: Any) -> Any:
    """Return the numbers that texts are, null for those that are none."""
    numbers = pc.if_else(pc.match_substring_regex(text, pattern=NUMBER), text, None)
    return finite(pc.cast(pc.utf8_trim_whitespace(numbers), pa.float64()))
