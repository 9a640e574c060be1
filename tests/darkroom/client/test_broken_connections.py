"""Both clients over a connection that drops, is refused or goes silent, against a server that does it on purpose."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from darkroom.client import AsyncClient, Client, Event, Request, RequestRefused, Result, WorkerUnreachable


class ScriptedFront:
    """Answers the connections one after another with the given bytes and closes; `requests` are what came."""

    def __init__(self, *answers: bytes, port: int = 0) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._socket.accept()
            with connection:
                self.requests.append(_read_request(connection))
                connection.sendall(answer)
        self._socket.close()

    def close(self) -> None:
        self._thread.join(timeout=5)

    def ask_once(self) -> None:
        """Take the next answer, so that the front is away after its last."""
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while connection.recv(65536):
                pass
        self.close()


def _read_request(connection: socket.socket) -> bytes:
    """Head and body, which may come in pieces."""
    whole = b""
    while b"\r\n\r\n" not in whole:
        whole += connection.recv(65536)
    head, _, body = whole.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head.lower())
    while len(body) < (int(found[1]) if found else 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def stream_of(*events: tuple[int, dict[str, Any]], is_cut: bool = False) -> bytes:
    """A response of unknown length; one that is cut promises more than comes."""
    body = "".join(f"id: {event_id}\ndata: {json.dumps(data)}\n\n" for event_id, data in events).encode()
    length = f"Content-Length: {len(body) + (10 if is_cut else 0)}\r\n"
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{length}Connection: close\r\n\r\n".encode() + body


def answer(status: int, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close"
    return head.encode() + b"\r\n\r\n" + text


DONE = {"status": "completed", "output": []}
FINAL = {"status": "final_result", "result": DONE}
RUNNING = {"status": "generating", "progress": {"percent": 40}}


@pytest.fixture
def fronts() -> Iterator[list[ScriptedFront]]:
    made: list[ScriptedFront] = []
    yield made
    for front in made:
        front.close()


Seen = tuple[Result, list[Event], list[float]]


class Follow(Protocol):
    def __call__(self, front: ScriptedFront, key: str = ...) -> Seen: ...


def follow_blocking(url: str, key: str) -> Seen:
    seen: list[Event] = []
    pauses: list[float] = []
    with Client(url, key, pause=pauses.append) as client:
        return client.generate(Request(modifier="X"), seen.append), seen, pauses


def follow_async(url: str, key: str) -> Seen:
    seen: list[Event] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> Result:
        async with AsyncClient(url, key, pause=pause) as client:
            return await client.generate(Request(modifier="X"), seen.append)

    return asyncio.run(run()), seen, pauses


@pytest.fixture(params=[follow_blocking, follow_async])
def follow(request: pytest.FixtureRequest) -> Follow:
    def of_front(front: ScriptedFront, key: str = "") -> Seen:
        found: Seen = request.param(front.url, key)
        return found

    return of_front


def test_a_stream_that_holds_is_followed_to_its_result(follow: Follow, fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((1, RUNNING), (2, FINAL))))
    result, seen, pauses = follow(fronts[0])
    assert (result.raw, [event.raw for event in seen], pauses) == (DONE, [RUNNING], [])
    assert (result.has_ended, seen[0].percent) == (True, 40)
    assert fronts[0].requests[0].startswith(b"POST /generate/stream")


def test_keep_alives_and_a_cut_event_are_no_events(follow: Follow, fronts: list[ScriptedFront]) -> None:
    body = b': hi\n\nid: 7\ndata: {"status":\ndata: "generating"}\n\n: keep-alive\n\nid: 8\ndata: {"status'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    fronts.append(ScriptedFront(head + body, stream_of((8, FINAL))))
    result, seen, _ = follow(fronts[0])
    assert result.raw == DONE and [event.raw for event in seen] == [{"status": "generating"}]
    assert b"last-event-id: 7" in fronts[0].requests[1].lower()


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_that_breaks_off_is_taken_up_where_it_was(
    follow: Follow, fronts: list[ScriptedFront], is_cut: bool
) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING), is_cut=is_cut), stream_of((4, FINAL))))
    result, _, pauses = follow(fronts[0])
    assert result.raw == DONE and len(pauses) == 1
    sent, asked = fronts[0].requests
    request_id = json.loads(sent.split(b"\r\n\r\n")[1])["input"]["request_id"]
    assert asked.startswith(f"GET /stream/{request_id} ".encode())
    assert b"last-event-id: 3" in asked.lower()


def test_a_key_goes_with_every_request(follow: Follow, fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), stream_of((4, FINAL))))
    follow(fronts[0], key="planted")
    assert all(b"authorization: bearer planted" in request.lower() for request in fronts[0].requests)
    assert len(fronts[0].requests) == 2


def test_a_front_that_starts_again_is_waited_for(follow: Follow, fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), answer(503, {}), stream_of((4, FINAL))))
    assert follow(fronts[0])[0].raw == DONE


def test_a_job_that_the_front_never_had_is_sent_again_under_the_same_id(
    follow: Follow, fronts: list[ScriptedFront]
) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), answer(404, {}), stream_of((4, FINAL))))
    assert follow(fronts[0])[0].raw == DONE
    first, _, again = fronts[0].requests
    assert again.split(b"\r\n\r\n")[1] == first.split(b"\r\n\r\n")[1]


def test_a_refusal_is_handed_on(follow: Follow, fronts: list[ScriptedFront]) -> None:
    problems = [{"message": "must be", "field": "input.x", "allowed": [1]}]
    refusal = {"error": {"code": "request_rejected", "message": "no such modifier", "problems": problems}}
    fronts.append(ScriptedFront(answer(422, refusal)))
    with pytest.raises(RequestRefused, match="no such modifier") as raised:
        follow(fronts[0])
    assert (raised.value.status, raised.value.code) == (422, "request_rejected")
    assert (raised.value.problems[0].field, raised.value.problems[0].allowed) == ("input.x", [1])


def test_a_front_that_asks_for_patience_gets_it(follow: Follow, fronts: list[ScriptedFront]) -> None:
    busy = answer(503, {}).replace(b"Connection:", b"Retry-After: 7\r\nConnection:")
    fronts.append(ScriptedFront(busy, busy, stream_of((4, FINAL))))
    result, _, pauses = follow(fronts[0])
    assert result.raw == DONE and pauses == [7, 7]
    first, *_, last = fronts[0].requests
    assert first.split(b"\r\n\r\n")[1] == last.split(b"\r\n\r\n")[1]  # the same request id


def test_patience_has_an_end(follow: Follow, fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(answer(503, {}).replace(b"Connection:", b"Retry-After: 3600\r\nConnection:")))
    with pytest.raises(RequestRefused) as raised:
        follow(fronts[0])
    assert (raised.value.status, raised.value.retry_after_seconds) == (503, 3600)


class Restarting:
    """A front that is away for some tries and then has the job; `pause` counts the tries and brings it back."""

    def __init__(self, num_tries: int, front: ScriptedFront) -> None:
        self._left = num_tries
        self._port = int(front.url.rpartition(":")[2])
        self.pauses: list[float] = []
        self.back: list[ScriptedFront] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._left -= 1
        if self._left == 0:
            self.back.append(ScriptedFront(stream_of((4, FINAL)), answer(200, DONE), port=self._port))

    async def pause_async(self, seconds: float) -> None:
        self.pause(seconds)


def test_a_front_that_restarts_for_minutes_is_waited_for_once_it_has_taken_the_job(
    fronts: list[ScriptedFront],
) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING))))
    restarting = Restarting(20, fronts[0])
    with Client(fronts[0].url, pause=restarting.pause) as client:
        assert client.generate(Request(modifier="X")).raw == DONE
        assert client.result("x").raw == DONE
    assert 100 < sum(restarting.pauses) < 300
    fronts += restarting.back


async def test_a_front_that_restarts_is_waited_for_by_the_asynchronous_client(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING))))
    restarting = Restarting(20, fronts[0])
    async with AsyncClient(fronts[0].url, pause=restarting.pause_async) as client:
        assert (await client.generate(Request(modifier="X"))).raw == DONE
    fronts += restarting.back
    await asyncio.to_thread(restarting.back[0].ask_once)


def test_what_is_polled_is_asked_again_while_a_front_restarts(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(answer(200, {"status": "generating"})))
    restarting = Restarting(12, fronts[0])
    with Client(fronts[0].url, pause=restarting.pause) as client:
        assert client.result("x").status == "generating"
        client.result("x")
        assert restarting.back[0].requests[0].startswith(b"GET /result/x ")
        with pytest.raises(WorkerUnreachable):  # what changes something is not sent twice unasked
            _closed(restarting.back[0], client)
    fronts += restarting.back


def _closed(front: ScriptedFront, client: Client) -> None:
    front.ask_once()
    client.cancel("x")


def test_a_worker_that_was_never_there_is_named_at_once() -> None:
    pauses: list[float] = []
    with Client("http://127.0.0.1:9", pause=pauses.append) as client:
        for call in (lambda: client.generate(Request(modifier="X")), lambda: client.result("x"), client.queue):
            with pytest.raises(WorkerUnreachable):
                call()
    assert pauses == []


def test_a_front_that_stays_away_is_given_up(follow: Follow, fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING))))
    with pytest.raises(WorkerUnreachable):
        follow(fronts[0])
