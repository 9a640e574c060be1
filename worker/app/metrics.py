"""Metrics of the front: the collectors of all areas, and what has to be read before a scrape."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from darkroom.worker.app.job_area import JobArea
from darkroom.worker.app.storage import Storage
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.uses import FallbackUses
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.engines.metrics import EngineMetrics
from darkroom.worker.errors import error_codes
from darkroom.worker.observe.gpu_metrics import GpuMetrics
from darkroom.worker.observe.history import METRICS
from darkroom.worker.observe.history_recorder import HistoryRecorder
from darkroom.worker.observe.http_metrics import HttpMetrics
from darkroom.worker.observe.machine_metrics import MachineMetrics
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.observe.metrics import LabelValues, Metrics, Waiting
from darkroom.worker.observe.scrape import Scrape
from darkroom.worker.qualification.phases import Phase
from darkroom.worker.qualification.state import VERDICTS
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.job import JobState, JobTimes
from darkroom.worker.version import version


@dataclass(frozen=True, slots=True)
class MetricsArea:
    """Metrics of the worker, those of its requests, the readings that a scrape begins with, and the last day's."""

    metrics: Metrics
    http: HttpMetrics
    scrape: Scrape
    history: HistoryRecorder


def build_metrics(
    settings: Settings,
    storage: Storage,
    fleet: EngineFleet,
    fallback: FallbackEngine | None,
    jobs: JobArea,
    memory: MachineMemory,
) -> MetricsArea:
    """Build the metrics of every area."""
    engines = EngineMetrics(fleet.reports, lambda: None if fallback is None else fallback.report())
    gpus, http = GpuMetrics(), HttpMetrics()
    folders = {
        "state": settings.folders.state_path,
        "base": settings.engine_launch().base_directory,
        "inputs": storage.external_io.input_directory,
    }
    machine = MachineMetrics(memory, folders)
    metrics = Metrics(
        LabelValues(
            states=[state.value for state in JobState if state.is_terminal],
            stages=list(JobTimes(0).phase_ms),
            codes=error_codes(),
            verdicts=VERDICTS,
            phases=[phase.value for phase in Phase],
        ),
        version(),
        jobs.pipeline.counts,
        lambda: Waiting(*jobs.queue_info.waiting()),
        engines,
        machine,
        gpus,
        *storage.io_metrics.collectors,
        *storage.model_metrics.collectors,
    )
    metrics.registry.register(http)
    metrics.registry.register(FallbackUses() if fallback is None else fallback.uses)

    async def ask_engines() -> None:
        await asyncio.to_thread(engines.show, await fleet.metrics_texts())  # parsing them takes long

    scrape = Scrape([ask_engines, gpus.read, machine.read, storage.outbox.show_counts])
    return MetricsArea(metrics, http, scrape, HistoryRecorder(scrape, lambda: metrics.samples(METRICS)))
