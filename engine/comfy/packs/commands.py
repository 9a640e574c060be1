"""`python -m darkroom.engine nodes ...`: list, check, install and sync custom nodes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from darkroom.contract.argument_parser import SuggestingParser
from darkroom.contract.missing_file import missing_file
from darkroom.engine.comfy.packs.discovery import Pack, find_packs
from darkroom.engine.comfy.packs.known_packs import KNOWN_PACKS, fetch_known, known_pack
from darkroom.engine.comfy.packs.requirements import install
from darkroom.engine.comfy.packs.sync.errors import SyncError
from darkroom.engine.comfy.packs.sync.fetch import REGISTRY
from darkroom.engine.comfy.packs.sync.install_script import INSTALL_SECONDS
from darkroom.engine.comfy.packs.sync.manifest import read_packs
from darkroom.engine.comfy.packs.sync.sync import SyncOptions, collect_packs, sync_packs
from darkroom.engine.comfy.packs.sync.versions import pack_versions
from darkroom.engine.comfy.packs.trial import TRIAL_SECONDS, TrialResult, try_pack
from darkroom.engine.settings import EngineSettings


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code: 0 on success, 1 when a pack fails."""
    given = _parser().parse_args(arguments)
    code: int = given.run(given)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(prog="darkroom nodes", description="Custom nodes: list, check, install.")
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="the packs of a base directory")
    listing.add_argument("--known", action="store_true", help="instead those that `install` knows by name")
    listing.set_defaults(run=list_packs)
    check = commands.add_parser("check", help="import each pack, run its nodes, and say what came of it")
    check.add_argument(
        "directory",
        type=Path,
        nargs="?",
        help="a pack, a folder of packs, or a base directory; else --base-directory's",
    )
    check.add_argument("--import-only", action="store_true", help="run none of the nodes")
    check.add_argument("--seconds", type=float, default=TRIAL_SECONDS, help="the longest an import may compute")
    check.set_defaults(run=check_packs)
    setup = commands.add_parser("install", help="install a known pack by name, or the packages that a pack asks for")
    setup.add_argument("pack", help="the folder of a pack, or a name that `list --known` prints")
    setup.add_argument("--constraints", type=Path, default=None, help="exact versions (constraints.txt)")
    setup.add_argument("--dry-run", action="store_true", help="only say what would be installed")
    setup.set_defaults(run=install_pack)
    sync = commands.add_parser("sync", help="install the packs of packs.toml and the Python packages they need")
    sync.add_argument("--update", action="store_true", help="follow branches and newest versions anew")
    sync.add_argument("--locked", action="store_true", help="refuse what packs.lock.toml does not have")
    sync.add_argument("--dry-run", action="store_true", help="only say what would be installed")
    sync.add_argument("--prune", action="store_true", help="remove synced packs that packs.toml no longer has")
    sync.add_argument("--offline", type=Path, default=None, help="a folder with packs/ and wheels/: no network is used")
    sync.add_argument("--wheels", type=Path, default=None, help="a folder of wheels: no package index is asked")
    sync.add_argument("--registry", default=REGISTRY, help="address of ComfyUI's registry of packs")
    sync.add_argument(
        "--install-seconds", type=float, default=INSTALL_SECONDS, help="the longest that an install.py may take"
    )
    sync.set_defaults(run=sync_command)
    verify = commands.add_parser("verify", help="compare custom_nodes/ with packs.toml and packs.lock.toml")
    verify.set_defaults(run=verify_packs)
    collect = commands.add_parser("collect", help="write packs and wheels of their packages, for sync --offline")
    collect.add_argument("folder", type=Path)
    collect.set_defaults(run=collect_command)
    for command in (listing, check, setup, sync, verify, collect):
        command.add_argument("--base-directory", type=Path, default=Path())
    return parser


def list_packs(given: argparse.Namespace) -> int:
    if given.known:
        for entry in read_packs(KNOWN_PACKS):
            sys.stdout.write(f"{entry.name}\t{entry.shown}\n")
        return 0
    settings = EngineSettings(base_directory=given.base_directory)
    packs = find_packs([settings.custom_nodes_path])
    for pack in packs:
        sys.stdout.write(f"{pack.name}\t{pack.path}\n")
    if not packs:
        sys.stderr.write(f"no custom nodes in {settings.custom_nodes_path.absolute()}\n")
    return 0


def install_pack(given: argparse.Namespace) -> int:
    """Install what a pack asks for; a known pack that is not there is fetched before, with the exit codes of a sync."""
    folder = Path(given.pack)
    if not folder.exists() and folder.name == given.pack:
        try:
            entry = known_pack(given.pack)
            custom_nodes = EngineSettings(base_directory=given.base_directory).custom_nodes_path
            if given.dry_run and not (custom_nodes / entry.name).exists():
                sys.stdout.write(f"would fetch {entry.name} {entry.shown}\n")
                return 0
            folder = fetch_known(entry, custom_nodes)
        except SyncError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        sys.stdout.write(f"{entry.name} {entry.shown} is in {folder}\n")
    return install(folder, given.constraints, dry_run=given.dry_run)


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def sync_command(given: argparse.Namespace) -> int:
    """Sync the base directory. Exit code 2: the manifest is wrong; 3: not fetched; 4: another tree; 1: refused."""
    options = SyncOptions(
        is_update=given.update, is_locked=given.locked, is_dry=given.dry_run, prune=given.prune,
        offline=given.offline, wheels=given.wheels, registry=given.registry.rstrip("/"),
        install_seconds=given.install_seconds,
    )  # fmt: skip
    base = EngineSettings(base_directory=given.base_directory).base_path
    try:
        lock = sync_packs(base, options, _show)
    except SyncError as error:
        sys.stderr.write(f"{error}\nnothing was changed\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(
            f"{error.filename or base}: {error.strerror or error}; expected a folder that can be written\n"
        )
        return 1
    state = "would be installed" if given.dry_run else "in place"
    sys.stderr.write(f"{len(lock.packs)} packs, {len(lock.packages)} Python packages {state}\n")
    return 0


def collect_command(given: argparse.Namespace) -> int:
    """Collect the packs of the base directory in a folder, with the exit codes of a sync."""
    try:
        collect_packs(EngineSettings(base_directory=given.base_directory).base_path, given.folder)
    except SyncError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def verify_packs(given: argparse.Namespace) -> int:
    """Print the state of each pack of the manifest; return 1 if one is not as locked, 2 for a wrong manifest."""
    base = EngineSettings(base_directory=given.base_directory).base_path
    try:
        versions = pack_versions(base, reads_files=True)
    except SyncError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for version in versions:
        sys.stdout.write(f"{version.state:14} {version.name} {version.source}@{version.found or version.expected}\n")
    return 0 if all(version.state == "good" for version in versions) else 1


def check_packs(given: argparse.Namespace) -> int:
    """Print a table of packs: what each provides, which missing names it uses, its requirements and its import time."""
    base = given.base_directory.resolve()
    directory = (given.directory or EngineSettings(base_directory=base).custom_nodes_path).resolve()
    if not directory.exists():
        sys.stderr.write(f"{directory}: {missing_file(directory, kind='folder')}\n")
        return 1
    is_pack = directory.is_file() or (directory / "__init__.py").is_file()
    if not is_pack and (directory / "custom_nodes").is_dir():
        base, directory = directory, directory / "custom_nodes"
    packs = [Pack(directory.stem, directory)] if is_pack else find_packs([directory])
    if not packs:
        sys.stderr.write(f"{directory} holds no custom nodes\n")
        return 1
    runs_nodes = not given.import_only
    rows = [(pack, try_pack(pack.path, base, given.seconds, runs_nodes=runs_nodes)) for pack in packs]
    sys.stdout.write(table(rows))
    sys.stdout.write(node_list(rows))
    return 1 if any(result.error or result.failed_nodes for _, result in rows) else 0


def table(rows: Sequence[tuple[Pack, TrialResult]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| Pack | Nodes | Run | Failed | Import, s | Missing symbols at import | Package it misses | Failure |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pack, result in rows:
        missing = ", ".join(f"`{name}`" for name in result.missing) or "none"
        failure = "" if result.error is None else result.error.splitlines()[0].replace("|", "\\|")
        package = result.missing_package or ""
        lines.append(
            f"| {pack.name} | {len(result.nodes)} | {len(result.tried)} | {len(result.failed_nodes)} "
            f"| {result.seconds:.2f} | {missing} | {package} | {failure} |"
        )
    return "\n".join(lines) + "\n"


def node_list(rows: Sequence[tuple[Pack, TrialResult]]) -> str:
    """Return a line for each node that failed, and for each that was not run, with the reason."""
    lines = []
    for pack, result in rows:
        lines += [f"{pack.name}: {name} fails: {why.splitlines()[0]}" for name, why in result.failed_nodes.items()]
        lines += [f"{pack.name}: {name} was not run: {why}" for name, why in result.untried.items()]
    return "".join(f"{line}\n" for line in lines)
