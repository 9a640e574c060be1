"""List, extract and change recorded cases, which lie in one archive a family.

    python -m tests.parity.archive list [GLOB …]               names of cases as FAMILY/NAME, with their sizes
    python -m tests.parity.archive extract FOLDER GLOB …       write cases to FOLDER/FAMILY, to look at or to edit
    python -m tests.parity.archive add FAMILY NAME.json …      add or replace cases, each with the files beside it
    python -m tests.parity.archive remove GLOB …

What `extract` writes is what `add` reads: NAME.json, the folder NAME.expected, NAME.tolerance.json. A case that is
replaced keeps nothing of before, its tolerance neither. An archive is a function of its cases: files in order of their
names, without times, and stored as they are (PNG files and noise hardly shrink). So equal cases give equal bytes on
every machine, and git stores only what changed.
"""

from __future__ import annotations

import argparse
import fnmatch
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.parity.recorded import CASES, ENDING, EXPECTED, TOLERANCE, Case, case_of, find_cases, forget, opened

NO_TIME = (1980, 1, 1, 0, 0, 0)
READABLE = 0o644 << 16


def matching(patterns: Iterable[str], root: Path = CASES) -> list[Case]:
    """Return the cases whose FAMILY/NAME matches one of the patterns."""
    wanted = list(patterns)
    return [case for case in find_cases(root) if any(fnmatch.fnmatch(str(case), pattern) for pattern in wanted)]


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive that has these files, in place of one that is there."""
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, NO_TIME)
            info.create_system, info.external_attr = 3, READABLE
            archive.writestr(info, files[name])
    partial.replace(path)
    forget()


def read_archive(root: Path, family: str) -> dict[str, bytes]:
    """Return all files of a family's archive, none where there is no archive."""
    archive = opened(root, family)
    return {name: archive.read(name) for name in archive.namelist()} if archive is not None else {}


def store_case(root: Path, family: str, name: str, files: Mapping[str, bytes]) -> Case:
    """Add a case to the archive of its family, in place of all files of one of that name."""
    kept = {file: content for file, content in read_archive(root, family).items() if case_of(file) != name}
    root.mkdir(parents=True, exist_ok=True)
    write_archive(root / f"{family}.zip", kept | dict(files))
    return Case(family, name, root)


def remove_cases(cases: Iterable[Case]) -> None:
    """Remove cases from the archives of their families, and an archive that has none left."""
    for case in cases:
        files = read_archive(case.root, case.family)
        left = {file: content for file, content in files.items() if case_of(file) != case.name}
        path = case.root / f"{case.family}.zip"
        if left:
            write_archive(path, left)
        else:
            path.unlink()
            forget()


def files_beside(workflow: Path) -> dict[str, bytes]:
    """Return the files of the case whose workflow this is, by their names in an archive."""
    found = [workflow, workflow.with_name(f"{workflow.stem}{TOLERANCE}{ENDING}")]
    found += sorted(workflow.with_name(f"{workflow.stem}{EXPECTED}").glob("*"))
    return {path.relative_to(workflow.parent).as_posix(): path.read_bytes() for path in found if path.is_file()}


def extract(cases: Iterable[Case], folder: Path) -> None:
    """Write the files of cases to FOLDER/FAMILY."""
    for case in cases:
        for name, content in case.files().items():
            path = folder / case.family / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity.archive", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=Path, default=CASES, metavar="DIR", help="where the archives are")
    does = parser.add_subparsers(dest="what", required=True)
    does.add_parser("list").add_argument("patterns", nargs="*", default=["*"], metavar="GLOB")
    extracting = does.add_parser("extract")
    extracting.add_argument("folder", type=Path, metavar="FOLDER")
    extracting.add_argument("patterns", nargs="+", metavar="GLOB")
    adding = does.add_parser("add")
    adding.add_argument("family", metavar="FAMILY")
    adding.add_argument("workflows", type=Path, nargs="+", metavar="NAME.json")
    does.add_parser("remove").add_argument("patterns", nargs="+", metavar="GLOB")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    arguments = parse(given)
    if arguments.what == "add":
        for workflow in arguments.workflows:
            print(store_case(arguments.cases, arguments.family, workflow.stem, files_beside(workflow)))
        return 0
    cases = matching(arguments.patterns, arguments.cases)
    if arguments.what == "extract":
        extract(cases, arguments.folder)
    elif arguments.what == "remove":
        remove_cases(cases)
    for case in cases:
        print(f"{case} {sum(map(len, case.files().values())):,}" if arguments.what == "list" else case)
    return 0 if cases else 1


if __name__ == "__main__":
    raise SystemExit(main())
