"""State shared by the import names: the engine whose nodes are loaded, its server if there is one, and its packs.

ComfyUI's import names belong to the whole process (`import folder_paths` takes no argument). One object per process
therefore determines which engine they mean: `HOST`. The engine that loads custom nodes owns the names until it is
closed; no other engine can load any meanwhile. Whatever packs change through the names is stored in that engine's own
tables, so that other engines of the process are unaffected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from darkroom.engine.comfy.known_names import KnownNames
from darkroom.engine.comfy.pack_weights import PackNetworks

if TYPE_CHECKING:
    from darkroom.engine.diffusion.sampling_tables import SamplingTables
    from darkroom.engine.memory.model_memory import ModelMemory
    from darkroom.engine.models.files.folders import ModelFolders
    from darkroom.engine.models.store import ModelStore
    from darkroom.engine.models.tiny_decoders import TinyDecoders
    from darkroom.engine.nodes.base import NodeClass, NodeEnvironment
    from darkroom.engine.nodes.catalogue import Catalogue
    from darkroom.engine.runtime.cache.providers import CacheProviders
    from darkroom.engine.runtime.outputs import FileFolders
    from darkroom.engine.settings import EngineSettings, PreviewMethod, ResolvedSettings


class PackPreviews(Protocol):
    """Interface of the previews of an engine: `engine/previews.py::Previews`."""

    method: PreviewMethod


class PackEngine(Protocol):
    """Interface of the engine for packs: `engine/engine.py::Engine`, which imports this package."""

    settings: EngineSettings
    resolved: ResolvedSettings
    memory: ModelMemory
    folders: ModelFolders
    files: FileFolders
    tiny_decoders: TinyDecoders
    environment: NodeEnvironment
    catalogue: Catalogue
    sampling: SamplingTables
    models: ModelStore
    cache_providers: CacheProviders

    @property
    def previews(self) -> PackPreviews: ...

    def interrupt(self, prompt_id: str | None = None) -> bool: ...
    def on_close(self, callback: Callable[[], None]) -> None:
        """Call the function when the engine is closed, the last one first."""
        ...


class PackServer(Protocol):
    """Interface of the server for packs: an aiohttp application, routes of their own, and messages to clients."""

    @property
    def app(self) -> Any: ...

    @property
    def routes(self) -> Any: ...

    @property
    def loop(self) -> Any: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def num_waiting(self) -> int: ...

    def send(self, event: object, data: object, sid: str | None) -> None:
        """Send a message to one client, or to all for None; callable from any thread."""
        ...

    def add_prompt_handler(self, handler: Callable[[dict[str, object]], dict[str, object]]) -> None: ...

    def connected(self) -> Mapping[str, object]: ...

    def queue_lists(self) -> tuple[list[object], list[object]]:
        """Return the running prompts and the waiting ones, in ComfyUI's form."""
        ...

    number: int
    """Number of the next prompt that asks for none."""

    def queue_prompt(
        self,
        number: float,
        prompt_id: str,
        prompt: Mapping[str, Any],
        extra_data: Mapping[str, Any],
        outputs: list[str],
    ) -> frozenset[str]:
        """Queue a prompt unchecked. By a node it continues that node's prompt; return the nodes that differ from it."""
        ...


@dataclass
class Host:
    """One engine and the packs that are loaded into it.

    `asked` maps each pack to the missing names that it used; `built_in` has the engine's nodes before packs changed
    any. `replaced` has replacements that the names themselves call, and not sampling. `networks` has the
    networks that packs brought.
    """

    engine: PackEngine
    server: PackServer | None
    known: KnownNames
    packs: dict[Path, str] = field(default_factory=dict)
    asked: dict[str, dict[str, None]] = field(default_factory=dict)
    classes: dict[str, type] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    built_in: Mapping[str, NodeClass] = field(init=False)
    importing: str = ""
    networks: PackNetworks = field(init=False)

    def __post_init__(self) -> None:
        self.built_in = dict(self.engine.catalogue)
        self.networks = PackNetworks(self.engine.memory)

    def ask(self, name: str) -> None:
        """Record that a pack used a name of ComfyUI that this engine lacks."""
        self.asked.setdefault(self.importing or self.calling_pack(), {})[name] = None

    def calling_pack(self) -> str:
        """Return the pack of the innermost frame that belongs to one, else the pack being imported, or ""."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            for folder, pack in self.packs.items():
                if name.startswith(f"{folder}/") or name == str(folder):
                    return pack
            if frame.f_back is None:
                break
            frame = frame.f_back
        return self.importing


class HostSlot:
    """Owner of ComfyUI's import names in this process: one host at a time."""

    def __init__(self) -> None:
        self._host: Host | None = None

    def claim(self, host: Host) -> None:
        """Bind the import names to a host. Raises RuntimeError while they are bound to another engine."""
        if self._host is not None and self._host.engine is not host.engine:
            raise RuntimeError(
                "custom nodes: ComfyUI's import names belong to another engine of this process; got a second engine "
                "with custom nodes, expected one at a time: close the first"
            )
        self._host = host

    def release(self, host: Host) -> bool:
        """Unbind the import names and return True, unless they are bound to another host."""
        if self._host is not host:
            return False
        self._host = None
        return True

    @property
    def is_set(self) -> bool:
        return self._host is not None

    def get(self) -> Host:
        """Return the host. Raises RuntimeError before custom nodes are loaded."""
        if self._host is None:
            raise RuntimeError("no custom nodes are loaded: ComfyUI's import names have no engine behind them")
        return self._host


HOST = HostSlot()
