"""Recorded cases: a workflow, and what the reference returned for it, by family and name.

`cases/FAMILY.zip` holds the cases of a family, a case as the files NAME.json (the workflow), NAME.expected/… (its
outputs) and, where the default tolerance is too tight, NAME.tolerance.json. A folder `FAMILY/` with the same files is
read as well. An archive is opened once a process, and a file of it is read when it is asked for: only the list of its
names stays in memory. `archive.py` lists, extracts and changes cases.
"""

from __future__ import annotations

import fnmatch
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = HERE / "cases"
INPUTS = HERE / "inputs"
ENDING = ".json"
TOLERANCE = ".tolerance"
EXPECTED = ".expected"


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded case; its files are read when they are asked for."""

    family: str
    name: str
    root: Path = CASES

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def text(self) -> str:
        """Return the workflow as JSON. Raises KeyError where there is no such case."""
        return self._read(f"{self.name}{ENDING}").decode()

    @property
    def prompt(self) -> dict[str, Any]:
        """Return the workflow in API format. Raises KeyError where there is no such case."""
        prompt: dict[str, Any] = json.loads(self.text)
        return prompt

    def expected(self) -> dict[str, bytes]:
        """Return the outputs of the reference, by NODE_INDEX.ENDING."""
        folder = f"{self.name}{EXPECTED}/"
        found = sorted(name for name in names_of(self.root, self.family) if name.startswith(folder))
        return {name.removeprefix(folder): self._read(name) for name in found}

    def tolerance(self) -> dict[str, Any]:
        """Return the case's own tolerance, empty where it has none."""
        name = f"{self.name}{TOLERANCE}{ENDING}"
        return json.loads(self._read(name)) if name in names_of(self.root, self.family) else {}

    def files(self) -> dict[str, bytes]:
        """Return all files of the case, by name."""
        return {
            name: self._read(name) for name in sorted(names_of(self.root, self.family)) if case_of(name) == self.name
        }

    def _read(self, name: str) -> bytes:
        archive = opened(self.root, self.family)
        if archive is not None:
            return archive.read(name)
        path = self.root / self.family / name
        if not path.is_file():
            raise KeyError(f"{path}: there is no such file")
        return path.read_bytes()


def case_of(file: str) -> str:
    """Return the name of the case that a file belongs to."""
    folder, is_output, _ = file.partition(f"{EXPECTED}/")
    return folder if is_output else file.removesuffix(ENDING).removesuffix(TOLERANCE)


def find_cases(root: Path = CASES, family: str = "*", *only: str) -> Iterator[Case]:
    """Yield the cases of the families that match, in order of files: those with a name that `only` matches, or all."""
    for found in families(root):
        if fnmatch.fnmatch(found, family):
            for file in sorted(names_of(root, found)):
                name = file.removesuffix(ENDING)
                if file == f"{case_of(file)}{ENDING}" and any(
                    fnmatch.fnmatch(name, pattern) for pattern in only or "*"
                ):
                    yield Case(found, name, root)


def case_named(name: str) -> Case:
    """Return the case with this FAMILY/NAME."""
    family, _, own = name.partition("/")
    return Case(family, own)


def families(root: Path = CASES) -> list[str]:
    """Return the families that have cases below a folder."""
    return sorted({path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".zip"})


@cache
def opened(root: Path, family: str) -> zipfile.ZipFile | None:
    """Return the archive of a family, opened once, None where its cases lie in a folder."""
    path = root / f"{family}.zip"
    return zipfile.ZipFile(path) if path.exists() else None


@cache
def names_of(root: Path, family: str) -> frozenset[str]:
    """Return the names of all files of a family, as they stand in its archive or folder."""
    archive = opened(root, family)
    if archive is not None:
        return frozenset(archive.namelist())
    folder = root / family
    found = (*folder.glob(f"*{ENDING}"), *folder.glob(f"*{EXPECTED}/*"))
    return frozenset(path.relative_to(folder).as_posix() for path in found)


def forget() -> None:
    """Open archives anew, after one was written."""
    opened.cache_clear()
    names_of.cache_clear()
