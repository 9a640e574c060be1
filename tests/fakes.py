"""Fakes we own: a small server with ComfyUI's API whose nodes do what a test tells them to.

It is a real aiohttp server on a free port. Node classes: `Draw` saves one small file, `Paint` takes a file and saves a
real PNG that says how it was made, `Say` shows a text, `Wait` runs until it is interrupted, the test releases it or
`seconds` pass, `Steps` goes `steps` steps and at the step `hold` waits for `go_on`, `Parts` saves a file and queues the
prompt once more until there are `parts` of them, `Fail` raises, `OutOfMemory` raises like the device; all are output
nodes.

A test that looks at a job while it runs sends `wait()` and calls `release` or `release_all` when it has looked: a time
that ends the job by itself may be over before a busy machine comes to look. A number of seconds is for a test that
needs a run to have lasted so long, and looks at it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.served import served

OBJECT_INFO: dict[str, Any] = {
    name: {
        "input": {"required": required, "optional": {}},
        "output": ["LATENT"] if name == "Steps" else [],  # it samples
        "output_node": True,
        "name": name,
    }
    for name, required in {
        "Draw": {"text": ["STRING", {}], "size": ["INT", {"default": 8, "min": 1, "max": 64}]},
        "Paint": {"text": ["STRING", {}], "image": [["none.png"], {"image_upload": True}]},
        "Say": {"text": ["STRING", {}]},
        "Wait": {"seconds": ["FLOAT", {"default": 1.0, "min": 0.0, "max": 600.0}]},
        "Steps": {"steps": ["INT", {"default": 4}], "latent_image": ["INT", {}], "hold": ["INT", {"default": 0}]},
        "Parts": {"parts": ["INT", {"default": 3}]},
        "Fail": {"kind": [["ValueError", "BadModelFile", "DeviceLost"], {}]},
        "OutOfMemory": {},
        "VAEDecode": {"text": ["STRING", {}]},
        "VAEDecodeTiled": {"text": ["STRING", {}], "size": ["INT", {"default": 2}]},
    }.items()
}


Lie = Callable[[web.Request], Awaitable[web.StreamResponse]]


def draw(text: str = "hello", size: int = 8) -> dict[str, Any]:
    return {"1": {"class_type": "Draw", "inputs": {"text": text, "size": size}}}


def paint(text: str = "hello", image: str = "none.png") -> dict[str, Any]:
    return {"1": {"class_type": "Paint", "inputs": {"text": text, "image": image}}}


def say(text: str = "hello") -> dict[str, Any]:
    return {"1": {"class_type": "Say", "inputs": {"text": text}}}


def wait(seconds: float = 600.0) -> dict[str, Any]:
    return {"1": {"class_type": "Wait", "inputs": {"seconds": seconds}}}


def steps(num_steps: int = 4, hold: int = 0) -> dict[str, Any]:
    return {"1": draw()["1"], "2": {"class_type": "Steps", "inputs": _steps(num_steps, hold)}}


def _steps(num_steps: int, hold: int) -> dict[str, Any]:
    return {"steps": num_steps, "latent_image": 0, "hold": hold}


def parts(num_parts: int = 3) -> dict[str, Any]:
    return {"1": {"class_type": "Parts", "inputs": {"parts": num_parts}}}


def fail(kind: str = "ValueError") -> dict[str, Any]:
    return {"1": {"class_type": "Fail", "inputs": {"kind": kind}}}


class FakeEngine:
    """Use as `async with FakeEngine(folder) as engine`; `runs` counts the prompts that began."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder
        self._listen = host, port
        self.runs: list[str] = []
        self.frees: list[dict[str, Any]] = []
        self.history: dict[str, Any] = {}
        self.uploaded: list[str] = []
        self.traceparents: list[str] = []  # of the prompts it was sent; empty for none
        self.url = ""
        self.lacks: frozenset[str] = frozenset()  # node classes that it does not list
        self.fails: frozenset[str] = frozenset()  # node classes that raise here
        self.lists: dict[str, Any] = {}  # further node classes, by name
        self.devices: list[dict[str, Any]] = [{"name": "cpu", "type": "cpu"}]
        self.received: dict[str, dict[str, Any]] = {}  # extra data of the prompts it was sent, by id
        self.takes_uuids_alone = False  # as ids of prompts, like ComfyUI 0.33.0
        self.num_described = 0  # how often it was asked for its nodes
        self.is_silent = False  # tells nothing on its sockets
        self.ignores_interrupts = False  # as a node that does not look up
        self.is_down = False  # drops every request, as when the process is gone
        self.lie: Lie | None = None  # what it answers instead
        self.lies_at = ""  # to requests that begin with this, as `GET /queue`; empty: to none
        self.is_hung = False  # answers nothing meanwhile, as when a node holds the interpreter
        self.seconds_to_take = 0.0  # how long it looks at a prompt before it has it
        self.loses_answers = 0  # so many prompts are taken without the sender hearing of it
        self.extra_outputs: dict[str, Any] = {}  # by node id, beside what the nodes of a prompt show
        self.loses_answers_to = "/prompt"  # or what else is posted
        self._queue: asyncio.Queue[tuple[str, dict[str, Any], str]] = asyncio.Queue()
        self._pending: list[str] = []
        self._extra_data: dict[str, Any] = {}
        self._running: str | None = None
        self._interrupted = asyncio.Event()
        self._released = asyncio.Event()
        self._all_released = asyncio.Event()
        self.go_on = asyncio.Event()
        self.drops_parts = False  # a prompt that a node queues is taken away at once
        self.part_begun = asyncio.Event()
        self.hold_parts = asyncio.Event()  # while it is not set, a part does not end
        self.hold_parts.set()
        self._serving = contextlib.AsyncExitStack()
        self._sockets: dict[str, web.WebSocketResponse] = {}

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30, middlewares=[self._drop])
        app.add_routes(
            [
                web.get("/system_stats", self._stats),
                web.get("/object_info", self._object_info),
                web.post("/prompt", self._prompt),
                web.get("/history/{id}", self._history),
                web.get("/history", self._whole_history),
                web.get("/queue", self._get_queue),
                web.post("/queue", self._post_queue),
                web.post("/interrupt", self._interrupt),
                web.get("/view", self._view),
                web.post("/upload/image", self._upload),
                web.get("/ws", self._socket),
                web.post("/free", self._free),
                web.post("/{path:echo.*}", self._echo),
                *self.more_routes(),
            ]
        )
        self.url = await self._serving.enter_async_context(served(app, *self._listen))
        self._worker = asyncio.create_task(self._work())
        return self

    def more_routes(self) -> Sequence[web.RouteDef]:
        """Further routes of a kind of engine."""
        return ()

    async def __aexit__(self, *_: object) -> None:
        self._worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._worker
        await self.drop_sockets()
        await self._serving.aclose()

    @property
    def is_idle(self) -> bool:
        return self._running is None and not self._pending

    @property
    def pending(self) -> list[str]:
        return list(self._pending)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def has_client(self, client_id: str) -> bool:
        return client_id in self._sockets

    async def drop_sockets(self) -> None:
        for socket in list(self._sockets.values()):
            await socket.close()

    async def say(self, kind: str, **data: Any) -> None:
        """Send a message to every client."""
        for client_id in list(self._sockets):
            await self._send(client_id, kind, data)

    def release(self) -> None:
        """End the `Wait` that runs now, if one does."""
        self._released.set()

    def release_all(self) -> None:
        """End the `Wait` that runs now, if one does, and each that begins later."""
        self._all_released.set()

    def forget_everything(self) -> None:
        """Forget all prompts, as after a restart of the engine."""
        self.history.clear()
        self._pending.clear()
        self._interrupted.set()
        self._running = None

    @web.middleware
    async def _drop(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.is_down and request.transport is not None:
            request.transport.abort()
        if self.lie is not None and self.lies_at and f"{request.method} {request.path}".startswith(self.lies_at):
            return await self.lie(request)
        while self.is_hung:  # noqa: ASYNC110 - a test sets it from outside
            await asyncio.sleep(0.01)
        response: web.StreamResponse = await handler(request)
        is_lost = self.loses_answers and (request.method, request.path) == ("POST", self.loses_answers_to)
        if is_lost and request.transport is not None:
            self.loses_answers -= 1
            request.transport.abort()
        return response

    async def _stats(self, _request: web.Request) -> web.Response:
        return web.json_response({"system": {}, "devices": self.devices})

    async def _object_info(self, _request: web.Request) -> web.Response:
        self.num_described += 1
        listed = {name: spec for name, spec in OBJECT_INFO.items() if name not in self.lacks}
        return web.json_response({**listed, **self.lists})

    async def _prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.takes_uuids_alone and not _is_uuid(body.get("prompt_id")):
            return _refusal("invalid_prompt_id", "prompt_id must be a valid UUID")
        if not body["prompt"]:
            return _refusal("prompt_no_outputs", "Prompt has no outputs")
        self.traceparents.append(request.headers.get("traceparent", ""))
        await asyncio.sleep(self.seconds_to_take)
        prompt_id = body.get("prompt_id") or str(uuid.uuid4())
        self._pending.append(prompt_id)
        self._extra_data[prompt_id] = self.received[prompt_id] = body.get("extra_data", {})
        self._queue.put_nowait((prompt_id, body["prompt"], body.get("client_id", "")))
        return web.json_response({"prompt_id": prompt_id, "number": 0, "node_errors": {}})

    async def _history(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["id"]
        return web.json_response({prompt_id: self.history[prompt_id]} if prompt_id in self.history else {})

    async def _whole_history(self, request: web.Request) -> web.Response:
        return web.json_response(dict(list(self.history.items())[-int(request.query["max_items"]) :]))

    async def _get_queue(self, _request: web.Request) -> web.Response:
        running = [self._queued(self._running)] if self._running else []
        return web.json_response({"queue_running": running, "queue_pending": [self._queued(p) for p in self._pending]})

    def _queued(self, prompt_id: str) -> list[Any]:
        return [0, prompt_id, {}, self._extra_data.get(prompt_id, {}), []]

    def _put_part(self, prompt_id: str, prompt: dict[str, Any], client_id: str) -> None:
        """Queue a prompt as a node of a pack does it: with the extra data of its own."""
        if self.drops_parts:
            return
        name = str(uuid.uuid4())
        self._pending.append(name)
        self._extra_data[name] = self._extra_data.get(prompt_id, {})
        self._queue.put_nowait((name, prompt, client_id))

    async def _post_queue(self, request: web.Request) -> web.Response:
        for prompt_id in (await request.json()).get("delete", ()):
            if prompt_id in self._pending:
                self._pending.remove(prompt_id)
        return web.Response()

    async def _interrupt(self, request: web.Request) -> web.Response:
        if (await request.json()).get("prompt_id") in (None, self._running) and not self.ignores_interrupts:
            self._interrupted.set()
        return web.Response()

    async def _free(self, request: web.Request) -> web.Response:
        self.frees.append(await request.json())
        return web.Response()

    async def _echo(self, request: web.Request) -> web.Response:
        seen = {"path": request.raw_path, "headers": dict(request.headers), "body": await request.text()}
        return web.json_response(seen)

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        image = form["image"]
        assert isinstance(image, web.FileField)
        (self.folder / image.filename).write_bytes(image.file.read())
        self.uploaded.append(image.filename)
        return web.json_response({"name": image.filename, "subfolder": form["subfolder"], "type": "input"})

    async def _view(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self.folder / request.query["subfolder"] / request.query["filename"])

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets[request.query["clientId"]] = socket
        async for message in socket:
            if message.type is WSMsgType.ERROR:
                break
        return socket

    async def _send(self, client_id: str, kind: str, data: dict[str, Any]) -> None:
        socket = self._sockets.get(client_id)
        if socket is not None and not socket.closed and not self.is_silent:
            with contextlib.suppress(ConnectionError):
                await socket.send_str(json.dumps({"type": kind, "data": data}))

    async def _send_preview(self, client_id: str, prompt_id: str, node_id: str, image: bytes) -> None:
        about = {"prompt_id": prompt_id, "node_id": node_id, "image_type": "image/jpeg"}
        encoded = json.dumps(about).encode()
        socket = self._sockets.get(client_id)
        if socket is not None:
            await socket.send_bytes(struct.pack(">II", 4, len(encoded)) + encoded + image)

    async def _work(self) -> None:
        while True:
            prompt_id, prompt, client_id = await self._queue.get()
            if prompt_id not in self._pending:
                continue
            self._pending.remove(prompt_id)
            self._running = prompt_id
            self._interrupted.clear()
            self._released.clear()
            self.runs.append(prompt_id)
            await self._send(client_id, "execution_start", {"prompt_id": prompt_id, "timestamp": _now_ms()})
            entry = await self._run(prompt_id, prompt, client_id)
            entry["prompt"] = [0, prompt_id, prompt, self._extra_data.pop(prompt_id, {}), list(prompt)]
            if self._running == prompt_id:
                self.history[prompt_id] = entry
            self._running = None
            await self._send(client_id, "executing", {"node": None, "prompt_id": prompt_id})

    async def _run(self, prompt_id: str, prompt: dict[str, Any], client_id: str) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for node_id, node in prompt.items():
            where = {
                "prompt_id": prompt_id,
                "node_id": node_id,
                "node_type": node["class_type"],
                "timestamp": _now_ms(),
            }
            await self._send(client_id, "executing", {"node": node_id, "prompt_id": prompt_id})
            inputs = node["inputs"]
            if node["class_type"] in self.fails:
                data = {**where, "exception_type": "ValueError", "exception_message": "it broke"}
                return _entry({}, "error", [["execution_error", data]])
            if node["class_type"] in ("Draw", "VAEDecodeTiled", *self.lists):
                name = f"{prompt_id}_{node_id}.png"
                (self.folder / name).write_text(str(inputs["text"]) * int(inputs.get("size", 1)))
                outputs[node_id] = {"images": [{"filename": name, "subfolder": "", "type": "output"}]}
            elif node["class_type"] == "Paint":
                name = f"{prompt_id}_{node_id}.png"
                _paint(self.folder / name, prompt)
                outputs[node_id] = {"images": [{"filename": name, "subfolder": "", "type": "output"}]}
            elif node["class_type"] == "Parts":
                self.part_begun.set()
                await self.hold_parts.wait()
                name = f"{prompt_id}_{node_id}.png"
                (self.folder / name).write_text("part")
                outputs[node_id] = {"images": [{"filename": name, "subfolder": "", "type": "output"}]}
                if inputs["parts"] > 1:
                    self._put_part(prompt_id, parts(inputs["parts"] - 1), client_id)
                    outputs[node_id]["unfinished_batch"] = [True]
                await asyncio.sleep(0.03)
                if self._interrupted.is_set():  # too late for what it has queued
                    return _entry({}, "error", [["execution_interrupted", where]])
            elif node["class_type"] == "Say":
                outputs[node_id] = {"text": [inputs["text"]]}
            elif node["class_type"] == "Wait":
                data = {"value": 1, "max": 4, "prompt_id": prompt_id, "node": node_id}
                await self._send(client_id, "progress", data)
                await self._wait(inputs["seconds"])
                if self._interrupted.is_set():
                    return _entry({}, "error", [["execution_interrupted", where]])
                name = f"{prompt_id}_{node_id}.png"
                (self.folder / name).write_text("waited")
                outputs[node_id] = {"images": [{"filename": name, "subfolder": "", "type": "output"}]}
            elif node["class_type"] == "Steps":
                for step in range(1, int(inputs["steps"]) + 1):
                    if "preview_method" in self._extra_data.get(prompt_id, {}):
                        await self._send_preview(client_id, prompt_id, node_id, f"image {step}".encode())
                    data = {"value": step, "max": inputs["steps"], "prompt_id": prompt_id, "node": node_id}
                    await self._send(client_id, "progress", data)
                    if step == inputs["hold"]:
                        await self.go_on.wait()
            else:
                kind = inputs.get("kind", "torch.OutOfMemoryError")
                data = {**where, "exception_type": kind, "exception_message": "it broke"}
                return _entry({}, "error", [["execution_error", data]])
        return _entry({**outputs, **self.extra_outputs}, "success", [["execution_success", {"prompt_id": prompt_id}]])

    async def _wait(self, seconds: float) -> None:
        """Return when the prompt is interrupted or released, after `seconds` at the latest."""
        events = (self._interrupted, self._released, self._all_released)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()


def _entry(outputs: dict[str, Any], status: str, messages: list[Any]) -> dict[str, Any]:
    return {
        "prompt": [],
        "outputs": outputs,
        "status": {"status_str": status, "completed": status == "success", "messages": messages},
        "meta": {},
    }


def _refusal(kind: str, message: str) -> web.Response:
    error = {"type": kind, "message": message, "details": "", "extra_info": {}}
    return web.json_response({"error": error, "node_errors": {}}, status=400)


def _is_uuid(value: object) -> bool:
    """Return True for an id in the form that ComfyUI 0.33.0 takes."""
    with contextlib.suppress(ValueError):
        return value is None or str(uuid.UUID(str(value))) == value
    return False


def _paint(path: Path, prompt: dict[str, Any]) -> None:
    """Write an image as ComfyUI saves it, the prompt within."""
    info = PngInfo()
    info.add_text("prompt", json.dumps(prompt))
    Image.linear_gradient("L").resize((64, 48)).convert("RGB").save(path, pnginfo=info)


def _now_ms() -> int:
    return int(time.time() * 1000)


@contextlib.asynccontextmanager
async def running_engine(folder: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(folder) as engine:
        yield engine
