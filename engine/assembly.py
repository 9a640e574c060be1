"""The place where an engine is put together: its owners, in the order in which they need each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.environment import Environment, free_bytes
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.formats.fill import Destination
from darkroom.engine.housekeeping import Housekeeping
from darkroom.engine.images.decode import BYTES_PER_PIXEL
from darkroom.engine.machine_tuning import MachineTuning
from darkroom.engine.measurements import Measurements
from darkroom.engine.memory import device as devices
from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device import Device, dtype_of, translate_device_error
from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.random_state import save_random_state
from darkroom.engine.memory.state import VramState
from darkroom.engine.models.files.extra_model_paths import read_extra_model_paths
from darkroom.engine.models.files.families import FileFamilies
from darkroom.engine.models.files.faults import FileFaults
from darkroom.engine.models.files.folders import BUILT_IN, SAVED_IN, ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.files.prefetch import FilePrefetch
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.preloaded_models import PreloadedModels
from darkroom.engine.models.recent_models import RecentModels
from darkroom.engine.models.store import ModelStore
from darkroom.engine.models.tiny_decoders import TinyDecoders
from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.catalogue import Catalogue
from darkroom.engine.previews import Previews
from darkroom.engine.prompt_checks import PromptChecks
from darkroom.engine.runs import Lanes, Runs
from darkroom.engine.runtime.cache.classic import ClassicCache
from darkroom.engine.runtime.cache.lru import LruCache
from darkroom.engine.runtime.cache.none import NoCache
from darkroom.engine.runtime.cache.providers import CacheProviders
from darkroom.engine.runtime.cache.ram_pressure import RamPressureCache
from darkroom.engine.runtime.cache.store import ResultCache
from darkroom.engine.runtime.outputs import FileFolders, FileNumbers, RunFiles
from darkroom.engine.runtime.run_caches import RunCaches
from darkroom.engine.runtime.run_ends import RunEnds
from darkroom.engine.runtime.run_services import RunServices, no_company
from darkroom.engine.runtime.run_slots import RunSlots
from darkroom.engine.runtime.run_threads import RunThreads
from darkroom.engine.runtime.signatures import RunSignatures
from darkroom.engine.runtime.turns import Turns
from darkroom.engine.sampling_runs import SamplingRuns
from darkroom.engine.settings import CacheSettings, EngineSettings, ResolvedSettings
from darkroom.engine.snapshot import Snapshot
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.side_stream import SideStream
from darkroom.engine.tuning.tuner import Tuner

NUM_RECENT_FILES = 8
RECENT_LEAVE_SHARE = 0.25  # of RAM; the front replaces an engine that takes more than 85 % of it
GIB = 1024**3
DEFAULT_HEADROOM_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of an engine's parts, which it hands out."""

    memory: ModelMemory
    """Weights on the device and in RAM, and what is known of the device."""
    folders: ModelFolders
    """Folders of model files."""
    files: FileFolders
    """Folders of input, output and temporary files."""
    file_families: FileFamilies
    """Families of models and of model files."""
    tiny_decoders: TinyDecoders
    """Small decoders of previews."""
    cache_providers: CacheProviders
    """Results that packs keep outside of the engine."""
    sampling: SamplingTables
    """Samplers, schedules, and what custom nodes have put in the place of functions of sampling."""
    catalogue: Catalogue
    """Node classes."""
    environment: Environment
    """Files, samplers and limits on which the declarations of nodes depend."""
    checks: PromptChecks
    """Checks of prompts."""
    models: ModelStore
    """Model files as values, for nodes. Used on the threads that run prompts."""
    preloaded: PreloadedModels
    """Models that are read before a prompt names them."""
    tuner: Tuner
    """Strategies and the outcomes in use."""
    tuning: MachineTuning
    """Measurement of strategies."""
    previews: Previews
    """Encoding of previews."""
    housekeeping: Housekeeping
    """Release of what is kept between runs."""
    runs: Runs
    """Submitted prompts."""
    measurements: Measurements
    """Identity and speed of the device."""
    snapshot: Snapshot
    """Freezing and thawing."""


def assemble(settings: EngineSettings, classes: Iterable[NodeClass] | None, device: Device | None) -> Owners:
    """Make the owners of an engine; see `Engine` for the arguments. No thread is started."""
    memory = ModelMemory(settings, device)
    folders = _model_folders(settings)
    decoders = TinyDecoders(folders)
    files = FileFolders(settings.input_path, settings.output_path, settings.temp_path)
    sampling = SamplingTables()
    answers = HeaderAnswers()
    environment = Environment(folders, FileFaults(folders, answers), files, sampling, partial(_max_pixels, settings))
    catalogue = Catalogue(built_in_nodes() if classes is None else classes)
    tuner = Tuner(settings.tuning, settings.tuning_directory, save_random_state, translate_device_error)
    memory.pool.before_eviction = tuner.release
    threads = RunThreads(settings.max_concurrent_runs)
    batcher = _batcher(settings, memory)
    lanes = Lanes(threads, RunSlots(threads), RunEnds(), RunSignatures(), batcher)
    recent = _recent_models(settings, memory.pool.state)
    models = _model_store(settings, memory, folders, recent)
    preloaded = PreloadedModels(models)
    caches = RunCaches(partial(_result_cache, settings.cache), settings.max_concurrent_runs)
    housekeeping = Housekeeping(memory, models, preloaded, recent, tuner, caches)
    previews = Previews(settings, decoders)
    services = _run_services(settings, lanes, catalogue, environment, models, files, housekeeping, memory, previews)
    providers = CacheProviders()
    services = replace(services, cache_providers=providers)
    read_ahead = None if _destination(memory.facts) is Destination.RAM else folders  # it would slow computing there
    find_facts = partial(catalogue.facts, environment=environment)
    prefetch = FilePrefetch(machine_memory.available_bytes, models.files.is_loaded, read_ahead, find_facts)
    runs = Runs(
        settings,
        lanes,
        services,
        SamplingRuns(settings, torch.device(memory.resolved.device), sampling, tuner, batcher),
        housekeeping,
        previews,
        memory.device,
        prefetch,
    )
    measurements = Measurements(memory.resolved.device, threads, folders)
    return Owners(
        memory=memory,
        folders=folders,
        files=files,
        file_families=FileFamilies(folders, answers),
        tiny_decoders=decoders,
        cache_providers=providers,
        sampling=sampling,
        catalogue=catalogue,
        environment=environment,
        checks=PromptChecks(settings, catalogue, environment, folders, memory, answers),
        models=models,
        preloaded=preloaded,
        tuner=tuner,
        tuning=MachineTuning(settings, tuner, threads, models, memory, sampling, batcher),
        previews=previews,
        housekeeping=housekeeping,
        runs=runs,
        measurements=measurements,
        snapshot=Snapshot(runs, housekeeping, measurements),
    )


def _run_services(
    settings: EngineSettings,
    lanes: Lanes,
    catalogue: Catalogue,
    environment: Environment,
    models: ModelStore,
    files: FileFolders,
    housekeeping: Housekeeping,
    memory: ModelMemory,
    previews: Previews,
) -> RunServices:
    """Return all that runs take from their engine."""
    max_pixels, numbers = partial(_max_pixels, settings), FileNumbers()

    def file_is_there(item: Mapping[str, Any]) -> bool:
        lanes.ends.wait()
        return files.has(item)

    return RunServices(
        find_class=catalogue.get,
        environment=environment,
        results=housekeeping.caches.results(0),
        instances=housekeeping.caches.instances(0),
        signatures=lanes.signatures.make,
        models=models,
        open_files=lambda: RunFiles(files, lanes.ends.writers, lanes.ends.wait, max_pixels, free_bytes, numbers),
        file_is_there=file_is_there,
        device_errors=translate_device_error,
        relief=housekeeping.relief,
        relieved=memory.relieved,
        alone=no_company if lanes.batcher is None else lanes.batcher.turns.alone,
        hold_place=lanes.slots.hold,
        begin_node=memory.pool.begin_node,
        taken_by_node=memory.taken_by_node,
        make_preview=previews.encode,
        embed_metadata=settings.embed_metadata,
    )


def _batcher(settings: EngineSettings, memory: ModelMemory) -> StepBatcher | None:
    """Return the batcher by which runs take turns and share evaluations, None where one runs at a time."""
    most = settings.max_concurrent_runs
    if most == 1:
        return None
    device = torch.device(memory.resolved.device)
    memory.pool.is_shared = True
    # A processor's own time: what others compute on it meanwhile makes no width look slow.
    now = time.process_time if device.type == "cpu" else time.perf_counter
    side = SideStream(memory.device) if device.type == "cuda" else None
    turns = Turns(lambda: save_random_state(device))
    return StepBatcher(turns, most, lambda: devices.wait_for(memory.resolved.device), now=now, side=side)


def _model_store(
    settings: EngineSettings, memory: ModelMemory, folders: ModelFolders, recent: RecentModels
) -> ModelStore:
    def types(resolved: ResolvedSettings) -> LoadTypes:
        return _load_types(settings, memory, resolved)

    def types_of_family(family: ModelFamily | VisionFamily) -> LoadTypes:
        resolved = memory.types_for(family.dtypes)
        if isinstance(family, VisionFamily) or family.text_dtypes is None or settings.dtypes.text_encoder:
            return types(resolved)
        return replace(
            types(resolved),
            patched_text_encoder=dtype_of(family.text_dtypes.prefers[0]),
            text_encoder_computed=dtype_of(resolved.text_encoder_compute_dtype),
        )

    keep: Any = memory.keep  # its handles only ever meet handles of the same pool, which their type cannot say
    return ModelStore(
        folders,
        keep,
        replace(types(memory.resolved), by_family=types_of_family),
        memory.resolved.device,
        recent=recent,
        make_room=memory.make_room_to_read,
        on_read=memory.file_read,
        device_work=memory,
    )


def _load_types(settings: EngineSettings, memory: ModelMemory, resolved: ResolvedSettings) -> LoadTypes:
    """Return the resolved types as torch's."""
    computed = None if resolved.unet_compute_dtype == resolved.unet_dtype else dtype_of(resolved.unet_compute_dtype)
    return LoadTypes(
        unet=dtype_of(resolved.unet_dtype),
        text_encoder=dtype_of(resolved.text_encoder_dtype),
        vae=dtype_of(resolved.vae_dtype),
        patched_text_encoder=None if settings.dtypes.text_encoder else torch.float16,
        unet_computed=computed,
        vision=dtype_of(resolved.text_encoder_dtype if settings.dtypes.text_encoder else "float16"),
        room_bytes=memory.weights_room_bytes(),
        to=_destination(memory.facts),
    )


def _destination(facts: DeviceFacts) -> Destination:
    if not facts.has_own_memory:
        return Destination.RAM
    return Destination.SIMULATED_DEVICE if facts.torch_name == "cpu" else Destination.DEVICE


def _model_folders(settings: EngineSettings) -> ModelFolders:
    default = settings.base_path / "extra_model_paths.yaml"
    folders = ModelFolders(settings.models_path, built_in=BUILT_IN)
    for path in (*([default] if default.is_file() else []), *settings.extra_model_paths_config):
        for extra in read_extra_model_paths(path):
            folders.add_folder(extra.kind, extra.path, is_default=extra.is_default)
    for kind, name in SAVED_IN.items():
        folders.add_folder(kind, settings.output_path / name)
    return folders


def _max_pixels(settings: EngineSettings) -> int:
    """Return the pixel limit of an image: the flag, and the limit by the memory that is free now."""
    free = machine_memory.available_bytes() // BYTES_PER_PIXEL
    return min(settings.max_input_pixels, free or settings.max_input_pixels)  # 0: it is not known


def _result_cache(settings: CacheSettings) -> ResultCache:
    if settings.strategy == "lru":
        return LruCache(settings.lru_size)
    if settings.strategy == "ram":
        return RamPressureCache(_ram_headroom_bytes(settings), machine_memory.available_bytes)
    return NoCache() if settings.strategy == "none" else ClassicCache()


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
