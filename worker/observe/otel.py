"""Spans by OpenTelemetry, sent to an OTLP receiver over HTTP. Needs the extra `otel`; imported only when configured."""

from __future__ import annotations

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind as OtelKind

from darkroom.worker.observe.tracing import Attributes, Span, SpanKind, TraceContext, read_traceparent
from darkroom.worker.settings.tracing import TracingConfig
from darkroom.worker.version import version

TRACES_PATH = "/v1/traces"
CLOSE_SECONDS = 2.0
KINDS = {"server": OtelKind.SERVER, "client": OtelKind.CLIENT, "internal": OtelKind.INTERNAL}


class _Span:
    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return TraceContext(
            f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled
        ).traceparent

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def end(self, attributes: Attributes | None = None, *, error: str = "") -> None:
        self._span.set_attributes(dict(attributes or {}))
        if error:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


class OtelTracer:
    """Tracer with a provider of its own: other code of the process is not instrumented."""

    def __init__(self, config: TracingConfig) -> None:
        exporter = OTLPSpanExporter(endpoint=_address(config.endpoint), headers=config.header_values())
        resource = Resource.create({"service.name": config.service_name, "service.version": version()})
        sampler = ParentBased(TraceIdRatioBased(config.sample_ratio))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("darkroom")

    def start(
        self, name: str, parent: str = "", attributes: Attributes | None = None, kind: SpanKind = "internal"
    ) -> Span:
        remote = read_traceparent(parent)
        context = None
        if remote is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if remote.is_sampled else TraceFlags.DEFAULT)
            here = SpanContext(int(remote.trace_id, 16), int(remote.span_id, 16), is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(here))
        return _Span(self._tracer.start_span(name, context, KINDS[kind], dict(attributes or {})))

    def close(self) -> None:
        """Export what has not been exported, within CLOSE_SECONDS: the exporter itself retries for longer."""
        closing = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def _address(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH
