"""Release of what an engine keeps between runs: results, models, memory of strategies, Python's garbage."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

from darkroom.engine.memory.model_memory import ModelMemory, Relief
from darkroom.engine.models.preloaded_models import PreloadedModels
from darkroom.engine.models.recent_models import RecentModels
from darkroom.engine.models.store import ModelStore
from darkroom.engine.runtime.garbage import GarbageCollection
from darkroom.engine.runtime.run_caches import RunCaches
from darkroom.engine.tuning.tuner import Tuner
from darkroom.host.heap import trim_heap

log = logging.getLogger(__name__)


class Housekeeping:
    """Releases what runs have left behind. Used on the threads that run prompts."""

    def __init__(
        self,
        memory: ModelMemory,
        models: ModelStore,
        preloaded: PreloadedModels,
        recent: RecentModels,
        tuner: Tuner,
        caches: RunCaches,
    ) -> None:
        self.caches = caches
        self.garbage = GarbageCollection()
        self._memory = memory
        self._models = models
        self._preloaded = preloaded
        self._recent = recent
        self._tuner = tuner

    def forget_changed_files(self) -> None:
        """Drop results computed from model files that have changed on disk since, such as by a new download."""
        changed = self._models.files.forget_changed()
        if changed:
            self._preloaded.forget(changed)
            log.warning("model files have changed and are read again: %s", ", ".join(changed))
            self.caches.clear()
            self._recent.forget()

    def after_run(self) -> None:
        """Release what a run that is over no longer needs, where memory is short or it is time."""
        self._recent.make_place()
        self._memory.pool.after_run()
        self.garbage.after_run()

    def relief(self) -> Iterator[Relief]:
        """Take one relief step per iteration; memory that strategies hold is released before the first."""
        self._tuner.release()
        yield from self._memory.relief()

    def unload_idle(self) -> None:
        """Unload the models that are not to be kept while nothing runs."""
        self._memory.unload(also_kept=False)

    def free(self, *, unload_models: bool, free_memory: bool) -> None:
        """Unload models from the device; with `free_memory` also drop results and node states."""
        if free_memory:
            self.caches.clear()
            self._recent.forget()
        if unload_models or free_memory:
            self._tuner.release()
            self._memory.unload()
        if free_memory:
            gc.collect()
            self._memory.pool.find_leaks()
        self._memory.device.empty_cache()
        if free_memory:
            trim_heap()

    def unload_for_snapshot(self) -> None:
        """Bring models to RAM and give free memory back to the system."""
        self.free(unload_models=True, free_memory=False)
        gc.collect()
        trim_heap()
