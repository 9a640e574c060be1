"""`comfy_execution.cache_provider`: the providers of cached results."""

from __future__ import annotations

from darkroom.engine.comfy.host import HOST
from darkroom.engine.runtime.cache.providers import CacheContext, CacheProvider, CacheValue

__all__ = ["CacheContext", "CacheProvider", "CacheValue", "register_cache_provider", "unregister_cache_provider"]


def register_cache_provider(provider: CacheProvider) -> None:
    HOST.get().engine.cache_providers.register(provider)


def unregister_cache_provider(provider: CacheProvider) -> None:
    HOST.get().engine.cache_providers.unregister(provider)
