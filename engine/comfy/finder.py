"""Meta-path finder that serves ComfyUI's import names, installed when custom nodes are loaded.

`import comfy.utils` gives `engine/comfy/names/comfy/utils.py`. A module that ComfyUI has and this engine has not
gives one whose known names are placeholders (`missing_symbol.py`), but for a pack that imports them with a fallback of
its own (`fallbacks.py`). A name that ComfyUI does not have either is missing as usual, so that packs which probe for
versions get the same result as in ComfyUI.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from darkroom.engine.comfy import node_classes
from darkroom.engine.comfy.fallbacks import has_fallback
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import MissingSymbol, leave_to_pack, missing_symbol
from darkroom.engine.comfy.replaceable_names import is_replaceable, replace

NAMES = "darkroom.engine.comfy.names"
# Names that nobody else has: ComfyUI's come before all others on the import path.
ROOTS = (
    "comfy",
    "comfy_api",
    "comfy_api_nodes",
    "comfy_config",
    "comfy_execution",
    "comfy_extras",
    "comfyui_version",
    "cuda_malloc",
    "execution",
    "folder_paths",
    "hook_breaker_ac10a0",
    "latent_preview",
    "node_helpers",
    "nodes",
    "protocol",
    "server",
)
# Names that packs have for modules of their own too: what else is importable by them comes first.
COMMON_ROOTS = frozenset({"api_server", "app", "main", "middleware", "utils"})
PRESENT = ("folder_paths", "execution", "nodes", "server")  # in `sys.modules` before packs are, where some look
BARE_PACKAGE = "comfy"  # whose folder is on ComfyUI's import path, so that its modules are importable without it


class CompatModule(ModuleType):
    """A module under one of ComfyUI's names."""

    def __getattr__(self, name: str) -> object:
        foreign = vars(self)["foreign_name"]
        if name == "__all__" and HOST.is_set:
            return self._offered()
        if name.startswith("__") or not HOST.is_set:
            raise AttributeError(f"module {foreign!r} has no attribute {name!r}")
        host = HOST.get()
        full = f"{foreign}.{name}"
        if full in host.known.modules or _real_name(full) is not None:
            return importlib.import_module(full)
        found = node_classes.by_python_name(host.built_in, host.known, foreign, name)
        if found is not None:
            return found
        imported = _imported(host.known.imports.get(foreign, {}).get(name, ""))
        if imported is not None and not isinstance(imported, MissingSymbol):
            vars(self)[name] = imported
            return imported
        if name in host.known.modules.get(foreign, ()):
            host.ask(full)
            if has_fallback(sys._getframe(1), _is_there):  # as a ComfyUI without the name
                raise AttributeError(f"module {foreign!r} has no attribute {name!r} here")
            # Not an attribute of the module, where a later import with a fallback would find it.
            placeholders: dict[str, type] = vars(self).setdefault("_placeholders", {})
            if name not in placeholders:
                placeholders[name] = imported if isinstance(imported, MissingSymbol) else missing_symbol(full)
            return placeholders[name]
        raise AttributeError(f"module {foreign!r} has no attribute {name!r}")

    def _offered(self) -> list[str]:
        """Return the names that `from module import *` gives: those that are there, and no placeholders."""
        host, foreign = HOST.get(), vars(self)["foreign_name"]
        own = [name for name in vars(self) if not name.startswith("_") and name != "foreign_name"]
        nodes = [item.class_name for key, item in host.known.nodes.items() if key in host.built_in]
        of_module = {item.class_name for item in host.known.nodes.values() if item.module == foreign}
        return [*own, *(name for name in nodes if name in of_module and name not in own)]

    def __setattr__(self, name: str, value: object) -> None:
        """Replace a function for the engine too, or raise where the engine would not use the replacement."""
        if name.startswith("__") or isinstance(value, ModuleType) or not HOST.is_set:
            super().__setattr__(name, value)
            return
        full = f"{vars(self)['foreign_name']}.{name}"
        if is_replaceable(full):
            replace(HOST.get(), full, value)
        elif self._is_taken(name) and vars(self).get(name) is not value:
            leave_to_pack(full)
        super().__setattr__(name, value)

    def _is_taken(self, name: str) -> bool:
        """Return True if ComfyUI has the name, so that its code may use the attribute.

        Return False for its node classes.
        """
        foreign, host = vars(self)["foreign_name"], HOST.get()
        if node_classes.by_python_name(host.built_in, host.known, foreign, name) is not None:
            return False
        return name in vars(self) or name in host.known.modules.get(foreign, ())


class CompatLoader(Loader):
    def __init__(self, real_name: str | None) -> None:
        self._real_name = real_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module for the name; `__spec__` and similar attributes stay those of the file."""
        if self._real_name is None:
            module: ModuleType = CompatModule(spec.name, f"Names of ComfyUI's {spec.name} that are not supported here.")
            module.__path__ = []
        else:
            module = importlib.import_module(self._real_name)
        self._own = {key: vars(module)[key] for key in ("__spec__", "__loader__") if vars(module).get(key) is not None}
        vars(module)["foreign_name"] = spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._own)
        name = vars(module)["foreign_name"]
        if "." not in name:  # packs find ComfyUI's folder, here the base directory, by where its modules are
            file = f"{name}/__init__.py" if hasattr(module, "__path__") else f"{name}.py"
            vars(module)["__file__"] = str(HOST.get().engine.settings.base_path / file)
        if not isinstance(module, CompatModule):
            module.__class__ = CompatModule


class CompatFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root not in ROOTS and not isinstance(sys.modules.get(root), CompatModule):
            return None
        known = HOST.get().known.modules
        if root not in HOST.get().known.roots:  # below a module of `comfy` that was imported without it
            return _bare_spec(fullname)
        real_name = _real_name(fullname)
        if real_name is None and fullname not in known:
            return None
        is_package = real_name is None or any(name.startswith(f"{fullname}.") for name in known)
        return ModuleSpec(fullname, CompatLoader(real_name), is_package=is_package)


class CommonNamesFinder(MetaPathFinder):
    """Finder of names that others have as well. It stands last: what a pack itself brings comes first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in COMMON_ROOTS:
            return ModuleSpec(fullname, CompatLoader(_real_name(fullname)), is_package=True)
        return _bare_spec(fullname) if fullname in HOST.get().known.bare else None


class BareLoader(Loader):
    """Loader of a module of `comfy` under its name without it: the same module."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{BARE_PACKAGE}.{spec.name}")
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


def _bare_spec(fullname: str) -> ModuleSpec | None:
    known = HOST.get().known.modules
    full = f"{BARE_PACKAGE}.{fullname}"
    if full not in known and _real_name(full) is None:
        return None
    return ModuleSpec(fullname, BareLoader(), is_package=any(name.startswith(f"{full}.") for name in known))


def _imported(source: str) -> object:
    """Return the import of a module of ComfyUI's (`module` or `module:name`); None where it cannot be."""
    module, _, name = source.partition(":")
    if not module:
        return None
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError):
        return None


def _is_there(module: str) -> bool:
    """Return True for a module that is served, or that is none of ComfyUI's."""
    is_foreign = module.partition(".")[0] not in ROOTS
    return is_foreign or module in HOST.get().known.modules or _real_name(module) is not None


@cache
def _real_name(fullname: str) -> str | None:
    """Return the name of this engine's module for an import name, or None."""
    path = Path(__file__).with_name("names").joinpath(*fullname.split("."))
    is_there = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
    return f"{NAMES}.{fullname}" if is_there else None


def served(name: str) -> ModuleType:
    """Return the module that packs import under a name of ComfyUI's. Raises ImportError where nothing is served."""
    if name.partition(".")[0] not in ROOTS:
        raise ImportError(name)
    return importlib.import_module(name)


def install(pack_folders: Sequence[Path]) -> None:
    """Register the finder. `custom_nodes` becomes importable too, since packs import each other below it."""
    if not any(isinstance(finder, CompatFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompatFinder())
        sys.meta_path.append(CommonNamesFinder())
    for name in PRESENT:
        importlib.import_module(name)
    packs = sys.modules.setdefault("custom_nodes", ModuleType("custom_nodes"))
    packs.__path__ = [str(folder) for folder in pack_folders]


def uninstall() -> None:
    """Remove the finder and the modules that were imported through it, with what packs changed in them."""
    ours = (CompatFinder, CommonNamesFinder)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ours)]
    for name, module in [*sys.modules.items()]:
        root = name.partition(".")[0]
        is_served = root in (*ROOTS, "custom_nodes") or isinstance(module, CompatModule)
        if is_served or name == NAMES or name.startswith(f"{NAMES}."):
            sys.modules.pop(name, None)
