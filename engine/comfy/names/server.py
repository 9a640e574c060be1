"""`server`: `PromptServer.instance`, implemented by the engine's server."""

from __future__ import annotations

import asyncio
import uuid  # noqa: F401 - packs use it by this module's name, as in ComfyUI
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from aiohttp import web

from darkroom.contract.graph.prompt import parse_prompt
from darkroom.engine.comfy.host import HOST, PackServer
from darkroom.engine.comfy.missing_symbol import leave_to_pack, not_supported
from darkroom.engine.comfy.names.protocol import BinaryEventTypes
from darkroom.engine.nodes.running_call import running_context

ITEM_LENGTHS: Final = (5, 6)  # the sixth has credentials apart, in later releases


class _Instance:
    """Descriptor of `PromptServer.instance`, the server of the engine whose packs are loaded."""

    def __get__(self, instance: object, owner: type[PromptServer]) -> PromptServer:
        return owner(HOST.get().server)


class _PromptServerClass(type):
    own_names: frozenset[str] = frozenset()

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, object]) -> None:
        super().__init__(name, bases, members)
        type.__setattr__(cls, "own_names", frozenset(members))

    def __setattr__(cls, name: str, value: object) -> None:
        """Set an attribute. A method that a pack puts there is called by packs alone, not by the engine."""
        if name in cls.own_names and not name.startswith("__"):
            leave_to_pack(f"server.PromptServer.{name}")
        super().__setattr__(name, value)


class PromptServer(metaclass=_PromptServerClass):
    """Stateless access to the engine's server, which is None when the engine runs as a library."""

    instance = _Instance()

    def __init__(self, server: PackServer | None) -> None:
        object.__setattr__(self, "_server", server)

    @property
    def _there(self) -> PackServer:
        server: PackServer | None = vars(self)["_server"]
        if server is None:
            raise not_supported("PromptServer in an engine without a server")
        return server

    @property
    def routes(self) -> web.RouteTableDef:
        """Route table. Without a server the routes are accepted and never called."""
        server: PackServer | None = vars(self)["_server"]
        routes: web.RouteTableDef = web.RouteTableDef() if server is None else server.routes
        return routes

    @property
    def app(self) -> web.Application:
        server: PackServer | None = vars(self)["_server"]
        app: web.Application = web.Application() if server is None else server.app
        return app

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._there.loop
        return loop

    @property
    def client_id(self) -> str | None:
        """Client of the running prompt."""
        server: PackServer | None = vars(self)["_server"]
        return None if server is None else server.client_id

    @property
    def last_node_id(self) -> str | None:
        context = running_context()
        return None if context is None else context.node_id

    @property
    def last_prompt_id(self) -> str | None:
        context = running_context()
        return None if context is None else context.prompt_id

    @property
    def number(self) -> int:
        """Number of the next prompt that asks for none. It may be set."""
        return self._there.number

    @property
    def address(self) -> str:
        return self._there.address[0]

    @property
    def port(self) -> int:
        return self._there.address[1]

    @property
    def supports(self) -> list[str]:
        return ["custom_nodes_from_web"]

    @property
    def sockets(self) -> dict[str, object]:
        """Connected clients by id."""
        return dict(self._there.connected())

    @property
    def prompt_queue(self) -> PromptQueue:
        server: PackServer | None = vars(self)["_server"]
        return PromptQueue(server)

    def send_sync(self, event: object, data: object, sid: str | None = None) -> None:
        """Send a message to one client, or to all; callable from any thread."""
        server: PackServer | None = vars(self)["_server"]
        if server is not None:
            server.send(event, data, sid)

    async def send(self, event: object, data: object, sid: str | None = None) -> None:
        self.send_sync(event, data, sid)

    async def send_json(self, event: str, data: object, sid: str | None = None) -> None:
        self.send_sync(event, data, sid)

    def send_progress_text(self, text: str | bytes, node_id: str, sid: str | None = None) -> None:
        """Send text to show below a node, as ComfyUI's binary message."""
        shown = text.encode() if isinstance(text, str) else text
        name = str(node_id).encode()
        payload = len(name).to_bytes(4, "big") + name + shown
        self.send_sync(BinaryEventTypes.TEXT, payload, sid or self.client_id)

    def add_on_prompt_handler(self, handler: Callable[[dict[str, object]], dict[str, object]]) -> None:
        """Add a handler for the body of each `POST /prompt`; its result replaces the body."""
        server: PackServer | None = vars(self)["_server"]
        if server is not None:
            server.add_prompt_handler(handler)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_supported(f"PromptServer.instance.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        if name == "number" and isinstance(value, int):
            self._there.number = value
            return
        leave_to_pack(f"server.PromptServer.instance.{name}")
        object.__setattr__(self, name, value)


class PromptQueue:
    """Access to the queue for packs; without a server it is empty."""

    def __init__(self, server: PackServer | None) -> None:
        self._server = server

    def get_current_queue(self) -> tuple[list[object], list[object]]:
        return ([], []) if self._server is None else self._server.queue_lists()

    def get_tasks_remaining(self) -> int:
        return 0 if self._server is None else self._server.num_waiting

    @property
    def currently_running(self) -> dict[int, object]:
        """Copies of the running prompts; for a node that of its own alone, beside which others may run."""
        running: list[Any] = self.get_current_queue()[0]
        context = running_context()
        own = [] if context is None else [item for item in running if item[1] == context.prompt_id]
        return dict(enumerate(deepcopy(own or running)))

    def put(self, item: Sequence[Any]) -> None:
        """Queue a prompt unchecked, in ComfyUI's form. Raises ValueError for what is none.

        What a node queues goes on with what its own prompt began: it gets the same instances of nodes, and the results
        of nodes whose inputs differ between the two are kept for neither.
        """
        if self._server is None:
            raise not_supported("PromptServer.instance.prompt_queue.put in an engine without a server")
        if not isinstance(item, (list, tuple)) or len(item) not in ITEM_LENGTHS:
            raise ValueError("prompt_queue.put: no item; expected (number, id, prompt, extra_data, outputs)")
        number, prompt_id, prompt, extra_data, outputs = item[:5]
        parse_prompt(prompt)
        if not isinstance(extra_data, Mapping) or not isinstance(outputs, (list, tuple)):
            raise ValueError("prompt_queue.put: extra_data and outputs have wrong types; expected a mapping and a list")
        changed = self._server.queue_prompt(number, str(prompt_id), deepcopy(prompt), extra_data, [*map(str, outputs)])
        context = running_context()
        if context is not None:
            context.continued(changed)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_supported(f"PromptServer.instance.prompt_queue.{name}")
