"""Server of packs of custom nodes: routes and an application of their own, and messages to clients.

Packs are imported while the server listens already, so they get an application beside its own; what they register is
asked for every path that nobody else has.
"""

from __future__ import annotations

import asyncio
import io
import logging
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web
from PIL import Image

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.engine.log_context import log_context
from darkroom.engine.server import messages
from darkroom.engine.server.queue import Continuation, PromptQueue, QueuedPrompt
from darkroom.engine.server.runner import PromptRunner
from darkroom.engine.server.websocket import Clients
from darkroom.engine.settings import EngineSettings

if TYPE_CHECKING:
    from darkroom.engine.engine import Engine, PackReport

log = logging.getLogger(__name__)

JPEG_QUALITY = 95
UNENCODED_PREVIEW_IMAGE = 2

PromptHandler = Callable[[dict[str, Any]], dict[str, Any]]


class PackRoutes:
    """`engine/comfy/host.py::PackServer`. Made on the server's loop; packs use it from any thread."""

    def __init__(self, settings: EngineSettings, queue: PromptQueue, runner: PromptRunner, clients: Clients) -> None:
        self.app = web.Application(client_max_size=round(settings.max_upload_mb * 1024 * 1024))
        self.routes = web.RouteTableDef()
        self.loop = asyncio.get_running_loop()
        self.reports: list[PackReport] = []
        self._settings = settings
        self._queue = queue
        self._runner = runner
        self._clients = clients
        self._handlers: list[PromptHandler] = []
        self._is_open = False
        self._opening = asyncio.Lock()

    # --- for packs ---

    @property
    def client_id(self) -> str | None:
        """The client of the prompt whose nodes run: of the calling code's, else of the one that began last."""
        running = self._queue.all_running
        current = log_context().prompt_id
        own = [item for item in running if item.prompt_id == current] or running
        return own[-1].client_id if own else None

    @property
    def address(self) -> tuple[str, int]:
        return self._settings.listen, self._settings.port

    @property
    def num_waiting(self) -> int:
        return self._queue.remaining

    def send(self, event: Any, data: Any, sid: str | None) -> None:
        """Send a message: `event` is its name, or the number of a binary one."""
        payload = binary_message(event, data) if isinstance(event, int) else messages.encode((event, data))
        self.loop.call_soon_threadsafe(self._clients.send_encoded, payload, sid)

    def add_prompt_handler(self, handler: PromptHandler) -> None:
        self._handlers.append(handler)

    def connected(self) -> Mapping[str, object]:
        return self._clients.connected()

    def queue_lists(self) -> tuple[list[Any], list[Any]]:
        running = [item.as_json() for item in self._queue.all_running]
        return running, [item.as_json() for item in self._queue.waiting()]

    @property
    def number(self) -> int:
        """The number of the next prompt that asks for none."""
        return self._runner.number

    @number.setter
    def number(self, number: int) -> None:
        self._runner.number = number

    def queue_prompt(
        self,
        number: float,
        prompt_id: str,
        prompt: Mapping[str, Any],
        extra_data: Mapping[str, Any],
        outputs: list[str],
    ) -> frozenset[str]:
        """Queue a prompt unchecked. By a node it continues that node's prompt; return the nodes that differ from it.

        A prompt that ends badly takes those that continue it along.
        """
        current = log_context().prompt_id
        of = next((item for item in self._queue.all_running if item.prompt_id == current), None)
        link: Continuation | None = None
        if of is not None:
            before = (0, frozenset()) if of.continued is None else (of.continued.part, of.continued.changed)
            changed = {node_id for node_id, node in prompt.items() if node != of.prompt.get(node_id)}
            link = Continuation(of.prompt_id, before[0] + 1, before[1] | changed)
            secrets = {name: of.extra_data[name] for name in PARTNER_KEYS if name in of.extra_data}
            extra_data = {**secrets, **extra_data}
        item = QueuedPrompt(number, prompt_id, prompt, extra_data, tuple(outputs), link)
        self.loop.call_soon_threadsafe(self._runner.accept, item)
        return frozenset() if link is None else link.changed

    # --- for the server ---

    def load(self, engine: Engine) -> None:
        """Import the packs, on the thread that builds the engine."""
        self.reports = engine.load_custom_nodes(self)

    def change_prompt(self, body: dict[str, object]) -> dict[str, object]:
        """Pass a prompt's body through the handlers of all packs. A handler that fails is logged and skipped."""
        for handler in self._handlers:
            try:
                changed = handler(body)
            except Exception:  # noqa: BLE001 - a pack's handler
                log.exception("a pack's prompt handler failed")
            else:
                body = changed if isinstance(changed, dict) else body
        return body

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer by the packs' application; raise HTTPNotFound where it has no route."""
        await self._open()
        # A copy, since what the server's own routing has found out stays with the request.
        return await self.app._handle(request.clone())

    async def close(self) -> None:
        if self._is_open:
            await self.app.shutdown()
            await self.app.cleanup()

    async def _open(self) -> None:
        """Take in what the packs have registered; afterwards nothing can be added, as in ComfyUI."""
        async with self._opening:
            if self._is_open:
                return
            self.app.add_routes(self.routes)
            below_api = [item for item in self.routes if isinstance(item, web.RouteDef)]
            self.app.add_routes([web.route(item.method, f"/api{item.path}", item.handler) for item in below_api])
            self.app.freeze()
            await self.app.startup()
            self._is_open = True


def binary_message(event: int, data: Any) -> bytes:
    """Encode a binary message: bytes as they are, or an image `(format, Pillow image, largest side or None)`."""
    if isinstance(data, (bytes, bytearray)):
        return struct.pack(">I", event) + bytes(data)
    image_format, image, largest_px = data
    if largest_px is not None:
        image = image.copy()
        image.thumbnail((largest_px, largest_px), Image.Resampling.LANCZOS)
    is_png = image_format == "PNG"
    encoded = io.BytesIO()
    if is_png:
        image.save(encoded, "PNG", compress_level=1)
    else:
        image.convert("RGB").save(encoded, "JPEG", quality=JPEG_QUALITY)
    kind = messages.PREVIEW_IMAGE if event == UNENCODED_PREVIEW_IMAGE else event
    return struct.pack(">II", kind, 2 if is_png else 1) + encoded.getvalue()
