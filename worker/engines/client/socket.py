"""EngineSocket: the WebSocket on which one engine reports the progress of prompts.

It is a hint only: a lost connection is made again, and whatever happened meanwhile is looked up in the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import structlog
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import WebSocketException

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.engines import answers
from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.client.runs import Runs
from darkroom.worker.engines.http import MAX_ANSWER_BYTES
from darkroom.worker.engines.preview_frames import read_frame
from darkroom.worker.errors import EngineAnswerInvalid
from darkroom.worker.guard.network_errors import cause_of

UNREAD = ("status", "progress_state", "executed", "execution_success", "execution_interrupted", "execution_error")
"""Types of messages that say nothing to the front, which reads ends from the history: an engine of ours omits them."""
FEATURE_FLAGS = json.dumps(
    {
        "type": "feature_flags",
        "data": {"supports_preview_metadata": True, "darkroom_saving": True, "darkroom_unread": UNREAD},
    }
)
MAX_MESSAGE_LENGTH = 1024 * 1024  # of a text on the socket that is read: a longer one is no progress report
OPEN_SECONDS = 5.0
BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)

log = structlog.get_logger("engine.client")


class EngineSocket:
    """Task that listens to one engine and passes on what it reports of `runs`.

    `client_id` names the socket to the engine, which reports the prompts submitted with it.
    """

    def __init__(self, address: EngineAddress, client_id: str, runs: Runs) -> None:
        self._address = address
        self.client_id = client_id
        self._runs = runs
        self._task: asyncio.Task[None] | None = None
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """True while reports arrive."""
        return self._is_open

    async def start(self) -> None:
        """Start to listen; a lost connection is made again."""
        self._task = asyncio.create_task(self._listen(), name="engine-socket")

    async def close(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        num_losses = 0
        while True:
            try:
                async with self._connect() as socket:
                    await socket.send(FEATURE_FLAGS)
                    self._is_open, num_losses = True, 0
                    self._runs.look_all()
                    async for message in socket:
                        if isinstance(message, str):
                            self._on_text(message)
                        elif (frame := read_frame(message)) is not None:
                            self._runs.on_preview(frame)
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                log.debug("engine socket lost", reason=cause_of(error))
            self._is_open = False
            self._runs.look_all()
            num_losses += 1
            await asyncio.sleep(BACKOFF.seconds(num_losses))

    def _connect(self) -> connect:
        """Return the engine's WebSocket as a context manager."""
        uri = f"ws{self._address.http_url.removeprefix('http')}/ws?clientId={self.client_id}"
        options: dict[str, Any] = {
            "max_size": MAX_ANSWER_BYTES,
            "compression": None,
            "proxy": None,
            "open_timeout": OPEN_SECONDS,
            "additional_headers": self._address.headers,
        }
        unix = self._address.socket
        return connect(uri, **options) if unix is None else unix_connect(str(unix.path), uri, **options)

    def _on_text(self, text: str) -> None:
        try:
            message = answers.parse("WebSocket", text.encode()) if len(text) <= MAX_MESSAGE_LENGTH else None
        except EngineAnswerInvalid as error:  # a hint that says nothing
            log.warning("engine message invalid", reason=error.message)
            return
        if not isinstance(message, Mapping):
            return
        data = message.get("data")
        if isinstance(data, Mapping):
            self._runs.on_message(str(message.get("type", "")), data)
