"""The assembled engine: takes settings, checks prompts and runs them, without a server.

    from engine import Engine, EngineSettings, RunRequest

    with Engine(EngineSettings(base_directory=Path("ComfyUI"), cpu=True)) as engine:
        checked = engine.check(prompt)
        result = engine.submit(RunRequest("1", checked.prompt, checked.outputs), print).result()

`check` may be called from any thread and needs no device. Prompts run in the order of `submit`, one at a time unless
`max_concurrent_runs` allows more, on threads of the engine's own; `on_event` is called on those threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import mimetypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast, get_args

import torch

from contract.graph.file_names import is_pending
from contract.graph.prompt import parse_prompt
from contract.graph.signature import Signatures, unique_keys
from contract.graph.size import GraphLimits
from contract.graph.spec import NodeRules, ValueDict
from contract.graph.validate import CheckedPrompt, Excuses, Findings, check_prompt, find_problems, never
from contract.wire import CHECKPOINT_KEY, PREVIEW_METHOD_KEY, QUALITY_KEY
from engine.cancel import CancelToken
from engine.comfy.host import PackServer
from engine.comfy.packs.loader import PackReport, load_custom_nodes
from engine.comfy.packs.sync.errors import PacksInvalid
from engine.comfy.packs.sync.versions import PackVersion, pack_versions
from engine.diffusion.recorded_steps import recording_active
from engine.diffusion.sampling_tables import SamplingTables
from engine.diffusion.shared_steps import sharing_active
from engine.errors import OutOfMemory
from engine.events import EncodedPreview, Event, RunFailed, RunInterrupted, RunSaving, RunSucceeded, TuningUsed
from engine.families import registry
from engine.families.base import ModelFamily
from engine.formats.fill import Destination
from engine.formats.safetensors_header import read_metadata
from engine.images.decode import BYTES_PER_PIXEL
from engine.images.preview import decoded_preview, latent_animation, latent_preview, picture_preview
from engine.memory import device as devices
from engine.memory import machine_memory
from engine.memory.device import Device, DeviceIdentity, DeviceReport, dtype_of, translate_device_error
from engine.memory.device_facts import DeviceFacts
from engine.memory.model_memory import MemoryReport, ModelMemory, Relief
from engine.memory.random_state import reseed, save_random_state
from engine.memory.state import VramState
from engine.memory.timeline import StageKind
from engine.models.files.extra_model_paths import read_extra_model_paths
from engine.models.files.families import DENOISER_KINDS, FileFamilies, FileFamily
from engine.models.files.faults import FileFaults
from engine.models.files.folders import BUILT_IN, SAVED_IN, ModelFolders
from engine.models.files.prefetch import FilePrefetch, files_of
from engine.models.load import LoadTypes
from engine.models.planning.latent_misfits import LatentMisfits
from engine.models.planning.memory_plan import MemoryPlan, MemoryPlanner, MissingFile, Target, card_item_bytes
from engine.models.recent_models import RecentModels
from engine.models.store import PRELOADED_KINDS, ModelStore
from engine.models.tiny_decoders import TinyDecoders
from engine.nodes.base import NodeClass, NodeEnvironment
from engine.nodes.built_in import built_in_nodes
from engine.nodes.catalogue import Catalogue, object_info
from engine.nodes.needs import PromptNeeds, needs_of
from engine.nodes.running_call import running_context
from engine.probes.device import DeviceFigures, measure
from engine.probes.disk import DiskFigure, measure_disk
from engine.runtime.cache.classic import ClassicCache
from engine.runtime.cache.instances import InstanceCache
from engine.runtime.cache.lru import LruCache
from engine.runtime.cache.none import NoCache
from engine.runtime.cache.ram_pressure import RamPressureCache
from engine.runtime.cache.store import ResultCache
from engine.runtime.executor import RunServices, no_company, run_nodes
from engine.runtime.garbage import GarbageCollection
from engine.runtime.idle_timer import IdleTimer
from engine.runtime.outputs import FileFolders, FileNumbers, RunFiles
from engine.runtime.request import RunRequest, RunResult
from engine.runtime.resume.recorder import RunRecorder, folder_of_key
from engine.runtime.run_threads import RunThreads
from engine.runtime.turns import Turns, TurnSelector
from engine.settings import CacheSettings, EngineSettings, PreviewMethod, ResolvedSettings
from engine.tuning.batching.batcher import BatchFigures, StepBatcher
from engine.tuning.batching.choose_runs import WidthProbe
from engine.tuning.batching.run_sharing import RunSharing
from engine.tuning.batching.side_stream import SideStream
from engine.tuning.outcome import Outcome, read_outcome
from engine.tuning.quality import DEFAULT, Quality, read_quality
from engine.tuning.request import TuningRequest, read_tuning_request
from engine.tuning.run import Usage
from engine.tuning.strategy import MachineFacts
from engine.tuning.tuner import Tuner
from engine.tuning.workload import Trial, TrialSize
from host.cores import processor_model, usable_cores
from host.heap import trim_heap

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

NUM_WRITERS = 2
NUM_RECENT_FILES = 8
RECENT_LEAVE_SHARE = 0.25  # of RAM; the front replaces an engine that takes more than 85 % of it
MAX_SHOWN_HEADER_BYTES = 1 << 20  # of a model file's metadata, as in ComfyUI
UNIQUE_BYTES = 16
GIB = 1024**3
DEFAULT_HEADROOM_BYTES = 4 * GIB

log = logging.getLogger(__name__)


class Engine:
    """The engine. `classes` are the node classes it offers; all built-in ones by default.

    `device` computes in the place of the one that the settings and torch lead to.
    """

    def __init__(
        self, settings: EngineSettings, classes: Iterable[NodeClass] | None = None, device: Device | None = None
    ) -> None:
        self.settings = settings
        self.preview_method: PreviewMethod = settings.preview_method  # custom nodes change it for a run of theirs
        self.memory = ModelMemory(settings, device)
        self.resolved: ResolvedSettings = self.memory.resolved
        self.folders = _model_folders(settings)
        self._file_families = FileFamilies(self.folders)
        self.tiny_decoders = TinyDecoders(self.folders)
        self._file_numbers = FileNumbers()
        self.files = FileFolders(settings.input_path, settings.output_path, settings.temp_path)
        self.sampling = SamplingTables()
        self.environment: NodeEnvironment = Environment(self.folders, self.files, self.sampling, self._max_pixels)
        self.catalogue = Catalogue(built_in_nodes() if classes is None else classes)
        self._latent_misfits = LatentMisfits(self.folders)
        self._closing = contextlib.ExitStack()
        self.tuner = Tuner(settings.tuning, settings.tuning_directory, save_random_state, translate_device_error)
        self.memory.pool.before_eviction = self.tuner.release
        self._threads = RunThreads(settings.max_concurrent_runs)
        self.batcher = self._make_batcher()
        self._writers = ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="writer")
        # Of each thread its own: a cache is of one prompt after the other.
        self._results = [_result_cache(settings.cache) for _ in range(settings.max_concurrent_runs)]
        self._instances = [InstanceCache() for _ in self._results]
        self._busy_places: set[int] = set()  # whose caches a run uses
        self._stale_places: set[int] = set()  # those of them to clear at its end
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="finisher")  # one, so that runs end in their order
        self._ending: Future[None] | None = None
        self._recent = _recent_models(settings, self.memory.pool.state)
        self._garbage = GarbageCollection()
        self._unique = unique_keys(b"")
        self._is_frozen = False
        self._frozen_device: DeviceIdentity | None = None
        self._freezing: list[Callable[[], None]] = []
        self._thawing: list[Callable[[], None]] = []
        self._services = self._run_services()
        self._prefetch = FilePrefetch(machine_memory.available_bytes, self.models.is_loaded)
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[str, CancelToken]] = {}  # submitted and not over, in their order
        self._run_numbers = itertools.count()
        self._running: list[int] = []
        self._run_of_thread: dict[int, str] = {}  # identifier of a thread -> prompt
        self._place_of: dict[str, int] = {}  # the last prompt of each place for runs, and the place
        self._idle = IdleTimer(settings.memory.idle_unload_seconds, self._unload_idle)

    def check(
        self, prompt: object, partial_execution_targets: Collection[str] | None = None, arriving: Collection[str] = ()
    ) -> CheckedPrompt:
        """Check that a prompt can run. Raises `PromptRejected` when none of its outputs can.

        Model files of `arriving` (`kind/name`) may be missing: they are read while they are downloaded.
        """
        names = frozenset(place.partition("/")[2] for place in arriving)
        excuses = partial(is_pending, names)
        rules, limits, misfits = self._rules_of_now(), self._graph_limits(), self._latent_misfits.find
        return check_prompt(prompt, rules, partial_execution_targets, limits, excuses, misfits)

    def find_problems(
        self, prompt: object, partial_execution_targets: Collection[str] | None = None, excuses: Excuses = never
    ) -> Findings:
        """Find all problems of a prompt; those for which `excuses` returns True are left out.

        Raises `PromptRejected` when the data is no prompt at all, or is too large.
        """
        rules, limits, misfits = self._rules_of_now(), self._graph_limits(), self._latent_misfits.find
        return find_problems(prompt, rules, partial_execution_targets, limits, excuses, misfits)

    def needs_of(self, prompt: object) -> PromptNeeds:
        """Return the models a prompt names and the node classes it lacks, even if it is invalid otherwise."""
        return needs_of(prompt if isinstance(prompt, Mapping) else {}, self.catalogue, self.folders)

    def memory_plan(
        self,
        prompt: object,
        *,
        total_bytes: int | None = None,
        missing: Mapping[str, Mapping[str, object]] | None = None,
        pixels: Mapping[str, int] | None = None,
    ) -> MemoryPlan:
        """Return which weights the stages of a prompt bring to this device, or to a card with `total_bytes`.

        Nothing is loaded. `missing` has `size_bytes` and `family` of files that are not there, by `folder/name`,
        `pixels` those that a node works on at once. Raises `PromptRejected` when the data is no prompt at all.
        """
        target = Target(total_bytes, False, card_item_bytes) if total_bytes else self._own_target()
        files = {place: MissingFile.of(item) for place, item in (missing or {}).items()}
        planner = MemoryPlanner(self.folders, target, files, pixels or {})
        return planner.plan(parse_prompt(prompt), self._rules_of_now())

    def _own_target(self) -> Target:
        """Return this device as the target of a plan."""
        has_own = self.memory.device.has_own_memory

        def item_bytes(family: ModelFamily | None, kind: StageKind) -> int:
            types = self.resolved if family is None else self.memory.types_for(family.dtypes)
            names = {"network": types.unet_dtype, "text_encoder": types.text_encoder_dtype, "vae": types.vae_dtype}
            return dtype_of(names[kind]).itemsize

        total = self.memory.facts.total_bytes if has_own else machine_memory.total_bytes()
        return Target(total, not has_own, item_bytes)

    def object_info(self, class_type: str | None = None) -> ValueDict:
        """Return a map from class name to ComfyUI's description, of all classes or of one; `{}` for an unknown one.

        A custom node that fails to describe itself is logged and left out of the full map; requested alone, it raises.
        """
        if class_type is not None:
            return {class_type: self._info_of(class_type)} if class_type in self.catalogue else {}
        found: dict[str, Any] = {}
        for name in list(self.catalogue):
            try:
                found[name] = self._info_of(name)
            except Exception:  # noqa: BLE001 - a custom node's own code
                log.exception("%s cannot describe itself", name)
        return found

    def _info_of(self, class_type: str) -> dict[str, object]:
        return object_info(self.catalogue[class_type].spec(self.environment))

    def model_metadata(self, kind: str, name: str) -> object:
        """Return the `__metadata__` of a `.safetensors` model file, or None without such a file or metadata."""
        if not name.endswith(".safetensors") or kind not in self.folders.kinds():
            return None
        path = self.folders.path(kind, name)
        return None if path is None else read_metadata(path, MAX_SHOWN_HEADER_BYTES)

    def families(self) -> list[dict[str, object]]:
        """Return the families of models: name, label, default parameters, and the nodes of a plain workflow.

        `variants` has the default parameters of variants of the network that have others than the family.
        """
        return [
            {
                "name": family.name,
                "label": family.label,
                "default": registry.described_defaults(family, family.default),
                "variants": {
                    name: registry.described_defaults(family, item) for name, item in family.variant_defaults.items()
                },
                "nodes": list(family.nodes),
                "scales": list(family.scales),
                "file_words": list(family.file_words),
                "other_file_words": list(family.other_file_words),
                "file_billions": dict(family.file_billions),
            }
            for family in registry.families()
        ]

    @property
    def denoiser_kinds(self) -> tuple[str, ...]:
        """The kinds of `model_files`."""
        return DENOISER_KINDS

    def model_files(self, kind: str, names: Sequence[str] | None = None) -> list[FileFamily]:
        """Return the families of model files, by default of all of a kind; only the headers of new files are read.

        Raises KeyError for a kind that is not one of `denoiser_kinds`.
        """
        return self._file_families.describe(kind, names)

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

    def submit(self, request: RunRequest, on_event: Callable[[Event], None]) -> Future[RunResult]:
        """Run a checked prompt after those submitted before.

        The device does not wait for files: after `RunSaving` the next prompt begins, and the remaining events of this
        one come from another thread, before its result. Raises RuntimeError once the engine is closed or while it is
        frozen, and ValueError for an unknown quality or a checkpoint's key that is none.
        """
        if self._is_frozen:
            raise RuntimeError("the engine is frozen")
        read_quality(request.extra_data.get(QUALITY_KEY))
        folder_of_key(None, request.extra_data.get(CHECKPOINT_KEY))
        cancel = CancelToken()
        number = next(self._run_numbers)
        result: Future[RunResult] = Future()
        result.set_running_or_notify_cancel()  # `interrupt` is the way to stop it
        self._idle.stop()
        with self._lock:
            self._runs[number] = (request.prompt_id, cancel)
        try:
            self._threads.submit_run(
                lambda place: self._run(place, number, request, cancel, on_event, result),
                self._place_of.get(request.continues) if request.continues else None,
            )
        except RuntimeError:
            with self._lock:
                del self._runs[number]
            raise
        return result

    def interrupt(self, prompt_id: str | None = None) -> bool:
        """Stop the running prompts, or the one with that id, within a sampling step. Return True if there was one."""
        with self._lock:
            running = [self._runs[number] for number in self._running]
        asked = [cancel for own_id, cancel in running if prompt_id in (None, own_id)]
        for cancel in asked:
            cancel.cancel()
        return bool(asked)

    def free(self, *, unload_models: bool, free_memory: bool) -> None:
        """Unload models from the device, and drop results and node states, after the prompts submitted so far."""
        self._threads.submit(lambda: self._free(unload_models=unload_models, free_memory=free_memory))

    def preload(self, kind: str, name: str, *, keep: bool = True) -> Future[int]:
        """Read a model file and load it to its device as far as it fits, after the prompts submitted so far.

        `kind` is one of `PRELOADED_KINDS` (KeyError otherwise). The result is the bytes of its weights, or raises
        `BadModelFile`. With `keep` it stays read, leaves the device last, and never because nothing runs.
        """
        if kind not in PRELOADED_KINDS:
            raise KeyError(kind)
        return self._threads.submit(lambda: self._preload(kind, name, keep=keep))

    def _preload(self, kind: str, name: str, *, keep: bool) -> int:
        with torch.inference_mode(), translate_device_error():
            return self.models.preload(kind, name, keep=keep)

    def measure_tuning(self, body: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Measure the strategies, after the prompts submitted so far, and use the choice from then on.

        `body` has the fields of `TuningRequest`; ValueError names one that is wrong. The result is the outcome in its
        JSON form, or raises ValueError for an unknown model, `BadModelFile`, `OutOfMemory` and `DeviceLost`.
        """
        request = read_tuning_request(body)
        return self._threads.submit(lambda: self._measure_tuning(request).as_json())

    @property
    def runs_at_once(self) -> int:
        """Number of prompts that may be in progress at a time: the setting, or what was measured last for `auto`."""
        most = self.settings.max_concurrent_runs
        if not self.settings.chooses_runs:
            return most
        measured = [outcome.concurrent_runs for outcome in self.tuner.outcomes.values() if outcome.concurrent_runs]
        return min(most, measured[-1]) if measured else most

    def adopt_tuning(self, body: Mapping[str, Any]) -> None:
        """Use an outcome that was measured before on a machine like this one.

        Raises ValueError for what is none, and for one that does not choose the number of runs where that is asked for.
        """
        outcome = read_outcome(body)
        if self.settings.chooses_runs and outcome.concurrent_runs is None:
            raise ValueError("concurrent_runs: not measured; expected a number, since the engine is to choose it")
        self.tuner.adopt(outcome)

    def tuning_report(self) -> dict[str, Any]:
        """Return the strategies, those that the operator named (None: all), the outcomes in use, and what failed.

        `barred` has the error of each strategy that is used by no run until the next start, `failures` how often it
        failed.
        """
        return {
            "allowed": self.tuner.allowed,
            "strategies": self.tuner.describe(),
            "barred": dict(self.tuner.barred.reasons),
            "failures": dict(self.tuner.barred.failures),
            "outcomes": [outcome.as_json() for outcome in self.tuner.outcomes.values()],
        }

    def _measure_tuning(self, request: TuningRequest) -> Outcome:
        device = self.resolved.device
        identity = devices.identity(device)
        machine = MachineFacts(
            torch.device(device).type, identity.name, devices.capability(device), usable_cores(), request.is_full_size
        )
        versions = {"device": identity.name, "torch": identity.torch, "cuda": identity.cuda or "",
                    "precision": self.resolved.unet_dtype}  # fmt: skip
        size = TrialSize(
            request.width_px, request.height_px, request.num_steps, request.cfg, request.sampler_name,
            request.scheduler, request.turns_seconds,
        )  # fmt: skip
        with (
            torch.inference_mode(), self.memory.device.computing(), self.sampling.active(), translate_device_error()
        ):  # fmt: skip
            values = self._tuning_values(request)
            trial = Trial(values, size, request.name, lambda: devices.wait_for(device))
            try:
                outcome = self.tuner.measure(trial, machine, versions, request.settle_seconds, request.budget_seconds)
                if self.settings.chooses_runs:
                    outcome = replace(outcome, concurrent_runs=self._measure_runs(trial))
                    self.tuner.adopt(outcome)
                return outcome
            finally:
                self.tuner.release()

    def _measure_runs(self, trial: Trial) -> int | None:
        """Return how many runs at a time are fastest for the trial's picture."""
        assert self.batcher is not None, "an engine that chooses its runs can have several"
        probe = WidthProbe(self.batcher)
        with self.tuner.running(Quality.SAME), sharing_active(probe):
            trial.draw()
        log.info("runs at a time chosen: runs=%s", probe.num_runs)
        return probe.num_runs

    def _tuning_values(self, request: TuningRequest) -> Sequence[Any]:
        """Return MODEL, CLIP and VAE to measure with. Raises ValueError for a family or scale that does not exist."""
        if request.checkpoint is not None:
            return self.models.checkpoint(request.checkpoint)
        name = request.family or registry.default_family().name
        if name not in registry.family_names() or request.scale not in registry.family_named(name).scales:
            raise ValueError(f"family: unknown family or scale; got {name!r} with {request.scale!r}")
        return self.models.random_checkpoint(name, request.scale)

    def _services_for(self, place: int, quality: Quality, preview_method: object = None) -> RunServices:
        """Return the services of a run on that thread, with its preview method.

        Its results are not those of other qualities.
        """
        services = self._services
        if place:
            services = replace(services, results=self._results[place], instances=self._instances[place])
        if preview_method in get_args(PreviewMethod):
            services = replace(
                services, make_preview=partial(self._preview, method=cast(PreviewMethod, preview_method))
            )
        if quality is DEFAULT or not (self.tuner.outcomes or self.batcher):
            return services
        unique = self._unique
        return replace(
            services,
            signatures=lambda find_node, find_rules: Signatures(find_node, find_rules, unique, str(quality)),
        )

    def take_over_process(self) -> None:
        """Tune Python's garbage collector for a process of this engine alone. Call once lasting objects are loaded."""
        self._threads.submit(self._garbage.take_over)

    @property
    def models(self) -> ModelStore:
        """Model files as values, for nodes. Used on the thread that runs prompts."""
        store: ModelStore = self._services.models
        return store

    def unload_models(self) -> None:
        """Unload every model that is not in use from its device, immediately, on the thread that runs prompts."""
        self.memory.unload()

    def device_report(self) -> list[DeviceReport]:
        return [self.memory.device.report()]

    def memory_report(self) -> MemoryReport:
        """Return every figure of model memory; callable from any thread."""
        return self.memory.report()

    def processor(self) -> str | None:
        """Return what the processor is called, with its cores and vector instructions; None with another device."""
        if torch.device(self.resolved.device).type != "cpu":
            return None
        name = processor_model() or platform.machine()
        return f"{name}, {usable_cores()} cores, {torch.backends.cpu.get_cpu_capability()}"

    def device_identity(self) -> DeviceIdentity:
        return devices.identity(self.resolved.device)

    def measure_device(self) -> Future[DeviceFigures]:
        """Measure the device and check that it computes correctly, after the prompts submitted so far.

        Takes about a second.
        """
        return self._threads.submit(lambda: measure(self.resolved.device))

    def measure_disk(self) -> DiskFigure | None:
        """Measure the speed of reading the user's largest model file. Takes about a second, on the caller's thread."""
        names = ((kind, name) for kind in PRELOADED_KINDS for name in self.folders.names(kind))
        paths = (path for kind, name in names if (path := self.folders.path(kind, name)) is not None)
        return measure_disk(path for path in paths if not self.folders.is_built_in(path))

    def close(self) -> None:
        """Interrupt the running prompt, end the queued ones, and wait for that."""
        with self._lock:
            tokens = [cancel for _, cancel in self._runs.values()]
        for token in tokens:
            token.cancel()
        self._threads.close()
        if self.batcher is not None:
            self.batcher.close()
        self.tuner.close()
        self._idle.stop()
        self._prefetch.end()
        self._garbage.give_back()
        self._finisher.shutdown()
        self._writers.shutdown()
        self._closing.close()

    def freeze(self) -> None:
        """Prepare for a snapshot of this process, after the prompts submitted so far; call it where no copy exists yet.

        Models leave the device for RAM, files and timers are closed, free memory goes back to the system. Until `thaw`
        no prompt is accepted. The functions of `on_freeze` are called first. Raises RuntimeError once closed or frozen.
        """
        with self._lock:
            if self._is_frozen:
                raise RuntimeError("the engine is frozen already")
            self._is_frozen = True
        self._threads.submit(self._freeze).result()

    def thaw(self) -> None:
        """Go on in a copy of the process, once in each: draw new seeds and keys, and accept prompts.

        Models come back to the device when they are used. The functions of `on_thaw` are called last. Raises
        RuntimeError unless frozen, or where the device is another one than that of the snapshot.
        """
        if not self._is_frozen:
            raise RuntimeError("the engine is not frozen")
        self._threads.submit(self._thaw).result()
        self._is_frozen = False
        self._idle.start()

    def on_freeze(self, callback: Callable[[], None]) -> None:
        """Call the function before a snapshot: for connections, leases and whatever no two processes may have."""
        self._freezing.append(callback)

    def on_thaw(self, callback: Callable[[], None]) -> None:
        """Call the function in each copy of the process, before it accepts prompts: for what a copy renews."""
        self._thawing.append(callback)

    def _freeze(self) -> None:
        for callback in self._freezing:
            callback()
        self._wait_for_files()
        self._prefetch.end()
        self._idle.stop()
        self._frozen_device = self.device_identity()
        self._free(unload_models=True, free_memory=False)
        gc.collect()
        trim_heap()

    def _thaw(self) -> None:
        before, now = self._frozen_device, self.device_identity()
        if before is not None and (before.kind, before.name) != (now.kind, now.name):
            raise RuntimeError(f"device: another one than in the snapshot; got {now.name!r}, expected {before.name!r}")
        reseed()
        self._unique = unique_keys(os.urandom(UNIQUE_BYTES))
        self._services = replace(self._services, signatures=self._signatures())
        for callback in self._thawing:
            callback()

    def _signatures(self) -> Callable[..., Signatures]:
        unique = self._unique
        return lambda find_node, find_rules: Signatures(find_node, find_rules, unique)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call the function when the engine is closed, the last one first."""
        self._closing.callback(callback)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        place: int,
        number: int,
        request: RunRequest,
        cancel: CancelToken,
        on_event: Callable[[Event], None],
        result: Future[RunResult],
    ) -> None:
        """Run a prompt on the thread of that number, in turns with other runs where there may be some."""
        self._run_of_thread[threading.get_ident()] = request.prompt_id
        self._place_of = {id_: at for id_, at in self._place_of.items() if at != place} | {request.prompt_id: place}
        with nullcontext() if self.batcher is None else self.batcher.turns.run():
            try:
                with self.memory.device.computing():  # also while weights leave the device at the end
                    end = self._run_nodes(place, number, request, cancel, on_event)
            except BaseException as error:  # noqa: BLE001 - the end of a run: whoever waits for it gets its error
                log.exception("a run did not end properly")
                end = partial(_raise, error)
            self._ending = self._finisher.submit(_settle, result, end)

    def _run_nodes(
        self, place: int, number: int, request: RunRequest, cancel: CancelToken, on_event: Callable[[Event], None]
    ) -> Callable[[], RunResult]:
        """Run the nodes and return a function that returns the result or raises an error that is no node's failure."""
        with self._lock:
            self._running.append(number)
        try:
            self._forget_changed_files()
            self._prefetch_files(request)
            self._busy_places.add(place)
            asked = request.extra_data.get(QUALITY_KEY)
            quality = read_quality(asked)
            with (
                torch.inference_mode(),
                self.sampling.active(),
                self.tuner.running(quality) as usage,
                sharing_active(None if self.batcher is None else RunSharing(self.batcher, quality, cancel, usage.add)),
                recording_active(self._recorder(request)),
                asyncio.Runner(loop_factory=self._loop_factory()) as runner,
            ):
                told = on_event if asked is None else _with_usage(request.prompt_id, usage, on_event)
                services = self._services_for(place, quality, request.extra_data.get(PREVIEW_METHOD_KEY))
                return runner.run(run_nodes(request, services, cancel, told))
        except BaseException as error:  # noqa: BLE001 - the run: whoever waits for it gets its error
            return partial(_raise, error)
        finally:
            with self._lock:
                self._running.remove(number)
                del self._runs[number]
            self._busy_places.discard(place)
            if place in self._stale_places:
                self._clear_place(place)
            self._recent.make_place()
            self.memory.pool.after_run()
            self._garbage.after_run()
            self._idle.start()

    def _hold_place(self, prompt_id: str) -> None:
        place = self._place_of.get(prompt_id)
        if place is not None:
            self._threads.reserve(place)

    def release_place(self, prompt_id: str) -> None:
        """Give up the place that is kept for the run which was to continue this prompt's."""
        place = self._place_of.get(prompt_id)
        if place is not None:
            self._threads.release(place)

    def _recorder(self, request: RunRequest) -> RunRecorder | None:
        """Return the recorder of a prompt's sampling, None for a prompt without a checkpoint."""
        folder = folder_of_key(self.settings.checkpoint_directory, request.extra_data.get(CHECKPOINT_KEY))
        if folder is None:
            return None
        device = torch.device(self.resolved.device)
        part = f"{request.part} " if request.part else ""  # the same node samples in every part
        return RunRecorder(folder, self.settings.checkpoint_seconds, device, lambda: part + _place_of_call())

    def _forget_changed_files(self) -> None:
        """Drop results computed from model files that have changed on disk since, such as by a new download."""
        changed = self.models.forget_changed()
        if changed:
            log.warning("model files have changed and are read again: %s", ", ".join(changed))
            self._clear_caches()
            self._recent.forget()

    def _clear_caches(self) -> None:
        """Clear the caches of all threads: those that a run uses at its end."""
        for place in range(len(self._results)):
            if place in self._busy_places:
                self._stale_places.add(place)
            else:
                self._clear_place(place)

    def _clear_place(self, place: int) -> None:
        self._stale_places.discard(place)
        self._results[place].clear()
        self._instances[place].clear()

    def _make_batcher(self) -> StepBatcher | None:
        """Return what lets runs take turns and share evaluations, None where one runs at a time."""
        most = self.settings.max_concurrent_runs
        if most == 1:
            return None
        device = torch.device(self.resolved.device)
        self.memory.pool.is_shared = True
        # A processor's own time: what others compute on it meanwhile makes no width look slow.
        now = time.process_time if device.type == "cpu" else time.perf_counter
        side = SideStream(self.memory.device) if device.type == "cuda" else None
        turns = Turns(lambda: save_random_state(device))
        return StepBatcher(turns, most, lambda: devices.wait_for(self.resolved.device), now=now, side=side)

    def _loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return what makes the event loop of a run, None for asyncio's own."""
        if self.batcher is None:
            return None
        turns = self.batcher.turns
        return lambda: asyncio.SelectorEventLoop(TurnSelector(turns))

    @property
    def prompt_with_turn(self) -> str | None:
        """The prompt that computes now, where several run at a time; None while none does. For any thread."""
        holder = None if self.batcher is None else self.batcher.turns.holder
        return None if holder is None else self._run_of_thread.get(holder)

    @property
    def batch_figures(self) -> BatchFigures:
        """Counts of the evaluations that runs have shared; all 0 where one runs at a time."""
        return BatchFigures() if self.batcher is None else self.batcher.figures

    def _unload_idle(self) -> None:
        """Unload models after the idle time; called by the timer on a thread of its own."""
        with contextlib.suppress(RuntimeError):  # the engine is being closed
            self._threads.submit(lambda: None if self._runs else self.memory.unload(also_kept=False))

    def _wait_for_files(self) -> None:
        """Wait until the previous run has written its last file. Writers never wait for the GPU thread."""
        if self._ending is not None:
            self._ending.result()

    def _max_pixels(self) -> int:
        """Return the pixel limit of a picture: the flag, and the limit by the memory that is free now."""
        free = machine_memory.available_bytes() // BYTES_PER_PIXEL
        return min(self.settings.max_input_pixels, free or self.settings.max_input_pixels)  # 0: it is not known

    def _relief(self) -> Iterator[Relief]:
        """Take one relief step per iteration; memory that strategies hold is released before the first."""
        self.tuner.release()
        yield from self.memory.relief()

    def _file_is_there(self, item: Mapping[str, object]) -> bool:
        self._wait_for_files()
        return self.files.has(item)

    def _free(self, *, unload_models: bool, free_memory: bool) -> None:
        if free_memory:
            self._clear_caches()
            self._recent.forget()
        if unload_models or free_memory:
            self.tuner.release()
            self.memory.unload()
        if free_memory:
            gc.collect()
            self.memory.pool.find_leaks()
        self.memory.device.empty_cache()
        if free_memory:
            trim_heap()

    def _graph_limits(self) -> GraphLimits:
        asked = self.settings
        return GraphLimits(asked.max_prompt_nodes, asked.max_prompt_links, asked.max_prompt_bytes)

    def _rules_of_now(self) -> Callable[[str], NodeRules | None]:
        return lambda class_type: self.catalogue.rules(class_type, self.environment)

    def _types_of_family(self, family: ModelFamily) -> LoadTypes:
        return self._load_types(self.memory.types_for(family.dtypes))

    def _load_types(self, resolved: ResolvedSettings) -> LoadTypes:
        """Return the resolved types as torch's."""
        computed = None if resolved.unet_compute_dtype == resolved.unet_dtype else dtype_of(resolved.unet_compute_dtype)
        return LoadTypes(
            unet=dtype_of(resolved.unet_dtype),
            text_encoder=dtype_of(resolved.text_encoder_dtype),
            vae=dtype_of(resolved.vae_dtype),
            patched_text_encoder=None if self.settings.dtypes.text_encoder else torch.float16,
            unet_computed=computed,
            vision=dtype_of(resolved.text_encoder_dtype if self.settings.dtypes.text_encoder else "float16"),
            room_bytes=self.memory.weights_room_bytes(),
            to=_destination(self.memory.facts),
        )

    def _prefetch_files(self, request: RunRequest) -> None:
        """Begin to read the files of a prompt, unless the processor computes: reading would slow it down."""
        if _destination(self.memory.facts) is not Destination.RAM:
            self._prefetch.begin(files_of(request.prompt, self.folders))

    def _run_services(self) -> RunServices:
        types = replace(self._load_types(self.resolved), by_family=self._types_of_family)
        keep: Any = self.memory.keep  # its handles only ever meet handles of the same pool, which their type cannot say
        return RunServices(
            find_class=self.catalogue.get,
            environment=self.environment,
            results=self._results[0],
            instances=self._instances[0],
            signatures=self._signatures(),
            models=ModelStore(
                self.folders,
                keep,
                types,
                self.resolved.device,
                recent=self._recent,
                make_room=self.memory.make_room_to_read,
                on_read=self.memory.file_read,
            ),
            open_files=lambda: RunFiles(
                self.files, self._writers, self._wait_for_files, self._max_pixels, _free_bytes, self._file_numbers
            ),
            file_is_there=self._file_is_there,
            device_errors=translate_device_error,
            relief=self._relief,
            relieved=self.memory.relieved,
            alone=no_company if self.batcher is None else self.batcher.turns.alone,
            hold_place=self._hold_place,
            begin_node=self.memory.pool.begin_node,
            taken_by_node=self.memory.taken_by_node,
            make_preview=self._preview,
            embed_metadata=self.settings.embed_metadata,
        )

    def _preview(self, preview: Any, latent_format: Any, method: PreviewMethod | None = None) -> EncodedPreview | None:
        """Encode a preview. Pictures from nodes are always shown, latents by `method`, as in ComfyUI.

        Without a `method` it is the one of `--preview-method`. With `--animated-previews` an animation of a video's
        latent frames follows, in their own colours.

        `taesd` needs a file of the folder `vae_approx` for the current kind of latents. Without one, and while the
        device is out of memory, it falls back to the latent's own colours, as with `latent2rgb` and `auto`.
        """
        if isinstance(preview, tuple):
            picture_format, picture, size_px = preview
            picture_format = "PNG" if picture_format == "PNG" else "JPEG"
            return picture_preview(picture, picture_format, size_px), f"image/{picture_format.lower()}"
        factors = None if latent_format is None else latent_format.latent_rgb_factors
        method = method or self.preview_method
        if method == "none":
            return None
        decoded = self._decoded_preview(preview, latent_format) if method == "taesd" else None
        if decoded is not None:
            return decoded_preview(decoded, self.settings.preview_size_px), "image/jpeg"
        if factors is None:
            return None
        bias = latent_format.latent_rgb_factors_bias
        reshape = getattr(latent_format, "latent_rgb_factors_reshape", None)  # those of packs may lack it
        if reshape is not None:
            preview = reshape(preview)
        size_px = self.settings.preview_size_px
        first = latent_preview(preview, factors, bias, size_px)
        if not self.settings.animated_previews or preview.ndim != 5 or preview.shape[2] == 1:
            return first, "image/jpeg"
        return first, "image/jpeg", latent_animation(preview, factors, bias, size_px)

    def _decoded_preview(self, latent: Any, latent_format: Any) -> torch.Tensor | None:
        """Return a picture [1, 3, H, W] of -1..1 by the small decoder of these latents, or None without one."""
        decoder = self.tiny_decoders.find(latent_format, latent.device)
        if decoder is None:
            return None
        try:
            with translate_device_error():
                return decoder.decode(latent[:1].float())
        except OutOfMemory:
            return None


def _with_usage(prompt_id: str, usage: Usage, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a receiver of events that reports the strategies used before the run's nodes are over."""
    is_told = False

    def receive(event: Event) -> None:
        nonlocal is_told
        if not is_told and isinstance(event, (RunSaving, RunSucceeded, RunInterrupted, RunFailed)):
            is_told = True
            on_event(TuningUsed(prompt_id, str(usage.quality), tuple(usage.used), dict(usage.unused), usage.error))
        on_event(event)

    return receive


def _place_of_call() -> str:
    """Return the node and the element of its lists that the running call is for."""
    context = running_context()
    return "" if context is None else f"{context.node_id}[{context.list_index}]"


def _settle(result: Future[RunResult], end: Callable[[], RunResult]) -> None:
    """Finish a run and set its result on the future."""
    try:
        result.set_result(end())
    except BaseException as error:  # noqa: BLE001 - the end of a run
        result.set_exception(error)


def _raise(error: BaseException) -> RunResult:
    raise error


class Environment:
    """Model files, input files, samplers and schedules that exist now, on which node declarations depend."""

    def __init__(
        self, folders: ModelFolders, files: FileFolders, sampling: SamplingTables, max_pixels: Callable[[], int]
    ) -> None:
        self._folders = folders
        self._faults = FileFaults(folders)
        self._files = files
        self.sampler_names = sampling.sampler_names
        self.schedule_names = sampling.schedule_names
        self.max_pixels = max_pixels

    def model_files(self, kind: str) -> list[str]:
        return self._folders.names(kind)

    def model_problem(self, kind: str, name: str) -> str | None:
        return self._faults.find(kind, name)

    def input_files(self, content: str) -> list[str]:
        """Return the files in the input folder itself, sorted.

        `content` is a media type (`image`), a file extension (`.latent`), or "" for all files.
        """
        folder = self._files.input
        names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        if not content or content.startswith("."):
            return [name for name in names if name.endswith(content)]
        return [name for name in names if (mimetypes.guess_type(name)[0] or "").startswith(f"{content}/")]

    def input_path(self, name: str) -> Path:
        return self._files.path(name)

    def free_bytes(self) -> int:
        return _free_bytes()


def _free_bytes() -> int:
    """Return the memory that is free now, without bound where it is not known."""
    return machine_memory.available_bytes() or sys.maxsize


def _model_folders(settings: EngineSettings) -> ModelFolders:
    default = settings.base_path / "extra_model_paths.yaml"
    folders = ModelFolders(settings.models_path, built_in=BUILT_IN)
    for path in (*([default] if default.is_file() else []), *settings.extra_model_paths_config):
        for extra in read_extra_model_paths(path):
            folders.add_folder(extra.kind, extra.path, is_default=extra.is_default)
    for kind, name in SAVED_IN.items():
        folders.add_folder(kind, settings.output_path / name)
    return folders


def _result_cache(settings: CacheSettings) -> ResultCache:
    if settings.strategy == "lru":
        return LruCache(settings.lru_size)
    if settings.strategy == "ram":
        return RamPressureCache(_ram_headroom_bytes(settings), machine_memory.available_bytes)
    return NoCache() if settings.strategy == "none" else ClassicCache()


def _destination(facts: DeviceFacts) -> Destination:
    if not facts.has_own_memory:
        return Destination.RAM
    return Destination.SIMULATED_DEVICE if facts.torch_name == "cpu" else Destination.DEVICE


def _recent_models(settings: EngineSettings, state: VramState) -> RecentModels:
    """Return the cache of recent models, used beside the classic cache; other strategies decide themselves what stays.

    It is None where models never leave their device, since unused models would fill it.
    """
    is_wanted = settings.cache.strategy == "classic" and settings.memory.smart_memory and not state.keeps_on_device
    return RecentModels(
        NUM_RECENT_FILES if is_wanted else 0,
        lambda: machine_memory.available_bytes() < machine_memory.total_bytes() * RECENT_LEAVE_SHARE,
    )


def _ram_headroom_bytes(settings: CacheSettings) -> int:
    """Return the requested headroom, else 4 GB as in ComfyUI, but at most a quarter of a small machine's RAM."""
    if settings.ram_gb:
        return round(settings.ram_gb * GIB)
    return min(DEFAULT_HEADROOM_BYTES, machine_memory.total_bytes() // 4)
