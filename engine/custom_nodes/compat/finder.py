"""Meta-path finder that serves ComfyUI's import names, installed when custom nodes are loaded.

`import comfy.utils` gives `names/comfy/utils.py` beside this file. A module that ComfyUI has and this engine has not
gives one whose known names are placeholders (`missing_symbol.py`). A name that ComfyUI does not have either is missing
as usual, so that packs which probe for versions get the same result as in ComfyUI.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from engine.custom_nodes.compat import node_classes
from engine.custom_nodes.compat.host import HOST
from engine.custom_nodes.compat.missing_symbol import missing_symbol, not_supported
from engine.custom_nodes.compat.replaceable_names import is_replaceable, replace

NAMES = "engine.custom_nodes.compat.names"
ROOTS = (
    "comfy",
    "comfy_api",
    "comfy_execution",
    "comfy_extras",
    "comfyui_version",
    "execution",
    "folder_paths",
    "latent_preview",
    "node_helpers",
    "nodes",
    "protocol",
    "server",
)
# What ComfyUI's modules have imported themselves, and packs take from them.
LIBRARIES = {
    name: name
    for name in (
        "collections", "copy", "functools", "inspect", "io", "itertools", "json", "logging", "math", "numpy", "os",
        "random", "re", "sys", "threading", "time", "torch", "traceback", "uuid",
    )
} | {"np": "numpy"}  # fmt: skip


class CompatModule(ModuleType):
    """A module under one of ComfyUI's names."""

    def __getattr__(self, name: str) -> object:
        foreign = vars(self)["foreign_name"]
        if name.startswith("__") or not HOST.is_set:
            raise AttributeError(f"module {foreign!r} has no attribute {name!r}")
        host = HOST.get()
        full = f"{foreign}.{name}"
        if full in host.known.modules or _real_name(full) is not None:
            return importlib.import_module(full)
        found = node_classes.by_python_name(host.built_in, host.known, foreign, name)
        if found is not None:
            return found
        if name in LIBRARIES and name in host.known.modules.get(foreign, ()):
            return importlib.import_module(LIBRARIES[name])
        if name in host.known.modules.get(foreign, ()):
            host.ask(full)
            placeholder = missing_symbol(full)
            vars(self)[name] = placeholder
            return placeholder
        raise AttributeError(f"module {foreign!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """Replace a function for the engine too, or raise where the engine would not use the replacement."""
        if name.startswith("__") or isinstance(value, ModuleType) or not HOST.is_set:
            super().__setattr__(name, value)
            return
        full = f"{vars(self)['foreign_name']}.{name}"
        if is_replaceable(full):
            replace(HOST.get(), full, value)
        elif self._is_taken(name) and vars(self).get(name) is not value:
            raise not_supported(f"replacing {full}")
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
        if fullname.partition(".")[0] not in ROOTS:
            return None
        real_name = _real_name(fullname)
        known = HOST.get().known.modules
        if real_name is None and fullname not in known:
            return None
        is_package = real_name is None or any(name.startswith(f"{fullname}.") for name in known)
        return ModuleSpec(fullname, CompatLoader(real_name), is_package=is_package)


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
    packs = sys.modules.setdefault("custom_nodes", ModuleType("custom_nodes"))
    packs.__path__ = [str(folder) for folder in pack_folders]


def uninstall() -> None:
    """Remove the finder and the modules that were imported through it, with what packs changed in them."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, CompatFinder)]
    for name in [name for name in sys.modules if name.partition(".")[0] in (*ROOTS, "custom_nodes")]:
        del sys.modules[name]
    for name in [name for name in sys.modules if name == NAMES or name.startswith(f"{NAMES}.")]:
        del sys.modules[name]
