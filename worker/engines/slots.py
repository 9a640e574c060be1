"""EngineSlot: how one engine is used: whether it is up and fit, and the prompts that it has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from darkroom.worker.engines.client.client import EngineClient

Order = tuple[int, int]
"""Sort key of waiters; the lowest is served first."""


@dataclass(slots=True)
class EngineSlot:
    client: EngineClient
    is_up: bool = True
    is_fit: bool = True
    num_taken: int = 0
    num_holds: int = 0
    is_stopping: bool = False  # at a cancelled prompt whose slot has been released
    is_alone: bool = False  # its prompt excludes others
    last_order: Order = (0, 0)  # of the last prompt
    is_relieved: bool = False  # its waiting prompts are being recalled
    num_overtaken: int = 0  # how many younger prompts have begun elsewhere while it waits there
    runs_at_once: int = 1  # prompts that do not wait for each other
    became_idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_waiting(self) -> bool:
        """True if a prompt there waits for the end of another one."""
        return self.num_taken > 0 and self.num_prompts > self.runs_at_once

    @property
    def serves(self) -> bool:
        return self.is_up and self.is_fit

    @property
    def takes(self) -> bool:
        return self.serves and not self.num_holds and not self.is_stopping

    @property
    def num_prompts(self) -> int:
        """Number of prompts that the engine has, one that is being stopped among them."""
        return self.num_taken + self.is_stopping

    @property
    def is_busy(self) -> bool:
        """True while a prompt is there. Of an engine that is down it is not known whether one has stopped."""
        return self.num_taken > 0 or (self.is_stopping and self.is_up)
