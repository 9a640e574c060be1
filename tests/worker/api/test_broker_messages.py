"""Messages of a broker that are refused before they become jobs."""

from __future__ import annotations

import json

import pytest

from darkroom.worker.api.broker_messages import accept_message, refuse_message
from darkroom.worker.errors import RequestRejected
from darkroom.worker.sources.broker import Delivery
from tests.worker.running_front import RunningFront


async def test_a_message_over_the_limits_of_json_is_not_parsed_for_its_webhook(front: RunningFront) -> None:
    services = front.front.services
    hook = {"input": {"webhook": {"url": "https://example.com/hook"}, "metadata": {"a": 1}}}
    many = [0] * (services.requests.bodies.structure.max_elements + 1)
    large = Delivery("large", json.dumps({**hook, "more": many}).encode(), "receipt-1")
    with pytest.raises(RequestRejected) as raised:
        await accept_message(services, large)
    assert raised.value.problems[0].type == "json_too_large"
    refused = await refuse_message(services, large, raised.value)
    assert refused is not None and refused.request.webhook is None and refused.metadata == {}
    small = Delivery("small", json.dumps({**hook, "more": [0]}).encode(), "receipt-2")
    known = await refuse_message(services, small, raised.value)
    assert known is not None and known.metadata == {"a": 1}
