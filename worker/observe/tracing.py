"""Distributed traces: W3C trace context passed on, and spans where an exporter is configured.

A `traceparent` is the W3C header's value (https://www.w3.org/TR/trace-context/), empty for none. Without an exporter
there are no spans, and the context of a request goes on unchanged to the engine and to its webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = "ff"

Attribute = str | int | float | bool
Attributes = Mapping[str, Attribute]
SpanKind = Literal["server", "client", "internal"]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of another program or of this one: the parent of spans that continue its trace."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def read_traceparent(value: str) -> TraceContext | None:
    """Return the context of a header's value; None for a malformed one, which counts as absent."""
    found = _FORM.fullmatch(value.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == _INVALID_VERSION or (version == "00" and rest) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


class Span(Protocol):
    """A span that has begun. `traceparent` is the context for what happens in it."""

    @property
    def traceparent(self) -> str: ...

    def rename(self, name: str) -> None:
        """Replace the name, which is not always known at the beginning."""
        ...

    def end(self, attributes: Attributes | None = None, *, error: str = "") -> None:
        """End the span; `error` says why it failed."""
        ...


class Tracer(Protocol):
    """Maker of spans."""

    def start(
        self, name: str, parent: str = "", attributes: Attributes | None = None, kind: SpanKind = "internal"
    ) -> Span:
        """Begin a span below `parent`, a traceparent; without one it begins a trace."""
        ...

    def close(self) -> None:
        """Export what has not been exported. Blocking."""
        ...


@dataclass(frozen=True, slots=True)
class _PassedOn:
    traceparent: str

    def rename(self, name: str) -> None:
        pass

    def end(self, attributes: Attributes | None = None, *, error: str = "") -> None:
        pass


class PassingTracer:
    """Tracer without spans: the parent's context is passed on."""

    def start(
        self, name: str, parent: str = "", attributes: Attributes | None = None, kind: SpanKind = "internal"
    ) -> Span:
        context = read_traceparent(parent)
        return _PassedOn("" if context is None else context.traceparent)

    def close(self) -> None:
        pass


def trace_headers(traceparent: str) -> dict[str, str]:
    """Return the headers of a request that continues a trace; none without a context."""
    return {HEADER: traceparent} if traceparent else {}
