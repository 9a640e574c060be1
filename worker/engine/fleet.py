"""EngineFleet: every engine the front works with, from its start to its end.

Makes the clients and, where the engines are ours, the child processes; keeps the pool's knowledge of each true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from worker.engine.client import EngineClient, LocalFolders
from worker.engine.pool import EnginePool
from worker.engine.supervisor import EngineProcess, engine_command, read_processor_flags
from worker.errors import EngineUnreachable
from worker.settings import EngineLaunch, child_environment

LOOK_SECONDS = 2.0
LOOK_DOWN_SECONDS = 0.1

log = structlog.get_logger("engines")


class EngineFleet:
    """Use as `await fleet.start()`, `fleet.watch()` as one task, `await fleet.stop()`.

    `on_first_up` is called once, when the first engine can take a prompt.
    """

    def __init__(self, launch: EngineLaunch, on_first_up: Callable[[], None]) -> None:
        self._launch = launch
        self._on_first_up = on_first_up
        self._processes: list[EngineProcess] = []
        self.has_been_up = asyncio.Event()
        self.pool = EnginePool(self._make_clients())
        for client in self.pool.clients:
            self.pool.set_up(client, False)

    async def start(self) -> None:
        """Returns when every engine of ours answers. Raises EngineStartFailed when one ended before that."""
        if self._processes:
            await asyncio.gather(*(process.start() for process in self._processes))
        for client in self.pool.clients:
            await client.start()

    async def watch(self) -> None:
        """Keeps the pool's knowledge of the engines true, for ever."""
        async with asyncio.TaskGroup() as group:
            for client in self.pool.clients:
                group.create_task(self._watch(client), name=f"engine-watch-{client.url}")

    async def stop(self) -> None:
        for client in self.pool.clients:
            await client.close()
        for process in self._processes:
            await process.stop()

    def _make_clients(self) -> list[EngineClient]:
        if self._launch.urls:
            return [EngineClient(url) for url in self._launch.urls]
        command = engine_command(self._launch, child_environment(), read_processor_flags())
        process = EngineProcess(command, on_lost=self._lost)
        self._processes.append(process)
        base = self._launch.base_directory
        folders = LocalFolders(base / "input", base / "output", base / "temp")
        return [EngineClient(process.url, folders=folders, has_check=True)]

    async def _watch(self, client: EngineClient) -> None:
        process = self._process_of(client)
        while True:
            if process is not None:
                await process.wait_until_answering()
            is_up = await self._answers(client)
            if is_up != self._is_up(client):
                if not is_up:
                    client.forget_object_info()
                log.info("engine is up" if is_up else "engine is down", url=client.url)
            self.pool.set_up(client, is_up)
            if is_up and not self.has_been_up.is_set():
                self.has_been_up.set()
                self._on_first_up()
            await asyncio.sleep(LOOK_SECONDS if is_up else LOOK_DOWN_SECONDS)

    async def _answers(self, client: EngineClient) -> bool:
        try:
            await client.system_stats()
            await client.object_info()
        except EngineUnreachable:
            return False
        return True

    def _is_up(self, client: EngineClient) -> bool:
        return any(url == client.url and is_up for url, is_up, _ in self.pool.states)

    def _process_of(self, client: EngineClient) -> EngineProcess | None:
        return next((process for process in self._processes if process.url == client.url), None)

    def _lost(self) -> None:
        for process in self._processes:
            if not process.is_answering:
                for client in self.pool.clients:
                    if client.url == process.url:
                        self.pool.set_up(client, False)
                        client.forget_object_info()  # so that it counts as up only when the new one has its nodes
                        client.mark_lost()
