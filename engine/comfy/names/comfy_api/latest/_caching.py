"""`comfy_api.latest.Caching`: results that node packs keep outside of the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Generator

from darkroom.engine.comfy.host import HOST
from darkroom.engine.runtime.cache.providers import CacheContext, CacheProvider, CacheValue

__all__ = ["CacheContext", "CacheProvider", "CacheValue", "Caching"]


Provider = CacheProvider  # within the class its name is a member


class _Done(Awaitable[None]):
    """Something done already, for packs that await it and for those that do not."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Caching:
    """Providers of cached results."""

    CacheProvider = CacheProvider
    CacheContext = CacheContext
    CacheValue = CacheValue

    @staticmethod
    def register_provider(provider: Provider) -> Awaitable[None]:
        """Add a provider to the engine whose nodes are loaded. May be awaited."""
        HOST.get().engine.cache_providers.register(provider)
        return _Done()

    @staticmethod
    def unregister_provider(provider: Provider) -> Awaitable[None]:
        """Remove a provider. May be awaited."""
        HOST.get().engine.cache_providers.unregister(provider)
        return _Done()
