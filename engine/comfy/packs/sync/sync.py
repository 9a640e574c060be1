"""`darkroom nodes sync`: the packs of `packs.toml` in `custom_nodes/`, and a layer of the packages they need.

Everything is fetched, compared and resolved first. Then the layer and the folders are exchanged by renaming. A run
that fails or is killed leaves each pack and the layer as they were or as they will be, and the next run finishes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from darkroom.engine.comfy.packs.layer import LINK
from darkroom.engine.comfy.packs.sync.errors import FolderTaken, PackChanged, PackNotFetched, SyncError
from darkroom.engine.comfy.packs.sync.fetch import REGISTRY, FetchedPack, fetch_pack
from darkroom.engine.comfy.packs.sync.install_script import INSTALL_SCRIPT, INSTALL_SECONDS, InstallRun
from darkroom.engine.comfy.packs.sync.lock import LockedPack, LockedPackage, PacksLock, lock_path, read_lock, write_lock
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, manifest_path, read_packs
from darkroom.engine.comfy.packs.sync.packages import (
    Installer,
    PackRequirements,
    installed_constraints,
    requirements_of,
)
from darkroom.engine.comfy.packs.sync.tree import PackMark, read_mark, tree_sha256

STAGING = ".sync"  # in custom_nodes/, so that renaming stays within one disk; hidden folders are no packs
LAYERS = ".pack_packages"
GUARD = ".packs.guard"
NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__")

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Choices of one sync.

    `is_update` follows branches and newest versions anew; otherwise the lock's commits count. `is_locked` refuses what
    would change the lock. `offline` is a folder with `packs/` and `wheels/`: then no network is used. `is_dry` changes
    nothing. `prune` removes packs that a sync installed and that the manifest no longer has.
    """

    is_update: bool = False
    is_locked: bool = False
    is_dry: bool = False
    prune: bool = False
    offline: Path | None = None
    wheels: Path | None = None
    registry: str = REGISTRY
    install_seconds: float = INSTALL_SECONDS


@dataclass(frozen=True, slots=True)
class PackPlan:
    """A pack as it will be. `fetched` is None where the folder already has it.

    `installed_sha256` is of the tree that `install.py` left, empty where it did not run.
    """

    entry: PackEntry
    locked: LockedPack
    folder: Path
    fetched: FetchedPack | None
    installed_sha256: str = ""

    @property
    def has_script(self) -> bool:
        """True where the pack has an `install.py`."""
        return (self.folder / INSTALL_SCRIPT).is_file()

    @property
    def is_script_due(self) -> bool:
        """True where the manifest asks for a run of `install.py` that has not been."""
        return self.entry.run_install and self.has_script and not self.installed_sha256

    def mark(self, installed_sha256: str = "") -> PackMark:
        """Return the mark of the pack in its place."""
        installed = installed_sha256 or self.installed_sha256
        return PackMark(self.entry.source, self.locked.commit, self.locked.sha256, installed)


def sync_packs(base_directory: Path, options: SyncOptions, show: Show) -> PacksLock:
    """Install the packs of the manifest and their packages. Return the lock. Raises SyncError; then nothing changed."""
    entries = read_packs(manifest_path(base_directory))
    lock = read_lock(lock_path(base_directory))
    custom_nodes = base_directory / "custom_nodes"
    with _guarded(base_directory), _staging(custom_nodes) as staging:
        plans = plan_packs(entries, lock, custom_nodes, staging, options)
        installer = Installer(installed_constraints(), _wheels(options))
        needs = _needs(plans, lock)
        environment = installer.environment_hash(needs)
        is_known = environment == lock.environment and not options.is_update
        if options.is_locked and not is_known:
            raise SyncError(
                "packs.lock.toml: is of other packs or another environment; expected a sync without --locked"
            )
        packages = lock.packages if is_known else installer.resolve(needs)
        new = PacksLock({plan.entry.name: plan.locked for plan in plans}, packages, environment)
        _describe(plans, packages, show)
        if options.is_dry:
            return new
        scripts = [plan for plan in plans if plan.is_script_due]  # their folders move in the block
        with _placed(plans, custom_nodes, staging):
            built = None
            if scripts:
                run = InstallRun(base_directory, installer, options.install_seconds)
                built = _build_layer(base_directory, packages, installer)
                added = _run_scripts(scripts, packages, built, run, staging, show)
                packages = (*packages, *added)
                environment = installer.environment_hash(_with_brought(needs, plans, PacksLock(new.packs, packages)))
                new = PacksLock(new.packs, packages, environment)
            install_layer(base_directory, new.packages, installer, new.environment, built)
        if new != lock:
            write_lock(lock_path(base_directory), new)
        if options.prune:
            _prune(custom_nodes, {entry.name for entry in entries}, show)
        return new


def collect_packs(base_directory: Path, folder: Path) -> None:
    """Write packs, wheels of their packages, manifest and lock into `folder`, for a sync with `offline`.

    Raises SyncError unless every pack is as the lock has it.
    """
    lock = read_lock(lock_path(base_directory))
    packs: dict[str, LockedPack] = {}
    for entry in read_packs(manifest_path(base_directory)):
        pack, locked = base_directory / "custom_nodes" / entry.name, lock.packs.get(entry.name)
        mark = read_mark(pack)
        if (
            locked is None
            or mark is None
            or not mark.has_origin(entry.source, locked.commit, locked.sha256)
            or tree_sha256(pack) != mark.tree
            or (entry.run_install and not mark.installed_sha256 and (pack / INSTALL_SCRIPT).is_file())
        ):
            raise PackChanged(f"{entry.name}: is not as packs.lock.toml has it; expected `darkroom nodes sync` before")
        packs[entry.name] = replace(locked, installed_sha256=mark.installed_sha256)
        shutil.copytree(pack, folder / "packs" / entry.name, symlinks=True, ignore=NOT_COPIED)
    packages = Installer(()).collect(lock.packages, folder / "wheels")
    shutil.copyfile(manifest_path(base_directory), manifest_path(folder))
    write_lock(lock_path(folder), replace(lock, packs=packs, packages=packages))


def plan_packs(
    entries: Sequence[PackEntry], lock: PacksLock, custom_nodes: Path, staging: Path, options: SyncOptions
) -> list[PackPlan]:
    """Fetch what is not there. Raises the first problem's kind of SyncError with the problems of all packs."""
    plans: list[PackPlan] = []
    problems: list[SyncError] = []
    for entry in entries:
        try:
            plans.append(_plan(entry, lock.packs.get(entry.name), custom_nodes, staging, options))
        except SyncError as error:
            problems.append(error)
    if problems:
        raise type(problems[0])("\n".join(str(problem) for problem in problems))
    return plans


def _plan(
    entry: PackEntry, locked: LockedPack | None, custom_nodes: Path, staging: Path, options: SyncOptions
) -> PackPlan:
    folder = custom_nodes / entry.name
    if (folder.exists() or folder.is_symlink()) and read_mark(folder) is None:
        raise FolderTaken(f"{entry.name}: {folder} was not installed by a sync; expected it moved away or renamed")
    if locked is not None and (locked.asked != entry.shown or options.is_update):
        locked = None
    mark = read_mark(folder)
    if locked is not None and mark is not None and mark.has_origin(entry.source, locked.commit, locked.sha256):
        _compare(entry, locked.sha256, locked)
        plan = PackPlan(entry, locked, folder, None, mark.installed_sha256)
        if not plan.is_script_due or tree_sha256(folder) == locked.sha256:
            return plan
        # What an install.py that was killed has left is no tree to run it on again: the pack is fetched anew.
    if locked is None and options.is_locked:
        raise PackNotFetched(f"{entry.name}: {entry.shown} is not in packs.lock.toml; expected a sync without --locked")
    store = None if options.offline is None else options.offline / "packs"
    revision = entry.revision if locked is None else locked.commit
    fetched = fetch_pack(entry, staging / entry.name, revision=revision, registry=options.registry, store=store)
    found = tree_sha256(fetched.folder)
    if locked is not None and entry.run_install and found == locked.installed_sha256:  # a snapshot's, after its run
        _compare(entry, locked.sha256, locked)
        return PackPlan(entry, locked, fetched.folder, fetched, found)
    _compare(entry, found, locked)
    return PackPlan(entry, locked or LockedPack(entry.shown, fetched.commit, found), fetched.folder, fetched)


def _needs(plans: Sequence[PackPlan], lock: PacksLock) -> list[PackRequirements]:
    needs = [requirements_of(plan.entry.name, plan.folder, plan.entry.skip_requirements) for plan in plans]
    return _with_brought(needs, plans, lock)


def _with_brought(
    needs: Sequence[PackRequirements], plans: Sequence[PackPlan], lock: PacksLock
) -> list[PackRequirements]:
    """Return the requirements with what each `install.py` brought by the lock, if it ran on the same files."""
    found = []
    for item, plan in zip(needs, plans, strict=True):
        before = lock.packs.get(item.pack)
        is_same = plan.entry.run_install and before is not None and before.sha256 == plan.locked.sha256
        brought = [one for one in lock.packages if is_same and one.installed_by == item.pack]
        found.append(replace(item, brought=tuple(sorted(brought, key=lambda one: one.name))))
    return found


def _compare(entry: PackEntry, found: str, locked: LockedPack | None) -> None:
    expected = entry.sha256 or (locked.sha256 if locked else "")
    if expected and found != expected:
        where = "packs.toml" if entry.sha256 else "packs.lock.toml"
        raise PackChanged(f"{entry.name}: its tree has SHA-256 {found}, expected {expected} of {where}")


def install_layer(
    base_directory: Path,
    packages: Sequence[LockedPackage],
    installer: Installer,
    environment: str,
    built: Path | None = None,
) -> None:
    """Make the layer hold exactly these packages, unless it does. An interrupted run leaves the layer that was.

    `built` is a new layer that has them already.
    """
    link = base_directory / LINK
    layers = base_directory / LAYERS
    if not packages:
        link.unlink(missing_ok=True)
        shutil.rmtree(layers, ignore_errors=True)
        return
    name = _layer_name(packages, environment)
    if not (layers / name).is_dir():
        os.replace(built or _build_layer(base_directory, packages, installer), layers / name)
    new_link = base_directory / f".{LINK}.new"
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(Path(LAYERS, name))
    os.replace(new_link, link)
    for other in layers.iterdir():
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)


def _layer_name(packages: Sequence[LockedPackage], environment: str) -> str:
    contents = "\n".join([environment, *sorted(package.requirement for package in packages)])
    return hashlib.sha256(contents.encode()).hexdigest()[:32]


def _build_layer(base_directory: Path, packages: Sequence[LockedPackage], installer: Installer) -> Path:
    """Install the packages into a new layer that is not in use. Return it."""
    partial = base_directory / LAYERS / "new"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    installer.install(packages, partial)
    return partial


def _run_scripts(
    plans: Sequence[PackPlan],
    packages: Sequence[LockedPackage],
    layer: Path,
    run: InstallRun,
    staging: Path,
    show: Show,
) -> tuple[LockedPackage, ...]:
    """Run the `install.py` of packs that are in place. Return the packages that these installed into `layer`.

    `layer` has `packages` and is not in use yet. Raises InstallScriptFailed.
    """
    added: list[LockedPackage] = []
    for plan in plans:
        name = plan.entry.name
        folder = run.base_directory / "custom_nodes" / name
        show(f"running    {name}/{INSTALL_SCRIPT}")
        for item in run.run(name, folder, layer, [*packages, *added], staging / f"{name}.venv"):
            show(f"installed  {item.name} {item.version} by {name}/{INSTALL_SCRIPT}")
            added.append(replace(item, installed_by=name))
        plan.mark(tree_sha256(folder)).write(folder)
    return tuple(added)


@contextmanager
def _placed(plans: Sequence[PackPlan], custom_nodes: Path, staging: Path) -> Iterator[None]:
    """Exchange the folders of packs for the fetched ones. A failure in the block brings back those that were."""
    undone: list[tuple[Path, Path]] = []
    try:
        for plan in plans:
            target, old = custom_nodes / plan.entry.name, staging / f"{plan.entry.name}.old"
            if plan.fetched is not None:
                plan.mark().write(plan.folder)
                if target.exists():
                    os.replace(target, old)
                undone.append((target, old))
                os.replace(plan.folder, target)
            elif plan.is_script_due:
                shutil.copytree(target, old, symlinks=True)
                undone.append((target, old))
        yield
    except BaseException:
        for target, old in reversed(undone):
            shutil.rmtree(target, ignore_errors=True)
            if old.exists():
                os.replace(old, target)
        raise


def _prune(custom_nodes: Path, wanted: set[str], show: Show) -> None:
    for folder in sorted(custom_nodes.iterdir()):
        mark = read_mark(folder) if folder.is_dir() and folder.name not in wanted else None
        if mark is not None and not mark.by_name:
            shutil.rmtree(folder)
            show(f"removed    {folder.name}")


def _describe(plans: Sequence[PackPlan], packages: Sequence[LockedPackage], show: Show) -> None:
    for plan in plans:
        state = "is there  " if plan.fetched is None else "fetched   "
        show(f"{state} {plan.entry.name} {plan.entry.source}@{plan.locked.commit} sha256 {plan.locked.sha256}")
        if plan.is_script_due:
            show(f"to run     {plan.entry.name}/{INSTALL_SCRIPT}, by run_install of packs.toml")
        elif plan.has_script and not plan.entry.run_install:
            show(f"not run    {plan.entry.name}/{INSTALL_SCRIPT}: `run_install = true` in packs.toml runs it at a sync")
    for package in packages:
        show(f"package    {package.name} {package.version}")


def _wheels(options: SyncOptions) -> Path | None:
    if options.wheels is not None or options.offline is None:
        return options.wheels
    return options.offline / "wheels"


@contextmanager
def _staging(custom_nodes: Path) -> Iterator[Path]:
    folder = custom_nodes / STAGING
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield Path(tempfile.mkdtemp(dir=folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _guarded(base_directory: Path) -> Iterator[None]:
    """Wait until no other process syncs this base directory."""
    with (base_directory / GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
