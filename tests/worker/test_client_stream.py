"""The client over a connection that drops, is refused or goes silent, against a server that does it on purpose."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from worker.client_stream import ResultStream, WorkerUnreachable


class ScriptedFront:
    """Answers the connections one after another with the given bytes and closes; `requests` are what came."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._socket = socket.create_server(("127.0.0.1", 0))
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


def follow(front: ScriptedFront, api_key: str = "") -> tuple[dict[str, Any], list[Any]]:
    seen: list[Any] = []
    stream = ResultStream(front.url, {"modifier": "X"}, seen.append, api_key=api_key, pause=lambda _: None)
    return stream.run(), seen


def test_a_stream_that_holds_is_followed_to_its_result(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((1, RUNNING), (2, FINAL))))
    result, seen = follow(fronts[0])
    assert (result, seen) == (DONE, [RUNNING])
    assert fronts[0].requests[0].startswith(b"POST /generate/stream")


def test_keep_alives_and_a_cut_event_are_no_events(fronts: list[ScriptedFront]) -> None:
    body = b': hi\n\nid: 7\ndata: {"status":\ndata: "generating"}\n\n: keep-alive\n\nid: 8\ndata: {"status'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    fronts.append(ScriptedFront(head + body, stream_of((8, FINAL))))
    result, seen = follow(fronts[0])
    assert result == DONE and seen[0] == {"status": "generating"}
    assert len([event for event in seen if "status" in event]) == 1
    assert b"last-event-id: 7" in fronts[0].requests[1].lower()


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_that_breaks_off_is_taken_up_where_it_was(fronts: list[ScriptedFront], is_cut: bool) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING), is_cut=is_cut), stream_of((4, FINAL))))
    result, _ = follow(fronts[0])
    assert result == DONE
    sent, asked = fronts[0].requests
    request_id = json.loads(sent.split(b"\r\n\r\n")[1])["input"]["request_id"]
    assert asked.startswith(f"GET /stream/{request_id} ".encode())
    assert b"last-event-id: 3" in asked.lower()


def test_a_key_goes_with_every_request(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), stream_of((4, FINAL))))
    follow(fronts[0], api_key="planted")
    assert all(b"authorization: bearer planted" in request.lower() for request in fronts[0].requests)
    assert len(fronts[0].requests) == 2


def test_a_front_that_starts_again_is_waited_for(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), answer(503, {}), stream_of((4, FINAL))))
    assert follow(fronts[0])[0] == DONE


def test_a_job_that_the_front_never_had_is_sent_again_under_the_same_id(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING)), answer(404, {}), stream_of((4, FINAL))))
    assert follow(fronts[0])[0] == DONE
    first, _, again = fronts[0].requests
    assert again.split(b"\r\n\r\n")[1] == first.split(b"\r\n\r\n")[1]


def test_a_refusal_is_handed_on(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(answer(422, {"message": "no such modifier"})))
    assert follow(fronts[0])[0] == {"message": "no such modifier"}


def test_a_front_that_stays_away_is_given_up(fronts: list[ScriptedFront]) -> None:
    fronts.append(ScriptedFront(stream_of((3, RUNNING))))
    with pytest.raises(WorkerUnreachable):
        follow(fronts[0])
