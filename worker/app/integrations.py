"""The broker that the settings name. Libraries of brokers are extras, imported here for the one that is used."""

from __future__ import annotations

import importlib.util

from host.distribution import install_command
from worker.errors import SettingsInvalid
from worker.settings.broker import BrokerConfig, BrokerKind
from worker.sources.broker import Broker, Producer

PACKAGES = {BrokerKind.REDIS: "redis", BrokerKind.NATS: "nats"}


def build_broker(config: BrokerConfig) -> Broker | None:
    """Return the broker of `BROKER_URL`, None without one. Raises SettingsInvalid if its library is not installed."""
    kind = config.kind
    if kind is None:
        return None
    _check_library(kind)
    if kind is BrokerKind.NATS:
        from worker.integrations.nats.jetstream import NatsBroker

        return NatsBroker(config)
    if kind is BrokerKind.SQS:
        from worker.integrations.sqs.queue import SqsBroker

        return SqsBroker(config)
    from worker.integrations.redis.streams import RedisBroker

    return RedisBroker(config)


def build_producer(config: BrokerConfig) -> Producer:
    """Return the producer's side of `BROKER_URL`. Raises SettingsInvalid without one that has results and events."""
    kind = config.kind
    if kind is BrokerKind.REDIS:
        _check_library(kind)
        from worker.integrations.redis.streams import RedisBroker

        return RedisBroker(config)
    if kind is BrokerKind.NATS:
        _check_library(kind)
        from worker.integrations.nats.jetstream import NatsBroker

        return NatsBroker(config)
    raise SettingsInvalid("BROKER_URL: a gateway needs a broker with results; expected redis:// or nats://")


def _check_library(kind: BrokerKind) -> None:
    package = PACKAGES.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise SettingsInvalid(f"BROKER_URL: the package {package} is not installed; {install_command(kind.value)}")
