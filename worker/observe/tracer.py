"""The tracer that the settings ask for."""

from __future__ import annotations

import importlib.util

from darkroom.host.distribution import install_command
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.observe.tracing import PassingTracer, Tracer
from darkroom.worker.settings.tracing import TracingConfig

PACKAGE = "opentelemetry.exporter.otlp.proto.http"


def build_tracer(config: TracingConfig) -> Tracer:
    """Build the tracer; without an endpoint one that passes contexts on.

    Raises SettingsInvalid when the extra `otel` is not installed.
    """
    if not config.endpoint:
        return PassingTracer()
    if not _is_installed():
        raise SettingsInvalid(f"OTEL_EXPORTER_OTLP_ENDPOINT: needs OpenTelemetry; {install_command('otel')}")
    from darkroom.worker.observe.otel import OtelTracer  # 0.2 s and an optional package

    return OtelTracer(config)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec(PACKAGE) is not None
    except ModuleNotFoundError:
        return False
