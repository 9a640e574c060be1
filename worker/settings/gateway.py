"""Settings of the gateway."""

from __future__ import annotations

from typing import Annotated

from darkroom.worker.settings.section import PositiveInt, Section, env


class GatewayConfig(Section):
    """Limits of a gateway, which has no engine: its jobs and their queue are in a database."""

    max_live: Annotated[PositiveInt, env("GATEWAY_MAX_JOBS")] = 100_000
    """Jobs of all gateways that have not ended; more get 503."""
