import ast
import operator
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tokflow.attributes.config import Kind
from tokflow.errors import ConfigError
from tokflow.selection.expression import MAX_CHARS, Expression, KnownValues, parse

KINDS: dict[str, Kind] = {"n": "number", "m": "number", "t": "text", "meta.url": "text"}
COLUMNS = {
    "n": [1.0, 2.5, None, -3.0, 0.0],
    "m": [2.0, None, 4.0, 1.0, 2.0],
    "t": ["en", None, "de", "3", " 4.5e1 "],
    "meta.url": ["http://a", "https://b", None, "x", ""],
}
NUM = len(COLUMNS["n"])


def documents(columns: dict[str, list[Any]] = COLUMNS) -> KnownValues:
    types = {"number": pa.float64(), "text": pa.string()}
    return KnownValues({name: pa.array(of, types[KINDS[name]]) for name, of in columns.items()})


def answers(expression: str | Expression) -> list[list[bool | None]]:
    parsed = parse(expression, KINDS) if isinstance(expression, str) else expression
    of_file = {of.name: of.of(of.values_of(documents())) for of in parsed.quantiles}
    known = KnownValues(documents().columns, of_file)
    return [rule(known).to_pylist() for rule in parsed.rules]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n > 1", [False, True, None, False, False]),
        ("not n > 1", [True, False, None, True, True]),
        ("n is None", [False, False, True, False, False]),
        ("n is not None and True", None),
        ("-1 <= n < 2.5", [True, False, None, False, True]),
        ("n + m * 2 == 5", [True, None, None, False, False]),
        ("m / n == 2", [True, None, None, False, None]),
        ("n in [1, -3]", [True, False, None, True, False]),
        ("n not in (1, 2.5)", [False, False, None, True, True]),
        ("t == 'en' or t is None", [True, True, False, False, False]),
        ("t < 'dz'", [False, None, True, True, True]),
        ("'e' in t", [True, None, True, False, True]),
        ("meta.url.startswith('http')", [True, True, None, False, False]),
        ("number(t) >= 3", [None, None, None, True, True]),
        ("quantile(0.5) < n", [True, True, None, False, False]),
        ("n <= file_quantile(0)", [False, False, None, True, False]),
        ("True", [True] * NUM),
    ],
)
def test_an_expression_is_yes_no_or_unknown_where_a_value_is_missing(
    expression: str, expected: list[bool | None] | None
):
    if expected is not None:
        assert answers(expression) == [expected]
    else:  # each term of the outermost `and` is a rule of its own
        assert answers(expression) == [[True, True, False, True, True], [True] * NUM]


@pytest.mark.parametrize(
    ("expression", "where", "expected"),
    [
        ("n >", "", "an expression"),
        ("(" * 500 + "n" + ")" * 500, "character 200", "an expression"),
        ("n > 1 " * MAX_CHARS, "", "at most 10,000 characters"),
        ("not " * 60 + "n > 1", "character 201", "at most 50 operators"),
        ("x > 1", "character 1", "a column: n, m, t, meta.url"),
        ("n > 1 and\nmeta.ur == ''", "line 2, character 1", "a column"),
        ("t == 'ééé' and x", "character 16", "a column"),
        ("t == '\\ud800'", "character 6", "a number, a text"),
        ("n > '1'", "character 5", "a number"),
        ("t > 1", "character 5", "a text"),
        ("n", "character 1", "a bool"),
        ("n == 1 > True", "character 10", "a number"),
        ("(n > 1) > (m > 1)", "character 12", "== or !="),
        ("n is 1", "character 6", "`is None`"),
        ("n == None", "character 6", "a number, a text"),
        ("n in 3", "character 6", "a list"),
        ("n in [m]", "character 7", "a number that is written out"),
        ("t in [1]", "character 7", "a text"),
        ("n > 9007199254740992", "character 5", "a number below"),
        ("n > 1e999", "character 5", "a finite number"),
        ("n > 2 ** 9", "character 5", "comparisons"),
        ("number(n) > 1", "character 8", "a text"),
        ("quantile(0.5)", "character 1", "a comparison with a number beside"),
        ("n > quantile(2)", "character 5", "quantile(0.9)"),
        ("n > quantile(m)", "character 5", "quantile(0.9)"),
        ("1 > quantile(0.5)", "character 1", "a column beside"),
        ("t > quantile(0.5)", "character 1", "a number"),
        ("__import__('os').getcwd() == ''", "character 1", "comparisons"),
        ("t.__class__ == ''", "character 1", "a column"),
        ("f'{n}' == t", "character 1", "comparisons"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_its_place(
    expression: str, where: str, expected: str
):
    with pytest.raises(ConfigError) as error:
        parse(expression, KINDS)

    assert error.value.where == where
    assert error.value.expected.startswith(expected)


def test_spelling_lines_and_comments_are_not_part_of_an_expression():
    spelled = "n>1 and  # of n\n(t=='x')", 'n > 1 and t == "x"'
    first, second = (parse(of, KINDS) for of in spelled)

    assert first.text == second.text == "n > 1 and t == 'x'"
    assert [of.text for of in first.rules] == ["n > 1", "t == 'x'"]
    assert first.names == ("n", "t")


def test_what_is_no_number_or_overflows_is_missing():
    words = documents({"t": ["a", None, "7", "1e999"]})
    [rule] = parse("number(t) * 1e308 * 10 > 1 or number(t) == 7", KINDS).rules

    assert rule(words).to_pylist() == [None, None, True, None]


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("n > 1 && m > 1", "write `and`"),
        ("n = 1", "write `==`"),
        ("n > 1 and true", "write True"),
        ("t >= 3", "write number(t)"),
        ("n >= t", "write number(t)"),
        ("meta.urls == ''", "did you mean 'meta.url'?"),
    ],
)
def test_common_mistakes_have_their_remedy(expression: str, remedy: str):
    with pytest.raises(ConfigError) as error:
        parse(expression, KINDS)
    assert error.value.remedy == remedy


OPERATORS = {
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def computed(node: Any, row: dict[str, Any]) -> Any:
    """Compute an expression for one row, by Python, where None is unknown."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return row[name]
        case ast.UnaryOp(op=ast.Not(), operand=of):
            return None if (value := computed(of, row)) is None else not value
        case ast.BoolOp(op=op, values=values):
            found, decides = [computed(of, row) for of in values], isinstance(op, ast.Or)
            return decides if decides in found else None if None in found else not decides
        case ast.BinOp(left=left, op=op, right=right):
            sides = computed(left, row), computed(right, row)
        case ast.Compare(left=left, ops=[op], comparators=[ast.List(elts=items)]):
            value = computed(left, row)
            return None if value is None else value in [of.value for of in items]
        case ast.Compare(left=left, ops=[ast.Is()], comparators=_):
            return computed(left, row) is None
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            sides = computed(left, row), computed(right, row)
    return None if None in sides else OPERATORS[type(op)](*sides)


def random_number(draw: random.Random, depth: int) -> str:
    if depth and draw.random() < 0.4:
        sides = random_number(draw, depth - 1), random_number(draw, depth - 1)
        return f"({sides[0]} {draw.choice('+-*')} {sides[1]})"
    return draw.choice(["n", "m", str(draw.randint(0, 5))])


def random_yes_or_no(draw: random.Random, depth: int) -> str:
    if depth and draw.random() < 0.6:
        sides = [random_yes_or_no(draw, depth - 1) for _ in range(draw.randint(1, 3))]
        return (
            f"(not {sides[0]})"
            if len(sides) == 1
            else f"({draw.choice([' and ', ' or ']).join(sides)})"
        )
    match draw.randint(0, 4):
        case 0:
            return f"(t {draw.choice(['==', '!=', '>', '<='])} '{draw.choice(['a', 'b', 'c'])}')"
        case 1:
            return f"({draw.choice(['n', 't'])} is None)"
        case 2:
            return f"(n in [{draw.randint(0, 3)}, {draw.randint(0, 3)}])"
    sides = random_number(draw, 2), random_number(draw, 2)
    return f"({sides[0]} {draw.choice(['>', '<=', '==', '!='])} {sides[1]})"


def test_random_expressions_have_the_answers_of_python_row_by_row():
    draw = random.Random(7)
    rows = [
        {
            "n": draw.choice([None, 0.0, 1.0, 2.0, 3.0]),
            "m": draw.choice([None, 0.0, 1.5, 3.0]),
            "t": draw.choice([None, "a", "b"]),
        }
        for _ in range(60)
    ]
    table = documents({name: [row[name] for row in rows] for name in ("n", "m", "t")})
    num_unknown = 0
    for _ in range(300):
        text = random_yes_or_no(draw, 3)
        expected = [computed(ast.parse(text, mode="eval").body, row) for row in rows]
        found = [rule(table).to_pylist() for rule in parse(text, KINDS).rules]

        whole = [
            False if False in of else None if None in of else True
            for of in zip(*found, strict=True)
        ]
        assert whole == expected, text
        num_unknown += expected.count(None)
    assert num_unknown > 300


def test_a_quantile_lies_between_two_values_and_leaves_out_what_is_missing():
    [quantile] = parse("n >= quantile(0.9)", KINDS).quantiles

    assert (quantile.name, quantile.scope) == ("n: quantile(0.9)", "dataset")
    assert quantile.values_of(documents()).tolist() == [1.0, 2.5, -3.0, 0.0]
    assert quantile.of(np.arange(11.0)) == 9.0
    assert quantile.of(np.zeros(0)) is None
