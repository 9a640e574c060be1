"""Services that request handlers share, put together by `app.py`."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.server.history import History
from darkroom.engine.server.packs import PackRoutes
from darkroom.engine.server.queue import PromptQueue
from darkroom.engine.server.run_figures import RunFigures
from darkroom.engine.server.runner import PromptRunner
from darkroom.engine.server.websocket import Clients
from darkroom.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Services:
    settings: EngineSettings
    start: EngineStart
    queue: PromptQueue
    history: History
    clients: Clients
    runner: PromptRunner
    packs: PackRoutes
    figures: RunFigures


SERVICES = web.AppKey("services", Services)


def services(request: web.Request) -> Services:
    return request.app[SERVICES]
