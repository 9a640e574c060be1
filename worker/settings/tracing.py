"""Settings of traces, under the names that OpenTelemetry gives them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from pydantic import Field, SecretStr

from darkroom.worker.settings.section import Address, Section, env


class TracingConfig(Section):
    """Receiver of spans by OTLP over HTTP. Without one, trace contexts are passed on and nothing is exported."""

    endpoint: Annotated[Address, env("OTEL_EXPORTER_OTLP_ENDPOINT")] = ""
    """Base URL of an OTLP receiver over HTTP, such as `http://collector:4318`; needs the extra `otel`
    ([traces](observability.md#traces))."""

    headers: Annotated[SecretStr, env("OTEL_EXPORTER_OTLP_HEADERS")] = SecretStr("")
    """Headers for it, `name=value` by comma, percent-encoded."""

    service_name: Annotated[str, env("OTEL_SERVICE_NAME")] = "darkroom"
    """Name of this service in the spans."""

    sample_ratio: Annotated[float, Field(ge=0, le=1), env("OTEL_TRACES_SAMPLER_ARG")] = 1.0
    """Share of the traces begun here that are exported; a request's `traceparent` decides for its own trace."""

    def header_values(self) -> dict[str, str]:
        """Return the headers by name."""
        pairs = (part.partition("=") for part in self.headers.get_secret_value().split(",") if part.strip())
        return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
