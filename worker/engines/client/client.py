"""EngineClient: client of any server with ComfyUI's HTTP and WebSocket API, ours or a foreign one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.client.calls import EngineCalls
from darkroom.worker.engines.client.continuations import Continuations
from darkroom.worker.engines.client.facts import EngineFacts
from darkroom.worker.engines.client.files import EngineFiles, LocalFolders
from darkroom.worker.engines.client.presence import HEARTBEAT_SECONDS, EnginePresence
from darkroom.worker.engines.client.prompt_calls import PromptCalls
from darkroom.worker.engines.client.prompt_check import PromptCheck
from darkroom.worker.engines.client.prompt_runner import PromptRunner
from darkroom.worker.engines.client.runs import Runs
from darkroom.worker.engines.client.socket import EngineSocket
from darkroom.worker.engines.family_lookup import FamilyLookup
from darkroom.worker.engines.heartbeat import Heartbeat
from darkroom.worker.engines.hidden_folders import prefixes_of
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.stopping import StopRequests
from darkroom.worker.json.values import JsonObject


class EngineClient:
    """One engine: its `calls`, what is known of it (`facts`), its `files`, its `presence`, and the prompts there.

    `prompts` are requests about prompts, `runs` those of ours in flight, `runner` carries them out, and `stops` holds
    those that were asked to stop. `folders` is None when its disk is not ours; `has_check`: it has our check route.
    `is_supervised`: a supervisor calls `mark_lost` when it is gone. `on_fault` is called when the engine cannot be used
    any more, `on_completed` when a prompt has succeeded, `on_stops_changed` when a prompt was asked to stop or has
    stopped.
    """

    def __init__(
        self,
        address: EngineAddress | str,
        *,
        folders: LocalFolders | None = None,
        has_check: bool = False,
        is_supervised: bool = False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        on_fault: Callable[[LossReason], None] = lambda reason: None,
        on_completed: Callable[[], None] = lambda: None,
        on_stops_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = EngineAddress.of(address)
        self.folders = folders
        self.has_check = has_check
        self.calls = EngineCalls(self.address)
        self.presence = EnginePresence(
            self.address,
            self.calls,
            is_supervised=is_supervised,
            heartbeat_seconds=heartbeat_seconds,
            has_route=has_check,
        )
        self.facts = EngineFacts(self.calls, self.presence)
        self.files = EngineFiles(self.calls)
        self.prompts = PromptCalls(
            self.calls,
            () if folders is None else prefixes_of((folders.input, folders.output, folders.temp)),
        )
        self._check = PromptCheck(
            self.calls,
            self.prompts,
            self.presence,
            self.facts,
            has_route=has_check,
            output_folder=None if folders is None else folders.output.absolute(),
        )
        continuations = Continuations(self.prompts, reports_them=has_check)
        self.stops = StopRequests(
            self.prompts.withdraw, self.prompts.queue_position, on_stops_changed, continuations.withdraw_abandoned
        )
        self.runs = Runs(self.stops)
        self._socket = EngineSocket(self.address, uuid.uuid4().hex, self.runs)
        self.runner = PromptRunner(
            self.prompts,
            self.runs,
            self._socket,
            self.presence,
            continuations,
            on_fault=on_fault,
            on_completed=on_completed,
        )

    async def start(self) -> None:
        """Start to listen on the engine's socket; a lost connection is made again."""
        await self._socket.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._socket.close()
        await self.stops.close()
        await self.calls.close()
        await self.presence.close()

    @property
    def url(self) -> str:
        """Name of the engine in health, metrics and logs."""
        return self.address.url

    @property
    def is_away(self) -> bool:
        """True while the engine does not answer, by the word of whoever watches it or by its own silence."""
        return self.presence.is_away

    @property
    def families(self) -> FamilyLookup:
        """Families of the engine, asked for now."""
        return self.facts.families

    async def heartbeat(self) -> Heartbeat:
        """Return the engine's heartbeat; its progress is what it has reported to us. Raises EngineUnreachable."""
        found = await self.presence.heartbeat()
        return found if self.has_check else self.runs.heartbeat()

    async def object_info(self) -> Mapping[str, Any]:
        """Return the engine's node classes, read once. Raises EngineUnreachable."""
        return await self.facts.object_info()

    async def known_object_info(self) -> Mapping[str, Any]:
        """Return the node classes of an engine that may be restarting: those it had last. Raises EngineUnreachable."""
        return await self.facts.known_object_info()

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None:
        """Check a prompt without GPU time. Raises RequestRejected with every problem."""
        await self._check.check(prompt, pending_files)

    def mark_lost(self, loss: Loss | None = None) -> None:
        """End every run with EngineLost: the engine's process has ended."""
        self.runs.mark_lost(loss or Loss(LossReason.CRASHED))
        self.facts.forget_object_info()
