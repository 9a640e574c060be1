"""Registry of the integrations: the module of each, loaded when a setting names it.

Platforms' envelopes and the dialects of other servers are part of every worker by default, so their modules are loaded
for each; those of brokers and platforms where a setting names one. Nothing else names a module of
`worker/integrations/`, and none of them names another.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from darkroom.host.distribution import install_command
from darkroom.worker.autoscaler.autoscaler import Autoscaler
from darkroom.worker.autoscaler.envelope import Envelopes
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.broker import BrokerConfig, BrokerKind
from darkroom.worker.settings.platforms import VastConfig, VastTiming
from darkroom.worker.settings.settings import Settings
from darkroom.worker.sources.broker import Broker, Producer

if TYPE_CHECKING:
    from fastapi import APIRouter

    from darkroom.worker.integrations.vast.build import VastParts

DIALECTS: Final = {
    "runpod": ("darkroom.worker.integrations.runpod.routes",),
    "openai": ("darkroom.worker.integrations.openai.routes",),
    "comfy_v2": ("darkroom.worker.integrations.comfy_v2.assets", "darkroom.worker.integrations.comfy_v2.jobs"),
    "comfy_cloud": ("darkroom.worker.integrations.comfy_cloud.routes",),
}
"""Modules with a `router`, for every worker: the first routes are found first."""

GATEWAY_DIALECTS: Final = ("darkroom.worker.integrations.runpod.gateway_routes",)

BROKERS: Final = {
    BrokerKind.REDIS: ("darkroom.worker.integrations.redis.streams", "RedisBroker"),
    BrokerKind.NATS: ("darkroom.worker.integrations.nats.jetstream", "NatsBroker"),
    BrokerKind.SQS: ("darkroom.worker.integrations.sqs.queue", "SqsBroker"),
    BrokerKind.GATEWAY: ("darkroom.worker.integrations.gateway.http_broker", "HttpBroker"),
}
PRODUCERS: Final = (BrokerKind.REDIS, BrokerKind.NATS)
"""Brokers that have results and events, as a gateway needs."""

FEW: Final = {BrokerKind.REDIS: {"max_connections": 3}}
"""Connections of a broker by which a gateway acts for one worker: one that waits for jobs, and two for the rest."""

PACKAGES: Final = {BrokerKind.REDIS: "redis", BrokerKind.NATS: "nats"}
"""Libraries of brokers, which are extras."""

ENVELOPES: Final = "darkroom.worker.integrations.vast.envelope"
"""Parser of the envelopes that any worker and gateway opens."""

VAST: Final = "darkroom.worker.integrations.vast.build"
VAST_LAUNCH_FAILURE: Final = "darkroom.worker.integrations.vast.launch_failure"
RUNPOD: Final = "darkroom.worker.integrations.runpod.build"
MCP: Final = "darkroom.worker.integrations.mcp.server"

DEFAULTS: Final = (ENVELOPES, *(module for modules in DIALECTS.values() for module in modules))
"""Modules that every worker loads; the others are loaded where a setting or a command names one."""


def load_defaults() -> None:
    """Import what every worker uses of the integrations."""
    for module in DEFAULTS:
        importlib.import_module(module)


def dialect_routers() -> list[APIRouter]:
    """Return the routers of all dialects, in the order in which their routes are found."""
    return [importlib.import_module(module).router for modules in DIALECTS.values() for module in modules]


def gateway_routers() -> list[APIRouter]:
    """Return the routers of the dialects that a gateway has."""
    return [importlib.import_module(module).router for module in GATEWAY_DIALECTS]


def unsigned_envelopes() -> Envelopes:
    """Return the parser of envelopes whose signatures are not checked."""
    envelopes: Envelopes = importlib.import_module(ENVELOPES).unsigned_envelopes()
    return envelopes


def vast_parts(settings: Settings, cancel_job: Callable[[str], None], timing: VastTiming) -> VastParts:
    """Return Vast's parts of a worker. `cancel_job` ends a job by its id, if there is one that has not ended."""
    parts: VastParts = importlib.import_module(VAST).build_vast(settings, cancel_job, timing)
    return parts


def runpod_autoscaler(settings: Settings, stop_front: Callable[[int], None]) -> Autoscaler:
    """Return RunPod's loop of a worker; `stop_front` ends the worker with an exit code.

    Raises SettingsInvalid when the platform's package is not installed.
    """
    autoscaler: Autoscaler = importlib.import_module(RUNPOD).build_runpod(settings, stop_front)
    return autoscaler


def launch_failure_reporter() -> Callable[[VastConfig, str], None]:
    """Return the function that reports to Vast that a worker could not start, until it is stopped."""
    report: Callable[[VastConfig, str], None] = importlib.import_module(VAST_LAUNCH_FAILURE).report_error_until_stopped
    return report


def mcp_server() -> ModuleType:
    """Return the module of the MCP server. Raises ModuleNotFoundError when its package is not installed."""
    return importlib.import_module(MCP)


def build_broker(config: BrokerConfig) -> Broker | None:
    """Return the broker of `BROKER_URL` or `GATEWAY_URL`, None without one.

    Raises SettingsInvalid if its library is not installed, or its settings do not go together.
    """
    if config.kind is None:
        return None
    if config.gateway_url:
        _check_gateway_settings(config)
    broker: Broker = _broker(config.kind, config)
    return broker


def _check_gateway_settings(config: BrokerConfig) -> None:
    """Raise SettingsInvalid for a gateway beside a broker, or without a token."""
    if config.kind is not BrokerKind.GATEWAY:
        raise SettingsInvalid("GATEWAY_URL: set together with BROKER_URL; expected one of them")
    if not config.worker_token.get_secret_value():
        raise SettingsInvalid("WORKER_TOKEN: not set; the gateway of GATEWAY_URL asks for one (darkroom workers new)")


def broker_of_gateway(config: BrokerConfig) -> Broker:
    """Return a consumer's side of `BROKER_URL`, by which a gateway takes jobs in the name of a worker."""
    assert config.kind in PRODUCERS, "a gateway has a producer"
    broker: Broker = _broker(config.kind, config, **FEW.get(config.kind, {}))
    return broker


def build_producer(config: BrokerConfig) -> Producer:
    """Return the producer's side of `BROKER_URL`. Raises SettingsInvalid for one without results and events."""
    if config.kind not in PRODUCERS:
        message = "BROKER_URL: without results; expected redis://, nats://, or nothing for the queue in the database"
        raise SettingsInvalid(message)
    producer: Producer = _broker(config.kind, config)
    return producer


def _broker(kind: BrokerKind, config: BrokerConfig, **limits: int) -> Any:
    package = PACKAGES.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise SettingsInvalid(f"BROKER_URL: the package {package} is not installed; {install_command(kind.value)}")
    module, name = BROKERS[kind]
    return getattr(importlib.import_module(module), name)(config, **limits)
