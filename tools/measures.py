"""Measures of the source for `docs/architecture.md`: sizes of files and functions, and the share of open signatures.

    python -m tools.measures                 # of the working tree
    python -m tools.measures COMMIT…         # of the tree at each commit

A signature is open where an annotation of a parameter or of what is returned contains `Any`. The last column also
counts those that contain a name for an open type (`Options = Mapping[str, Any]`), declared at the top of any file.
"""

from __future__ import annotations

import ast
import io
import math
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "worker")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 90th percentile of a size in lines."""

    median: int
    p90: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Self:
        ordered = sorted(sizes)
        return cls(*(ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9)))


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one package.

    `open_share` is the share of functions whose signature is open, `named_share` counts those open by a name too.
    """

    num_files: int
    files: Spread
    num_functions: int
    functions: Spread
    open_share: float
    named_share: float

    def row(self, name: str) -> str:
        """Return a row of the Markdown table."""
        return (
            f"| {name} | {self.num_files} | {self.files.median} / {self.files.p90} | {self.num_functions} "
            f"| {self.functions.median} / {self.functions.p90} | {self.open_share:.1%} "
            f"| {self.named_share:.1%} |"
        )


HEADER = """\
| Package | Files | Lines, median / p90 | Functions | Lines, median / p90 | Open signatures | by name too |
| --- | --- | --- | --- | --- | --- | --- |"""


def measures_of(sources: Iterable[str]) -> Measures:
    """Measure sources that have code; empty files do not count. Raises SyntaxError."""
    texts = [text for text in sources if text.strip()]
    trees = [ast.parse(text) for text in texts]
    functions = [item for tree in trees for item in _functions(tree)]
    names = {"Any", *(name for tree in trees for name in _open_names(tree))}
    return Measures(
        num_files=len(texts),
        files=Spread.of([len(text.splitlines()) for text in texts]),
        num_functions=len(functions),
        functions=Spread.of([(item.end_lineno or item.lineno) - item.lineno + 1 for item in functions]),
        open_share=sum(is_open(item) for item in functions) / len(functions),
        named_share=sum(is_open(item, names) for item in functions) / len(functions),
    )


def is_open(function: Function, names: Collection[str] = ("Any",)) -> bool:
    """Return True if an annotation of the signature contains one of these names."""
    given = function.args
    parameters = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    annotations = [function.returns, *(item.annotation for item in parameters if item is not None)]
    return any(
        isinstance(part, ast.Name) and part.id in names
        for annotation in annotations
        if annotation is not None
        for part in ast.walk(annotation)
    )


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (item for item in ast.walk(tree) if isinstance(item, Function))


def _open_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that stand for types with `Any` at the top of a file."""
    assigned = [item for item in tree.body if isinstance(item, ast.Assign)]
    for item in assigned:
        is_alias = isinstance(item.value, ast.Subscript | ast.Name | ast.BinOp)
        if is_alias and any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(item.value)):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))


def sources_here(package: str) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py")))


def sources_at(commit: str, package: str) -> Iterator[str]:
    """Yield the sources of a package at a commit. Raises CalledProcessError for an unknown one."""
    packed = subprocess.run(["git", "archive", commit, package], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                yield file.read().decode("utf-8")


def main(commits: Sequence[str]) -> int:
    lines = [HEADER]
    for package in PACKAGES:
        lines += [measures_of(sources_at(commit, package)).row(f"`{package}` at {commit}") for commit in commits]
        if not commits:
            lines.append(measures_of(sources_here(package)).row(f"`{package}`"))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
