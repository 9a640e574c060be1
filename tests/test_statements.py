"""The statements of a syntax tree are those that Python's own walk finds."""

from __future__ import annotations

import ast

from tests.statements import statements_of

SOURCE = """
import a

async def f(x=[i for i in range(3)]):
    "words"
    try:
        with x as y:
            import b
    except (KeyError, ValueError):
        return lambda: 1
    else:
        z = 1 if x else 2
    finally:
        del x
    match x:
        case [1, *rest]:
            class C:
                field: int = 1
                "of the field"
    for i in x:
        if i:
            pass
        elif not i:
            from c import d
        else:
            break
    else:
        while True:
            continue
    try:
        pass
    except* OSError:
        raise
"""


def test_every_statement_is_found_once() -> None:
    tree = ast.parse(SOURCE)
    found = list(statements_of(tree))
    walked = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert len(found) == len(set(found)) == len(walked) and set(found) == set(walked)
