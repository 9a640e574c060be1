"""The assembled engine: takes settings, checks prompts and runs them, without a server.

    from darkroom.engine import Engine, EngineSettings, RunRequest

    with Engine(EngineSettings(base_directory=Path("ComfyUI"), cpu=True)) as engine:
        checked = engine.check(prompt)
        result = engine.submit(RunRequest("1", checked.prompt, checked.outputs), print).result()

`check` may be called from any thread and needs no device. Prompts run in the order of `submit`, one at a time unless
`max_concurrent_runs` allows more, on threads of the engine's own; `on_event` is called on those threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from types import TracebackType

import torch

from darkroom.contract.graph.spec import ValueDict
from darkroom.contract.graph.validate import CheckedPrompt, Findings
from darkroom.engine.assembly import assemble
from darkroom.engine.comfy.host import PackServer
from darkroom.engine.comfy.packs.loader import PackReport, load_custom_nodes
from darkroom.engine.comfy.packs.sync.errors import PacksInvalid
from darkroom.engine.comfy.packs.sync.versions import PackVersion, pack_versions
from darkroom.engine.events import Event
from darkroom.engine.memory.device import Device, DeviceReport, translate_device_error
from darkroom.engine.memory.model_memory import MemoryReport
from darkroom.engine.models.model_previews import preview_of
from darkroom.engine.models.preloaded_models import PRELOADED_KINDS
from darkroom.engine.nodes.base import NodeClass, NodeEnvironment
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.settings import EngineSettings, ResolvedSettings

__all__ = [
    "CheckedPrompt",
    "DeviceReport",
    "Engine",
    "EngineSettings",
    "Findings",
    "MemoryReport",
    "PRELOADED_KINDS",
    "PackReport",
    "RunRequest",
    "RunResult",
]


class Engine:
    """The engine. `classes` are the node classes it offers; all built-in ones by default.

    `device` computes in the place of the one that the settings and torch lead to. The attributes are the owners of its
    parts (`engine/assembly.py::Owners`).
    """

    def __init__(
        self, settings: EngineSettings, classes: Iterable[NodeClass] | None = None, device: Device | None = None
    ) -> None:
        self.settings = settings
        owners = assemble(settings, classes, device)
        self.memory = owners.memory
        self.resolved: ResolvedSettings = owners.memory.resolved
        self.folders = owners.folders
        self.files = owners.files
        self.file_families = owners.file_families
        self.tiny_decoders = owners.tiny_decoders
        self.sampling = owners.sampling
        self.cache_providers = owners.cache_providers
        self.catalogue = owners.catalogue
        self.environment: NodeEnvironment = owners.environment
        self.checks = owners.checks
        self.models = owners.models
        self.tuner = owners.tuner
        self.tuning = owners.tuning
        self.previews = owners.previews
        self.runs = owners.runs
        self.measurements = owners.measurements
        self._preloaded = owners.preloaded
        self._snapshot = owners.snapshot
        self.housekeeping = owners.housekeeping
        self._closing = contextlib.ExitStack()

    # --- prompts ---

    def check(
        self, prompt: object, partial_execution_targets: Collection[str] | None = None, arriving: Collection[str] = ()
    ) -> CheckedPrompt:
        """Check that a prompt can run. Raises `PromptRejected` when none of its outputs can.

        Model files of `arriving` (`kind/name`) may be missing: they are read while they are downloaded.
        """
        return self.checks.check(prompt, partial_execution_targets, arriving)

    def submit(self, request: RunRequest, on_event: Callable[[Event], None]) -> Future[RunResult]:
        """Run a checked prompt after those submitted before.

        The device does not wait for files: after `RunSaving` the next prompt begins, and the remaining events of this
        one come from another thread, before its result. Raises RuntimeError once the engine is closed or while it is
        frozen, and ValueError for an unknown quality or a checkpoint's key that is none.
        """
        self._snapshot.check_thawed()
        return self.runs.submit(request, on_event)

    def interrupt(self, prompt_id: str | None = None) -> bool:
        """Stop the running prompts, or the one with that id, within a sampling step. Return True if there was one."""
        return self.runs.interrupt(prompt_id)

    # --- models and memory ---

    def preload(self, kind: str, name: str, *, keep: bool = True) -> Future[int]:
        """Read a model file and load it to its device as far as it fits, after the prompts submitted so far.

        `kind` is one of `PRELOADED_KINDS` (KeyError otherwise). The result is the bytes of its weights, or raises
        `BadModelFile`. With `keep` it stays read, leaves the device last, and never because nothing runs.
        """
        if kind not in PRELOADED_KINDS:
            raise KeyError(kind)
        return self.runs.threads.submit(lambda: self._preload(kind, name, keep=keep))

    def _preload(self, kind: str, name: str, *, keep: bool) -> int:
        with torch.inference_mode(), translate_device_error():
            return self._preloaded.load(kind, name, keep=keep)

    def free(self, *, unload_models: bool, free_memory: bool) -> None:
        """Unload models from the device, and drop results and node states, after the prompts submitted so far."""
        self.runs.threads.submit(lambda: self.housekeeping.free(unload_models=unload_models, free_memory=free_memory))

    def take_over_process(self) -> None:
        """Tune Python's garbage collector for a process of this engine alone. Call once lasting objects are loaded."""
        self.runs.threads.submit(self.housekeeping.garbage.take_over)

    # --- nodes ---

    def object_info(self, class_type: str | None = None) -> ValueDict:
        """Return a map from class name to ComfyUI's description, of all classes or of one; `{}` for an unknown one.

        A custom node that fails to describe itself is logged and left out of the full map; requested alone, it raises.
        """
        return self.catalogue.object_info(self.environment, class_type)

    def model_preview(self, kind: str, index: int, name: str, longer_side_px: int | None = None) -> bytes | None:
        """Return the preview image, as WebP, of a model file in the kind's folder of this index; None without one."""
        roots = self.folders.roots(kind)
        return preview_of(roots[index] / name, roots[index], longer_side_px) if index < len(roots) else None

    def load_custom_nodes(self, server: PackServer | None = None) -> list[PackReport]:
        """Import the packs of the base directory and return a report for each. Call once, before prompts are checked.

        They use ComfyUI's import names, which refer to this engine in the whole process until it is closed. Raises
        RuntimeError while another engine has them. `server` is the object behind `PromptServer.instance`.
        """
        return load_custom_nodes(self, server)

    def pack_versions(self) -> tuple[list[PackVersion], str]:
        """Return the packs of `packs.toml` as they are in the base directory, and what is wrong with it, or empty."""
        try:
            return pack_versions(self.settings.base_path), ""
        except PacksInvalid as error:
            return [], str(error)

    # --- the process ---

    def freeze(self) -> None:
        """Prepare for a snapshot of this process, after the prompts submitted so far; call it where no copy exists yet.

        Models leave the device for RAM, files and timers are closed, free memory goes back to the system. Until `thaw`
        no prompt is accepted. The functions of `on_freeze` are called first. Raises RuntimeError once closed or frozen.
        """
        self._snapshot.freeze()

    def thaw(self) -> None:
        """Go on in a copy of the process, once in each: generate new seeds and keys, and accept prompts.

        Models come back to the device when they are used. The functions of `on_thaw` are called last. Raises
        RuntimeError unless frozen, or where the device is another one than that of the snapshot.
        """
        self._snapshot.thaw()

    def on_freeze(self, callback: Callable[[], None]) -> None:
        """Call the function before a snapshot: for connections, leases and whatever no two processes may have."""
        self._snapshot.on_freeze.append(callback)

    def on_thaw(self, callback: Callable[[], None]) -> None:
        """Call the function in each copy of the process, before it accepts prompts: for what a copy renews."""
        self._snapshot.on_thaw.append(callback)

    def close(self) -> None:
        """Interrupt the running prompt, end the queued ones, and wait for that."""
        self.runs.stop()
        self.tuner.close()
        self.housekeeping.garbage.give_back()
        self.runs.close()
        self._closing.close()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call the function when the engine is closed, the last one first."""
        self._closing.callback(callback)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
