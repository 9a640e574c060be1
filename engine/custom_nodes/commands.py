"""`python -m engine nodes ...`: list, check and install custom nodes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.custom_nodes.packs import Pack, find_packs
from engine.custom_nodes.requirements import install
from engine.custom_nodes.trial import TrialResult, try_pack
from engine.settings import EngineSettings


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code: 0 on success, 1 when a pack fails."""
    given = _parser().parse_args(arguments)
    code: int = given.run(given)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="darkroom nodes", description="Custom nodes: list, check, install.")
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="the packs of a base directory")
    listing.set_defaults(run=list_packs)
    check = commands.add_parser("check", help="import each pack in a process of its own and say what came of it")
    check.add_argument("directory", type=Path, help="a pack, or a folder of packs")
    check.add_argument("--seconds", type=float, default=60.0, help="the longest an import may take")
    check.set_defaults(run=check_packs)
    setup = commands.add_parser("install", help="install the Python packages that a pack asks for")
    setup.add_argument("directory", type=Path)
    setup.add_argument("--constraints", type=Path, default=None, help="exact versions (constraints.txt)")
    setup.add_argument("--dry-run", action="store_true", help="only say what would be installed")
    setup.set_defaults(run=lambda given: install(given.directory, given.constraints, dry_run=given.dry_run))
    for command in (listing, check):
        command.add_argument("--base-directory", type=Path, default=Path())
    return parser


def list_packs(given: argparse.Namespace) -> int:
    settings = EngineSettings(base_directory=given.base_directory)
    packs = find_packs([settings.custom_nodes_path])
    for pack in packs:
        sys.stdout.write(f"{pack.name}\t{pack.path}\n")
    if not packs:
        sys.stderr.write(f"no custom nodes in {settings.custom_nodes_path.absolute()}\n")
    return 0


def check_packs(given: argparse.Namespace) -> int:
    """Print a table of packs: what each provides, which missing names it uses, its requirements and its import time."""
    directory = given.directory.resolve()
    is_pack = directory.is_file() or (directory / "__init__.py").is_file()
    packs = [Pack(directory.stem, directory)] if is_pack else find_packs([directory])
    if not packs:
        sys.stderr.write(f"{directory} holds no custom nodes\n")
        return 1
    rows = [(pack, try_pack(pack.path, given.base_directory.resolve(), given.seconds)) for pack in packs]
    sys.stdout.write(table(rows))
    return 1 if any(result.error for _, result in rows) else 0


def table(rows: Sequence[tuple[Pack, TrialResult]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| Pack | Nodes | Import, s | Missing symbols at import | Package it misses | Failure |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for pack, result in rows:
        missing = ", ".join(f"`{name}`" for name in result.missing) or "none"
        failure = "" if result.error is None else result.error.splitlines()[0].replace("|", "\\|")
        package = result.missing_package or ""
        lines.append(
            f"| {pack.name} | {len(result.nodes)} | {result.seconds:.2f} | {missing} | {package} | {failure} |"
        )
    return "\n".join(lines) + "\n"
