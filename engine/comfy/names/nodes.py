"""`nodes`: the built-in node classes, and the tables of all classes."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from darkroom.engine.comfy import node_classes
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.nodes.legacy_node import ClassNode
from darkroom.engine.nodes.library.sampling import sampling
from darkroom.engine.nodes.running_call import running_context

MAX_RESOLUTION = 16384

common_ksampler = bound(sampling.common_ksampler)


def get_module_name(module_path: str) -> str:
    """Return the name of a pack by the path of its folder or file."""
    path = Path(module_path)
    return path.stem if path.is_file() else path.name


class NodeClasses(MutableMapping[str, type]):
    """Map from name to class. A class that a pack adds becomes a node of the engine, and may replace a built-in one."""

    def __getitem__(self, class_type: str) -> type:
        host = HOST.get()
        return node_classes.class_of(host.engine.catalogue[class_type], host.known.nodes.get(class_type))

    def __setitem__(self, class_type: str, kind: type) -> None:
        host = HOST.get()
        own = host.built_in.get(class_type)
        if own is not None and node_classes.class_of(own, host.known.nodes.get(class_type)) is kind:
            host.engine.catalogue.add(own)  # put back what was there
        else:
            host.engine.catalogue.add(ClassNode(class_type, kind))

    def __delitem__(self, class_type: str) -> None:
        HOST.get().engine.catalogue.remove(class_type)

    def __iter__(self) -> Iterator[str]:
        return iter(HOST.get().engine.catalogue)

    def __len__(self) -> int:
        return len(HOST.get().engine.catalogue)

    def __contains__(self, class_type: object) -> bool:
        return class_type in HOST.get().engine.catalogue


class DisplayNames(MutableMapping[str, str]):
    """Map from name to display name."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __getitem__(self, class_type: str) -> str:
        if class_type in self._given:
            return self._given[class_type]
        host = HOST.get()
        spec = host.engine.catalogue[class_type].spec(host.engine.environment)
        return spec.display_name or class_type

    def __setitem__(self, class_type: str, name: str) -> None:
        self._given[class_type] = name

    def __delitem__(self, class_type: str) -> None:
        del self._given[class_type]

    def __iter__(self) -> Iterator[str]:
        return iter(HOST.get().engine.catalogue)

    def __len__(self) -> int:
        return len(HOST.get().engine.catalogue)


NODE_CLASS_MAPPINGS = NodeClasses()
NODE_DISPLAY_NAME_MAPPINGS = DisplayNames()
EXTENSION_WEB_DIRS: dict[str, str] = {}
LOADED_MODULE_DIRS: dict[str, str] = {}


def before_node_execution() -> None:
    """Raise `Interrupted` when the run is to stop."""
    context = running_context()
    if context is not None:
        context.cancel.check()


def interrupt_processing(value: bool = True) -> None:
    if value:
        HOST.get().engine.interrupt()
