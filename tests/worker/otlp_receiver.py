"""A receiver of spans by OTLP over HTTP: a real server that decodes what OpenTelemetry's exporter posts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.served import served


@dataclass
class OtlpReceiver:
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        received = ExportTraceServiceRequest.FromString(await request.read())
        for group in received.resource_spans:
            self.resource = {item.key: item.value.string_value for item in group.resource.attributes}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> Span:
        """The only span of a name."""
        (span,) = (span for span in self.spans if span.name == name)
        return span


@contextlib.asynccontextmanager
async def running_otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    async with served(app) as url:
        receiver.url = url
        yield receiver
