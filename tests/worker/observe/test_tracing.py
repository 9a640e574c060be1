"""Traces: contexts that are passed on, and spans that arrive in a real OTLP receiver."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from starlette.types import Receive, Scope, Send

from darkroom.worker.api.request_tracing import RequestTracing
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.observe import otel
from darkroom.worker.observe.tracer import build_tracer
from darkroom.worker.observe.tracing import Attributes, PassingTracer, Span, SpanKind, read_traceparent
from darkroom.worker.settings.tracing import TracingConfig
from tests.fakes import FakeEngine, draw, fail
from tests.worker.otlp_receiver import running_otlp_receiver
from tests.worker.receiver import Receiver
from tests.worker.running_front import running_front, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"


def test_a_context_is_read_as_the_specification_says() -> None:
    context = read_traceparent(HEADER)
    assert context is not None and context.traceparent == HEADER and context.is_sampled
    later = read_traceparent(f"cc-{TRACE}-{PARENT}-00-what-comes")
    assert later is not None and not later.is_sampled


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\r\nx: y",
    ],
)
def test_a_malformed_context_counts_as_none(value: str) -> None:
    assert read_traceparent(value) is None


async def test_without_an_exporter_a_context_goes_on_to_the_engine_and_the_webhooks(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    hook = {"url": receiver.url, "events": ["started"]}
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        body = {"input": {"workflow_json": draw(), "webhook": hook}}
        assert (await front.http.post("/generate/sync", json=body, headers={"traceparent": HEADER})).status_code == 200

        async def has_ended() -> bool:
            return any(b'"ended"' in content for _, content in receiver.calls)

        await until(has_ended)
        assert engine.traceparents == [HEADER]
        assert {headers["traceparent"] for headers, _ in receiver.calls} == {HEADER}
        assert (await front.sync(draw())).status_code == 200
        assert engine.traceparents[-1] == ""


async def test_spans_of_request_job_stages_nodes_and_webhook_arrive_in_one_trace(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_otlp_receiver() as otlp:
        settings: dict[str, Any] = {
            "otel_exporter_otlp_endpoint": otlp.url,
            "otel_exporter_otlp_headers": "x-team=pictures%20and%20more",
            "allowed_private_hosts": ("127.0.0.1",),
        }
        async with running_front(tmp_path, engine, **settings) as front:
            body = {"input": {"workflow_json": draw(), "webhook": {"url": receiver.url}}}
            reply = await front.http.post("/generate/sync", json=body, headers={"traceparent": HEADER})

            async def is_delivered() -> bool:
                return bool(receiver.calls)

            await until(is_delivered)
        # The front has stopped, and exported everything.
        assert otlp.headers["x-team"] == "pictures and more" and otlp.resource["service.name"] == "darkroom"
        assert {span.trace_id.hex() for span in otlp.spans} == {TRACE}
        request, job, run = otlp.named("POST /generate/sync"), otlp.named("job"), otlp.named("job run")
        assert request.parent_span_id.hex() == PARENT and job.parent_span_id == request.span_id
        for name in ("job inputs", "job wait", "job run", "job delivery"):
            assert otlp.named(name).parent_span_id == job.span_id
        nodes = [span for span in otlp.spans if span.name.startswith("node ")]
        assert nodes and all(span.parent_span_id == run.span_id for span in nodes)
        assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in otlp.spans)
        known = {item.key: item.value.string_value for item in job.attributes}
        assert known["darkroom.request_id"] == reply.json()["id"] and known["darkroom.state"] == "completed"
        webhook = otlp.named("webhook")
        assert webhook.parent_span_id == request.span_id
        assert receiver.calls[0][0]["traceparent"] == f"00-{TRACE}-{webhook.span_id.hex()}-01"
        wait = otlp.named("job wait")
        assert engine.traceparents == [f"00-{TRACE}-{wait.span_id.hex()}-01"]


async def test_a_failure_is_the_error_of_its_spans_and_probes_have_none(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_otlp_receiver() as otlp:
        async with running_front(tmp_path, engine, otel_exporter_otlp_endpoint=otlp.url) as front:
            assert (await front.sync(fail())).status_code == 500
        assert otlp.named("job").status.code == otlp.named("POST /generate/sync").status.code == 2
        assert otlp.named("job").status.message == "node_failed"
        assert not [span for span in otlp.spans if "/ready" in span.name]


async def test_a_trace_that_its_caller_does_not_sample_is_not_exported(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_otlp_receiver() as otlp:
        async with running_front(tmp_path, engine, otel_exporter_otlp_endpoint=otlp.url) as front:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            await front.http.post("/generate/sync", json={"input": {"workflow_json": draw()}}, headers=headers)
        assert not otlp.spans and engine.traceparents[0].startswith(f"00-{TRACE}-")


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.observe.tracer._is_installed", lambda: False)
    with pytest.raises(SettingsInvalid, match=r"pip install .opentelemetry-sdk"):
        build_tracer(TracingConfig(endpoint="http://127.0.0.1:4318"))


def test_a_receiver_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(otel, "CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(TracerProvider, "shutdown", lambda _: answers.wait(20))
    build_tracer(TracingConfig(endpoint="http://127.0.0.1:9")).close()
    assert not answers.is_set()
    answers.set()


async def test_a_request_that_breaks_is_an_error_of_its_span() -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ValueError("broken")

    async def nothing(*_: Any) -> Any:
        raise AssertionError("not called")

    tracer = RecordingTracer()
    scope = {"type": "http", "method": "GET", "path": "/result/1", "headers": []}
    with pytest.raises(ValueError, match="broken"):
        await RequestTracing(broken, tracer)(scope, nothing, nothing)
    assert tracer.errors == ["500"]


class RecordingTracer(PassingTracer):
    """Tracer whose only span is itself."""

    traceparent = HEADER

    def __init__(self) -> None:
        self.errors: list[str] = []

    def start(
        self, name: str, parent: str = "", attributes: Attributes | None = None, kind: SpanKind = "internal"
    ) -> Span:
        return self

    def rename(self, name: str) -> None:
        raise AssertionError("no route")

    def end(self, attributes: Attributes | None = None, *, error: str = "") -> None:
        self.errors.append(error)
