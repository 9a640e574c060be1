"""Partner keys of jobs that no worker can run."""

from __future__ import annotations

import json

import pytest

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.sources.intake import PARTNER_KEY


@pytest.mark.parametrize("name", PARTNER_KEYS)
@pytest.mark.parametrize("key", ["comfyui-1234", 'with "quotes" and \\', ""])
def test_a_dead_letter_has_no_key_for_partner_nodes(name: str, key: str) -> None:
    body = {"input": {"workflow_json": {}, "extra_data": {name: key, "other": "kept"}}}
    left = json.loads(PARTNER_KEY.sub(rb'\1""', json.dumps(body).encode()))
    assert left["input"]["extra_data"] == {name: "", "other": "kept"}
    assert PARTNER_KEY.sub(rb'\1""', b'{"input": ') == b'{"input": '
