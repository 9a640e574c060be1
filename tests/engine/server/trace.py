"""Recorded traffic of ComfyUI (`reference/ws_trace`), sent again to a server, and brought into a comparable form.

Ids become the order of their prompts; times, sizes, `status` messages and the interleaving of HTTP and WebSocket are
left out; of an interrupted run also the steps, since how many there were is chance.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

WAIT_SECONDS = 60.0
TEMP_SUFFIX = re.compile(r"_temp_[a-z]{5}_")
UUID = re.compile(r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$")
NOT_NEEDED = ("UpscaleModelLoader", "InpaintModelConditioning")
INTERRUPTED_STEPS, ENDLESS_STEPS = 60, 10_000  # of the prompts that recordings interrupt, and as they are sent
ANY_LENGTH = ("traceback", "current_inputs", "current_outputs", "exception_message")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def messages(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["dir"] == "ws_in"]


def requests(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["dir"] == "http"]


LATER_FLAGS: Mapping[str, Any] = {
    "supports_model_type_tags": True,
    "extension": {"manager": {"supports_v4": True}},
    "node_replacements": True,
    "assets": False,
}
"""Features that ComfyUI reports since the release of the recordings."""


def comparable(entries: list[dict[str, Any]]) -> list[Any]:
    """The messages of a client, as they should be equal."""
    ids: dict[str, str] = {}
    interrupted = {data["prompt_id"] for kind, data in _json_messages(entries) if kind == "execution_interrupted"}
    shown: list[Any] = []
    current: str | None = None
    for entry in messages(entries):
        if "binary" in entry:
            if current not in interrupted:
                shown.append(("binary", entry["binary"]["event_type"], entry["binary"].get("metadata", {}).keys()))
            continue
        kind, data = entry["json"]["type"], entry["json"]["data"]
        current = data.get("prompt_id", current)
        if kind == "feature_flags":
            data = {name: flag for name, flag in data.items() if name not in LATER_FLAGS or flag != LATER_FLAGS[name]}
        if kind == "status" or (current in interrupted and _is_step(kind, data)):
            continue
        shown.append((kind, _plain(data, ids)))
    return shown


def without_order_of_outputs(shown: list[Any]) -> list[str]:
    """Messages of nodes in no order, without the sums of them."""
    return sorted(repr(message) for message in shown if message[0] != "progress_state")


def _json_messages(entries: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in messages(entries):
        if "json" in entry:
            yield entry["json"]["type"], entry["json"]["data"]


def _is_step(kind: str, data: dict[str, Any]) -> bool:
    if kind == "progress_state":
        return any(node["state"] == "running" and node["value"] > 0 for node in data["nodes"].values())
    return kind == "progress"


def _plain(value: Any, ids: dict[str, str], key: str = "") -> Any:
    if key == "prompt_id":
        return ids.setdefault(value, f"prompt {len(ids)}")
    if key == "timestamp":
        return type(value).__name__
    if key in ANY_LENGTH:
        return type(value).__name__
    if isinstance(value, dict):
        return {name: _plain(item, ids, name) for name, item in value.items() if name != "code"}
    if isinstance(value, list):
        return [_plain(item, ids) for item in value]
    return TEMP_SUFFIX.sub("_temp_?_", value) if isinstance(value, str) else value


def adapted(prompt: dict[str, Any]) -> dict[str, Any]:
    """Without the nodes that no output needs and we have not yet; a latent of another model for one of another size.

    Latents get larger, so that a run of the small network takes long enough to be looked at, and prompts that are to be
    interrupted have more steps than a run makes meanwhile.
    """
    kept = {node_id: node for node_id, node in prompt.items() if node.get("class_type") not in NOT_NEEDED}
    for node_id, node in kept.items():
        if node.get("class_type") == "EmptySD3LatentImage":
            kept[node_id] = {"class_type": "EmptyLatentImage", "inputs": {**node["inputs"], "width": 128}}
        elif node.get("class_type") == "EmptyLatentImage" and node["inputs"].get("width") == 64:
            kept[node_id] = {**node, "inputs": {**node["inputs"], "width": 256, "height": 256}}
        elif node.get("class_type") == "KSampler" and node["inputs"].get("steps") == INTERRUPTED_STEPS:
            kept[node_id] = {**node, "inputs": {**node["inputs"], "steps": ENDLESS_STEPS}}
    return kept


class Replay:
    """Sends a recording's requests with a client connected, each when the recording's client could have sent it."""

    def __init__(self, url: str, recording: list[dict[str, Any]]) -> None:
        self.url = url
        self.recording = recording
        self.received: list[dict[str, Any]] = []
        self.answers: list[tuple[dict[str, Any], int, Any]] = []
        self._ids: dict[str, str] = {}
        self._news = asyncio.Event()

    async def run(self, client_id: str) -> None:
        async with aiohttp.ClientSession() as session:
            socket = await session.ws_connect(f"{self.url}/ws?clientId={client_id}", max_msg_size=0)
            reader = asyncio.create_task(self._read(socket))
            await self._until(lambda: bool(self.received))
            for position, entry in enumerate(self.recording):
                if entry["dir"] == "ws_out":
                    await socket.send_json(entry["json"])
                elif entry["dir"] == "http":
                    await self._until_recorded(self.recording[:position])
                    await self._send(session, entry)
            await self._until_recorded(self.recording)
            reader.cancel()
            await socket.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self.received.append({"dir": "ws_in", "json": json.loads(message.data)})
            elif message.type is aiohttp.WSMsgType.BINARY:
                self.received.append({"dir": "ws_in", "binary": _binary(message.data)})
            self._news.set()

    async def _until_recorded(self, past: list[dict[str, Any]]) -> None:
        """Until every run that the recording's client knew to be over is over, and the latest one is sampling."""
        over = sum(_is_end(entry) for entry in past)
        await self._until(lambda: sum(_is_end(entry) for entry in self.received) >= over)
        since = next((i for i in range(len(past) - 1, -1, -1) if _is_end(past[i])), 0)
        if any(_is_progress(entry) for entry in past[since:]):
            seen = max((i for i, entry in enumerate(self.received) if _is_end(entry)), default=0)
            await self._until(lambda: any(_is_progress(entry) for entry in self.received[seen:]))

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def _send(self, session: aiohttp.ClientSession, entry: dict[str, Any]) -> None:
        path, body = self._own_ids(entry["path"]), entry.get("request")
        if isinstance(body, dict) and "NoSuchNode" not in json.dumps(body):
            body = {**body, "prompt": adapted(body["prompt"])} if body.get("prompt") else body
        if entry["method"] == "POST" and body is None and path.startswith(("/upload", "/prompt")):
            return  # a form or a body that the recording does not hold
        own = None if body is None else json.loads(self._own_ids(json.dumps(body)))
        async with session.request(entry["method"], self.url + path, json=own) as response:
            is_json = response.content_type == "application/json"
            answer = await response.json() if is_json else None
            if path == "/prompt" and response.status == 200 and isinstance(entry.get("json"), dict) and answer:
                self._ids[entry["json"].get("prompt_id", "")] = answer.get("prompt_id", "")
            self.answers.append((entry, response.status, answer))

    def _own_ids(self, text: str) -> str:
        for recorded, own in self._ids.items():
            if recorded:
                text = text.replace(recorded, own)
        return text


def _binary(data: bytes) -> dict[str, Any]:
    event_type = int.from_bytes(data[:4], "big")
    if event_type != 4:
        return {"event_type": event_type}
    return {"event_type": 4, "metadata": json.loads(data[8 : 8 + int.from_bytes(data[4:8], "big")])}


def _is_end(entry: dict[str, Any]) -> bool:
    message = entry.get("json", {})
    return entry["dir"] == "ws_in" and message.get("type") == "executing" and message["data"]["node"] is None


def _is_progress(entry: dict[str, Any]) -> bool:
    message: dict[str, Any] = entry.get("json", {})
    return bool(entry["dir"] == "ws_in" and message.get("type") == "progress")


def same_shape(recorded: Any, own: Any, where: str = "") -> list[str]:
    """Return the places where `own` lacks a key or has another type. More keys are fine; null fits anything."""
    if recorded is None or own is None:
        return []
    if isinstance(recorded, dict) and isinstance(own, dict):
        if any(UUID.match(key) for key in recorded):
            return same_shape(list(recorded.values()), list(own.values()), where)
        missing = [f"{where}.{key} is missing" for key in recorded if key not in own]
        both = [same_shape(recorded[key], own[key], f"{where}.{key}") for key in recorded if key in own]
        return missing + [problem for problems in both for problem in problems]
    if isinstance(recorded, list) and isinstance(own, list):
        pairs = zip(recorded, own, strict=False)
        return [problem for a, b in pairs for problem in same_shape(a, b, f"{where}[]")]
    numbers = (int, float)
    if isinstance(recorded, numbers) and isinstance(own, numbers):
        return []
    return [] if type(recorded) is type(own) else [f"{where}: {type(own).__name__}, not {type(recorded).__name__}"]
