"""Announcements: the state of the worker for the platform and for whoever reads the log's markers."""

from __future__ import annotations

from collections.abc import Callable

from darkroom.worker.api.services import Services
from darkroom.worker.autoscaler.speed import assumed_speed, measured_speed
from darkroom.worker.errors import EngineStartFailed
from darkroom.worker.observe.log_markers import write_marker

EXIT_UNRECOVERABLE = 4


class Announcements:
    """Receiver of the outcomes of qualification (its `Announcer`) and of engines that cannot be started.

    `on_ready` is called when the worker serves.
    """

    def __init__(
        self,
        services: Services,
        on_ready: Callable[[], None],
        stop_server: Callable[[int], None],
    ) -> None:
        self._services = services
        self._on_ready = on_ready
        self._stop_server = stop_server

    def ready(self, *, was_closed: bool) -> None:
        services, platform = self._services, self._services.platform
        platform.autoscaler.error_cleared()
        measured = measured_speed(services.engines.qualification.report, platform.workload)
        is_estimate = bool(services.engines.qualification.report.get("workload_is_estimate"))
        num_engines = max(1, len(services.engines.pool.clients_serving))
        services.jobs.run_clock.expect(measured / num_engines, is_estimate=is_estimate)
        platform.autoscaler.loaded(measured or assumed_speed(platform.workload))
        self._on_ready()
        if was_closed:
            write_marker("BACKENDS_READY")

    def not_ready(self, reason: str, *, is_new: bool) -> None:
        self._services.platform.autoscaler.error_set(reason)
        if is_new:
            write_marker("BACKENDS_READY_TIMEOUT")

    def unqualified(self, exit_code: int) -> None:
        self._stop_server(exit_code)

    def engine_did_not_start(self, error: EngineStartFailed) -> None:
        """End the worker: its engine has ended before it answered."""
        self._services.platform.autoscaler.error_set(f"The engine did not start: {error.message}")
        write_marker("BACKEND_UNRECOVERABLE")
        self._stop_server(1)

    def no_engine_left(self) -> None:
        """End the worker: no engine of ours comes back. The jobs stay on disk for the front that replaces it."""
        self._services.jobs.gate.close("No engine can be started any more")
        self._services.platform.autoscaler.error_set("No engine can be started any more")
        write_marker("BACKEND_UNRECOVERABLE")
        self._stop_server(EXIT_UNRECOVERABLE)
