"""Services that request handlers share, put together by `app.py`."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from engine.server.engine_start import EngineStart
from engine.server.history import History
from engine.server.packs import PackRoutes
from engine.server.queue import PromptQueue
from engine.server.run_figures import RunFigures
from engine.server.runner import PromptRunner
from engine.server.websocket import Clients
from engine.settings import EngineSettings


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
