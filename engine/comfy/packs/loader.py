"""Custom nodes: discovery and import of packs, and a report for each.

A pack is a folder with an `__init__.py`, or a single `.py` file, in `custom_nodes/` of the base directory or in a
`custom_nodes` folder that `extra_model_paths.yaml` names. It registers its classes in ComfyUI's ways: with
`NODE_CLASS_MAPPINGS`, or with `comfy_entrypoint()`, which gives a `ComfyExtension`.

Packs find ComfyUI's import names served by `engine/comfy/finder.py`. One that is new or has changed is first imported
in a process of its own (`trial.py`), so that one that dies or hangs costs itself only.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Literal

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.comfy import finder
from darkroom.engine.comfy.host import HOST, Host, PackEngine, PackServer
from darkroom.engine.comfy.known_names import read_known_names
from darkroom.engine.comfy.missing_symbol import MissingSymbol
from darkroom.engine.comfy.packs.discovery import Pack, find_packs
from darkroom.engine.comfy.packs.layer import add_layer, remove_layer
from darkroom.engine.comfy.packs.pack_memory import PackMemory, fingerprint
from darkroom.engine.comfy.packs.trial import try_pack
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.legacy_node import ClassNode, wait_for

PackStatus = Literal["loaded", "failed", "skipped"]
PRESTARTUP = "prestartup_script.py"
MEMORY_FILE = Path("state", "custom_nodes.json")
NUM_TRIALS = 2
OWN_MODULE = "darkroom"  # of the engine's nodes that ComfyUI has not: they have the names of packs' nodes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PackReport:
    """Outcome of loading one pack. `missing` are the names of ComfyUI that it used and this engine lacks.

    `failed_nodes` says by name of those of its nodes that cannot be offered why.
    """

    name: str
    path: Path
    status: PackStatus
    seconds: float = 0.0
    nodes: Sequence[str] = ()
    error: str | None = None
    missing: Sequence[str] = ()
    web_directory: Path | None = None
    trace: str = ""
    failed_nodes: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> ValueDict:
        return {
            "name": self.name,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "nodes": list(self.nodes),
            "error": self.error,
            "missing": list(self.missing),
            "failed_nodes": dict(self.failed_nodes),
            "web_directory": self.web_directory is not None,
        }


@dataclass(frozen=True, slots=True)
class Contents:
    """Registrations of a pack: its classes by node name, their display names, and its folder of web files.

    `failed_nodes` are those that do not declare themselves, with the reason.
    """

    classes: Mapping[str, type]
    display_names: Mapping[str, str] = field(default_factory=dict)
    web_directory: Path | None = None
    failed_nodes: Mapping[str, str] = field(default_factory=dict)


class PackError(Exception):
    """A pack that cannot be loaded: it registers nothing, or registers something that is no node."""


def run_prestartup(pack: Pack) -> None:
    """Run a pack's prestartup script, if it has one. Raises what the script raises."""
    script = pack.path / PRESTARTUP
    if pack.path.is_dir() and script.is_file():
        _execute(f"{pack.module_name}.prestartup", script)


def import_pack(pack: Pack) -> Contents:
    """Import a pack and read what it registers. Raises what the pack raises, or `PackError`."""
    is_file = pack.path.is_file()
    module = _execute(pack.module_name, pack.path if is_file else pack.path / "__init__.py", is_package=not is_file)
    web = getattr(module, "WEB_DIRECTORY", None)
    web_directory = None if web is None or is_file else (pack.path / str(web)).resolve()
    if web_directory is not None and not web_directory.is_dir():
        web_directory = None
    mappings = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if mappings is not None:
        return Contents(dict(mappings), dict(getattr(module, "NODE_DISPLAY_NAME_MAPPINGS", None) or {}), web_directory)
    entrypoint = getattr(module, "comfy_entrypoint", None)
    if entrypoint is not None:
        return _from_extension(pack, entrypoint, web_directory)
    raise PackError("it has neither NODE_CLASS_MAPPINGS nor comfy_entrypoint")


def _from_extension(pack: Pack, entrypoint: Callable[[], object], web_directory: Path | None) -> Contents:
    async def nodes() -> list[type]:
        given = entrypoint()
        extension = await given if inspect.isawaitable(given) else given
        if not isinstance(extension, finder.served("comfy_api.latest").ComfyExtension):
            raise PackError(f"comfy_entrypoint gave a {type(extension).__name__}, not a ComfyExtension")
        await extension.on_load()
        return list(await extension.get_node_list())

    classes: dict[str, type] = {}
    names: dict[str, str] = {}
    failed: dict[str, str] = {}
    for kind in wait_for(nodes()):
        try:
            schema = kind.GET_SCHEMA()
        except Exception as error:  # noqa: BLE001 - the declaration of a pack's node
            failed[getattr(kind, "__name__", str(kind))] = f"{type(error).__name__}: {error}"
            continue
        classes[schema.node_id] = kind
        if schema.display_name is not None:
            names[schema.node_id] = schema.display_name
    if failed and not classes:
        raise PackError("; ".join(f"{name}: {why}" for name, why in failed.items()))
    return Contents(classes, names, web_directory, failed)


def _execute(module_name: str, path: Path, *, is_package: bool = False) -> ModuleType:
    folders = [str(path.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(module_name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise PackError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    return module


def add_nodes(engine: PackEngine, pack: Pack, contents: Contents) -> list[str]:
    """Add a pack's classes to the catalogue and return the names added.

    A node that ComfyUI has is never replaced. One that the engine has under the name of a pack's own is.
    """
    added = []
    for class_type, kind in contents.classes.items():
        if unusable_class(kind) is not None:
            continue
        known = engine.catalogue.get(class_type)
        if isinstance(known, FunctionNode) and known.python_module != OWN_MODULE:
            continue
        display_name = contents.display_names.get(class_type)
        module = f"custom_nodes.{pack.name}"
        engine.catalogue.add(ClassNode(class_type, kind, display_name=display_name, python_module=module))
        added.append(class_type)
    return added


def unusable_class(kind: object) -> str | None:
    """Return the reason why a pack's class is no node: a placeholder of a missing name, or none at all; else None."""
    if isinstance(kind, MissingSymbol):
        return f"it is made with {kind.symbol_name}, which this engine does not support"
    return None if isinstance(kind, type) else f"it is a {type(kind).__name__}, no class"


def load_custom_nodes(engine: PackEngine, server: PackServer | None = None) -> list[PackReport]:
    """Import the packs that the engine's settings allow. Call once per engine, before prompts are checked."""
    settings = engine.settings
    folders = [settings.custom_nodes_path, *_extra_folders(engine)]
    found = find_packs(dict.fromkeys(folders))
    packs = wanted_packs(
        found, disable_all=settings.disable_all_custom_nodes, whitelist=settings.whitelist_custom_nodes
    )
    skipped = [PackReport(pack.name, pack.path, "skipped") for pack in found if pack not in packs]
    if not packs:
        return skipped
    memory = PackMemory(settings.base_path / MEMORY_FILE)
    contents = {pack.name: fingerprint(pack.path) for pack in packs}
    failed = _try_new(packs, contents, memory, settings.base_path)
    loader = CustomNodes(engine, folders, server)
    good = [pack for pack in packs if pack.name not in failed]
    for pack in good:
        memory.begin(pack.path, contents[pack.name])
    reports = {report.name: report for report in loader.load(good)}
    for pack in good:
        memory.end(pack.path, contents[pack.name], is_good=reports[pack.name].status == "loaded")
    every = [*(failed.get(pack.name) or reports[pack.name] for pack in packs)]
    log_reports(every)
    return [*every, *skipped]


def _extra_folders(engine: PackEngine) -> list[Path]:
    return engine.folders.roots("custom_nodes") if "custom_nodes" in engine.folders.kinds() else []


def _try_new(
    packs: Sequence[Pack], contents: Mapping[str, str], memory: PackMemory, base_directory: Path
) -> dict[str, PackReport]:
    """Try packs not known to work, several at a time; return the reports of those that must not be imported."""
    failed: dict[str, PackReport] = {}
    new = []
    for pack in packs:
        if memory.killed(pack.path, contents[pack.name]):
            error = "the engine ended twice while it was imported; change the pack to have it tried again"
            failed[pack.name] = PackReport(pack.name, pack.path, "failed", error=error)
        elif not memory.is_good(pack.path, contents[pack.name]):
            new.append(pack)
    with ThreadPoolExecutor(NUM_TRIALS, thread_name_prefix="trial") as pool:
        results = pool.map(lambda pack: try_pack(pack.path, base_directory), new)
        for pack, result in zip(new, results, strict=True):
            if result.error is not None:
                failed[pack.name] = PackReport(
                    pack.name, pack.path, "failed", result.seconds, (), result.error, result.missing,
                    trace=result.details,
                )  # fmt: skip
    return failed


class CustomNodes:
    """Loader of packs into one engine, which serves ComfyUI's import names in this process until it is closed.

    Raises RuntimeError while they belong to another engine.
    """

    def __init__(self, engine: PackEngine, folders: Sequence[Path], server: PackServer | None = None) -> None:
        self._engine = engine
        self.host = Host(engine, server, read_known_names())
        HOST.claim(self.host)
        engine.on_close(self.close)
        for folder in folders:
            engine.folders.add_folder("custom_nodes", folder)
        finder.install(folders)
        self._layer = add_layer(engine.settings.base_path)

    def close(self) -> None:
        """Give the import names up, with all that packs changed in their modules."""
        if HOST.release(self.host):
            finder.uninstall()
            remove_layer(self._layer)

    def load(self, packs: Sequence[Pack]) -> list[PackReport]:
        """Run all prestartup scripts, then import the packs one after the other."""
        for pack in packs:
            self.host.packs[pack.path] = pack.name
        broken = {pack.name: error for pack in packs if (error := self._prestartup(pack)) is not None}
        return [broken[pack.name] if pack.name in broken else self.load_one(pack) for pack in packs]

    def load_one(self, pack: Pack) -> PackReport:
        return self._guarded(pack, lambda: self._take(pack))

    def _prestartup(self, pack: Pack) -> PackReport | None:
        """Run a pack's prestartup script; return the report of a failure, or None on success."""

        def run() -> PackReport:
            run_prestartup(pack)
            return PackReport(pack.name, pack.path, "loaded")

        report = self._guarded(pack, run)
        return report if report.status == "failed" else None

    def _take(self, pack: Pack) -> PackReport:
        contents = import_pack(pack)
        added = add_nodes(self._engine, pack, contents)
        unusable = {name: why for name, kind in contents.classes.items() if (why := unusable_class(kind)) is not None}
        failed = {**contents.failed_nodes, **unusable}
        return PackReport(
            pack.name, pack.path, "loaded", nodes=added, web_directory=contents.web_directory, failed_nodes=failed
        )

    def _guarded(self, pack: Pack, work: Callable[[], PackReport]) -> PackReport:
        began_seconds = time.monotonic()
        self.host.importing = pack.name
        try:
            report = work()
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - a pack's import
            message = f"{type(error).__name__}: {error}"
            report = PackReport(pack.name, pack.path, "failed", error=message, trace=traceback.format_exc())
        finally:
            self.host.importing = ""
        report.seconds = time.monotonic() - began_seconds
        report.missing = tuple(self.host.asked.get(pack.name, ()))
        return report


def wanted_packs(packs: Sequence[Pack], *, disable_all: bool, whitelist: Collection[str]) -> list[Pack]:
    """Return the packs that the flags allow."""
    return [pack for pack in packs if not disable_all or pack.name in whitelist or pack.path.name in whitelist]


def log_reports(reports: Sequence[PackReport]) -> None:
    """Log one line per pack, and the traceback of each failure."""
    for report in reports:
        if report.status == "loaded":
            log.info("custom nodes %s: %d nodes in %.2f s", report.name, len(report.nodes), report.seconds)
        else:
            log.error("custom nodes %s: %s: %s\n%s", report.name, report.status, report.error, report.trace)
        for name, why in report.failed_nodes.items():
            log.warning("custom nodes %s: %s is left out: %s", report.name, name, why)
        if report.missing:
            log.warning("custom nodes %s asked for what is not supported: %s", report.name, ", ".join(report.missing))
