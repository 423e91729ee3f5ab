"""The docstring under each field of a config, for who shows a user what can be set."""

import ast
import dataclasses
import inspect
import textwrap
from itertools import pairwise


def field_docs(config: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, one line each; "" where there is none.

    Python keeps no docstrings of fields, so the source is read.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {
        above.target.id: " ".join(below.value.value.split())
        for above, below in pairwise(body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(config)}
