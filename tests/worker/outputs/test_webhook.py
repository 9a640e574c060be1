"""Webhooks: how they are signed, when they are tried again, and that they reach a real receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.outputs.webhook import (
    MAX_TRIES,
    DeliveryOutcome,
    WebhookSender,
    next_wait_seconds,
    outcome_of_status,
    sign,
    sign_standard,
)

BODY = b'{"id": "job-1", "status": "completed"}'


@dataclass(frozen=True)
class Row:
    url: str
    secret: str | None = "s3cret"
    timeout_seconds: float = 5.0
    is_trusted: bool = True
    attempts: int = 0
    traceparent: str = ""
    id: str = "msg_1"
    body: bytes = BODY


class Receiver(BaseHTTPRequestHandler):
    """Answers with `server.status`, keeps what came; 0 never answers."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.came.append((dict(self.headers), body))  # type: ignore[attr-defined]
        status = self.server.status  # type: ignore[attr-defined]
        if status == 0:
            self.server.stop.wait(10)  # type: ignore[attr-defined]
            return
        self.send_response(status)
        self.send_header("Retry-After", "100")
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.came, server.status, server.stop = [], 200, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/hook"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()


def sender(*allowed: str) -> WebhookSender:
    return WebhookSender(AddressGuard(allowed), now=lambda: 1_700_000_000.5)


async def test_a_receiver_gets_the_body_and_both_signatures(receiver: Any) -> None:
    assert await sender().deliver(Row(receiver.url)) == DeliveryOutcome(True)
    [(headers, body)] = receiver.came
    assert body == BODY and headers["Content-Type"] == "application/json"
    expected = hmac.new(b"s3cret", BODY, hashlib.sha256).hexdigest()
    assert headers["X-Webhook-Signature"] == f"sha256={expected}"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_1", "1700000000")
    signed = hmac.new(b"s3cret", b"msg_1.1700000000." + BODY, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()


@pytest.mark.parametrize(
    ("secret", "verifier"),
    [("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), ("plain", b"plain")],
)
async def test_the_receivers_library_accepts_it_and_refuses_another_key(
    receiver: Any, secret: str, verifier: str | bytes
) -> None:
    await WebhookSender(AddressGuard()).deliver(Row(receiver.url, secret=secret))
    [(headers, body)] = receiver.came
    assert Webhook(verifier).verify(body, headers) == {"id": "job-1", "status": "completed"}
    with pytest.raises(WebhookVerificationError):
        Webhook(b"another").verify(body, headers)


async def test_without_a_secret_nothing_is_signed(receiver: Any) -> None:
    await sender().deliver(Row(receiver.url, secret=None))
    assert not [name for name in receiver.came[0][0] if "signature" in name.lower()]


def test_the_example_of_standard_webhooks_holds() -> None:
    """The example of the specification's documentation: secret, id, time, body and signature."""
    signature = sign_standard(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_plain_signature_is_of_the_raw_body() -> None:
    assert sign("key", b"x") == "sha256=" + hmac.new(b"key", b"x", hashlib.sha256).hexdigest()


@pytest.mark.parametrize("status", [500, 404, 301, 401])
async def test_other_answers_are_tried_again(receiver: Any, status: int) -> None:
    receiver.status = status
    outcome = await sender().deliver(Row(receiver.url))
    assert not outcome.is_delivered and outcome.error.startswith(f"status {status}")
    assert outcome.retry_in_seconds is not None and 0.75 <= outcome.retry_in_seconds <= 1.25
    assert len(receiver.came) == 1


async def test_a_receiver_may_ask_for_more_time_or_for_no_more(receiver: Any) -> None:
    receiver.status = 503
    assert (await sender().deliver(Row(receiver.url))).retry_in_seconds == 100.0
    receiver.status = 410
    assert (await sender().deliver(Row(receiver.url))).retry_in_seconds is None


async def test_the_time_limit_of_the_request_holds(receiver: Any) -> None:
    receiver.status = 0
    outcome = await sender().deliver(Row(receiver.url, timeout_seconds=0.1))
    assert outcome.error == "no answer within 0.1 s" and outcome.retry_in_seconds is not None


async def test_an_address_of_a_request_is_guarded_and_the_operators_is_not(receiver: Any) -> None:
    refused = await sender().deliver(Row(receiver.url, is_trusted=False))
    assert not refused.is_delivered and refused.retry_in_seconds is None and receiver.came == []
    assert (await sender("127.0.0.1").deliver(Row(receiver.url, is_trusted=False))).is_delivered


async def test_a_receiver_that_is_down_is_tried_again() -> None:
    outcome = await sender().deliver(Row("http://127.0.0.1:9/hook"))
    assert outcome.retry_in_seconds is not None and "connection was refused" in outcome.error


async def test_a_url_that_is_none_is_given_up() -> None:
    for url in ("no url", "ftp://example.com/", "http://"):
        assert (await sender().deliver(Row(url))).retry_in_seconds is None


def test_the_tries_span_about_a_day_with_growing_waits() -> None:
    waits = [next_wait_seconds(number, 0.5) for number in range(1, MAX_TRIES)]
    known = [wait for wait in waits if wait is not None]
    assert known == sorted(known) and len(known) == MAX_TRIES - 1
    assert 20 * 3600 < sum(known) < 26 * 3600
    assert next_wait_seconds(MAX_TRIES, 0.5) is None


def test_the_last_try_gives_up() -> None:
    assert outcome_of_status(500, MAX_TRIES, 0.5) == DeliveryOutcome(False, None, "status 500")


def test_a_retry_after_counts_only_where_it_says_something_of_the_receiver() -> None:
    assert outcome_of_status(503, 1, 0.5, 50.0).retry_in_seconds == 50.0
    assert outcome_of_status(500, 1, 0.5, 50.0) == outcome_of_status(500, 1, 0.5)
