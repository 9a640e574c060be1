"""Results kept outside of the engine, by classes that node packs bring: ComfyUI's `CacheProvider`.

A provider is asked for a result that the engine's own cache does not have, and told each one that a node gave. What it
does is its own matter: its errors are logged, and never fail a run.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from darkroom.contract.graph.signature import Key, is_unique
from darkroom.engine.runtime.cache.store import NodeResult

STORE_SECONDS = 30.0  # after a run for what is still being stored

log = logging.getLogger(__name__)


@dataclass
class CacheContext:
    """A node and the key of its result, a SHA-256 that is the same in every process for the same inputs."""

    node_id: str
    class_type: str
    cache_key_hash: str


@dataclass
class CacheValue:
    """A result: a list of values for each output, and what the node shows."""

    outputs: list[Any]
    ui: Mapping[str, Any] | None = None


class CacheProvider(ABC):
    """The interface of a provider; packs derive their own from it."""

    @abstractmethod
    async def on_lookup(self, context: CacheContext) -> CacheValue | None:
        """Return the result with that key, or None."""

    @abstractmethod
    async def on_store(self, context: CacheContext, value: CacheValue) -> None:
        """Take a result that a node gave; the run goes on meanwhile."""

    def should_cache(self, context: CacheContext, value: CacheValue | None = None) -> bool:
        """Return False where the provider wants neither to be asked for a result nor to take it."""
        return True

    def on_prompt_start(self, prompt_id: str) -> None:  # noqa: B027 - a provider need not know
        """Begin a prompt."""

    def on_prompt_end(self, prompt_id: str) -> None:  # noqa: B027 - a provider need not know
        """End a prompt."""


class CacheProviders:
    """The providers of an engine, asked in the order in which they came."""

    def __init__(self) -> None:
        self._providers: list[CacheProvider] = []

    def register(self, provider: CacheProvider) -> None:
        """Add a provider, once."""
        if provider in self._providers:
            log.warning("cache provider %s is registered already", type(provider).__name__)
        else:
            self._providers.append(provider)

    def unregister(self, provider: CacheProvider) -> None:
        """Remove a provider, if it is there."""
        if provider in self._providers:
            self._providers.remove(provider)
        else:
            log.warning("cache provider %s is not registered", type(provider).__name__)

    def clear(self) -> None:
        self._providers.clear()

    def __len__(self) -> int:
        return len(self._providers)

    def each(self) -> tuple[CacheProvider, ...]:
        return tuple(self._providers)


class ProvidedResults:
    """The results of one run as providers have and take them. Used on the run's event loop."""

    def __init__(self, providers: CacheProviders, prompt_id: str) -> None:
        self._providers = providers.each()
        self._prompt_id = prompt_id
        self._stores: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        return not self._providers

    def begin(self) -> None:
        for provider in self._providers:
            _guarded(provider, partial(provider.on_prompt_start, self._prompt_id), None)

    async def find(self, node_id: str, class_type: str, key: Key) -> NodeResult | None:
        """Return the result of a node that a provider has, or None."""
        context = _context_of(node_id, class_type, key)
        if context is None:
            return None
        for provider in self._providers:
            if not _guarded(provider, partial(provider.should_cache, context), otherwise=False):
                continue
            try:
                value = await provider.on_lookup(context)
            except Exception:  # noqa: BLE001 - the pack's own code
                log.exception("cache provider %s failed", type(provider).__name__)
                continue
            if isinstance(value, CacheValue) and _is_result(value):
                return NodeResult([list(values) for values in value.outputs], value.ui)
            if value is not None:
                log.warning("cache provider %s: no CacheValue with a list for each output", type(provider).__name__)
        return None

    def store(self, node_id: str, class_type: str, key: Key, result: NodeResult) -> None:
        """Let the providers store a result, while the run goes on."""
        context = _context_of(node_id, class_type, key) if self._providers else None
        if context is None:
            return
        value = CacheValue(result.outputs, result.ui)
        for provider in self._providers:
            if _guarded(provider, partial(provider.should_cache, context, value), otherwise=False):
                task = asyncio.ensure_future(_stored(provider, context, value))
                self._stores.add(task)
                task.add_done_callback(self._stores.discard)

    async def end(self) -> None:
        """Wait for what is being stored, for a while, and end the prompt."""
        if self._stores:
            _, late = await asyncio.wait(self._stores, timeout=STORE_SECONDS)
            for task in late:
                task.cancel()
        for provider in self._providers:
            _guarded(provider, partial(provider.on_prompt_end, self._prompt_id), None)


async def _stored(provider: CacheProvider, context: CacheContext, value: CacheValue) -> None:
    try:
        await provider.on_store(context, value)
    except Exception:  # noqa: BLE001 - the pack's own code
        log.exception("cache provider %s failed", type(provider).__name__)


def _guarded(provider: CacheProvider, call: Callable[[], object], otherwise: object) -> object:
    try:
        return call()
    except Exception:  # noqa: BLE001 - the pack's own code
        log.exception("cache provider %s failed", type(provider).__name__)
        return otherwise


def _context_of(node_id: str, class_type: str, key: Key) -> CacheContext | None:
    """Return the context of a result; None for one whose key no other run has."""
    return None if is_unique(key) else CacheContext(node_id, class_type, hashlib.sha256(key).hexdigest())


def _is_result(value: CacheValue) -> bool:
    outputs = value.outputs
    return isinstance(outputs, (list, tuple)) and all(isinstance(values, (list, tuple)) for values in outputs)
