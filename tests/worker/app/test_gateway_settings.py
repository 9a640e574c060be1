"""Settings of a worker that asks a gateway for jobs."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from darkroom.worker.app.integrations import build_broker
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.broker import BrokerConfig, BrokerKind

TOKEN = SecretStr("worker-token")


def test_a_gateway_is_the_broker_of_a_worker_and_needs_a_token() -> None:
    config = BrokerConfig(gateway_url="https://gateway.example.org/", worker_token=TOKEN)
    assert config.kind is BrokerKind.GATEWAY and config.is_set
    broker = build_broker(config)
    assert broker is not None and broker.name == "https://gateway.example.org"
    with pytest.raises(SettingsInvalid, match="WORKER_TOKEN: not set"):
        build_broker(BrokerConfig(gateway_url="https://gateway.example.org"))
    with pytest.raises(SettingsInvalid, match="GATEWAY_URL: set together with BROKER_URL"):
        build_broker(BrokerConfig(gateway_url="https://host", worker_token=TOKEN, url=SecretStr("redis://host")))


@pytest.mark.parametrize(
    "url", ["gateway.example.org", "redis://host", "https://", "https://a:b@host", "https://host?a=b"]
)
def test_an_address_that_is_no_gateways_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        BrokerConfig(gateway_url=url, worker_token=TOKEN)
