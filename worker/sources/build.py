"""The broker that the settings name. Libraries of brokers are extras, imported here for the one that is used."""

from __future__ import annotations

import importlib.util

from worker.errors import SettingsInvalid
from worker.settings.broker import BrokerConfig
from worker.sources.broker import Broker


def build_broker(config: BrokerConfig) -> Broker | None:
    """Return the broker of `BROKER_URL`, None without one. Raises SettingsInvalid if its library is not installed."""
    if not config.is_set:
        return None
    if importlib.util.find_spec("redis") is None:
        raise SettingsInvalid("BROKER_URL: the package redis is not installed; pip install 'darkroom[redis]'")
    from worker.sources.redis_streams import RedisBroker

    return RedisBroker(config)
