"""Statements of a file, for tests that read every file: a tenth of the nodes that `ast.walk` visits."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import Final

BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")


def statements_of(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements of a syntax tree, those inside others after them; expressions are not looked into."""
    pending: deque[ast.AST] = deque([tree])
    while pending:
        parent = pending.popleft()
        for name in BLOCKS:
            block = getattr(parent, name, ())
            for child in block if isinstance(block, list) else ():
                if isinstance(child, ast.stmt):
                    yield child
                pending.append(child)
