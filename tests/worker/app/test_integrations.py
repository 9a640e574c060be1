"""The registry of integrations: what a worker loads of them, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from darkroom.worker.app.integrations import BROKERS, DEFAULTS, build_broker, build_producer
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.broker import BrokerConfig, BrokerKind

ROOT = Path(__file__).parents[3]
STARTED = """
import asyncio, json, sys, tempfile
from pathlib import Path
from tests.fakes import FakeEngine
from tests.worker.running_front import running_front

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with FakeEngine(Path(folder)) as engine:
            async with running_front(Path(folder) / "front", engine, **json.loads(sys.argv[1])):
                print(json.dumps(list(sys.modules)))

asyncio.run(main())
"""
IMPORTED = """
import json, sys
import darkroom.worker.app.serve, darkroom.worker.app.assembly, darkroom.worker.app.application
print(json.dumps(list(sys.modules)))
"""


def loaded(program: str, settings: Mapping[str, object] | None = None) -> set[str]:
    """Return the modules of integrations that a program has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(settings or {})],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    modules = json.loads(done.stdout.splitlines()[-1])
    return {
        module for module in modules if module.startswith("darkroom.worker.integrations.") and module.count(".") > 3
    }


def test_importing_the_front_loads_no_integration() -> None:
    assert loaded(IMPORTED) == set()


def test_a_started_worker_without_settings_loads_the_defaults_and_their_parts_alone() -> None:
    of_defaults = {module.rpartition(".")[0] for module in DEFAULTS}
    found = loaded(STARTED)
    assert found >= set(DEFAULTS) and {module.rpartition(".")[0] for module in found} == of_defaults
    parts = {module.rpartition(".")[2] for module in found - set(DEFAULTS)}
    assert parts <= {"form", "labels", "replies", "sessions", "shapes"}, "bodies of requests and answers alone"


def test_a_setting_loads_its_platform() -> None:
    found = loaded(STARTED, {"master_token": "token", "unsecured": True})
    assert "darkroom.worker.integrations.vast.build" in found


@pytest.mark.parametrize(
    ("url", "kind"), [("redis://host", BrokerKind.REDIS), ("nats://host", BrokerKind.NATS), ("sqs://q", BrokerKind.SQS)]
)
def test_the_url_of_a_broker_names_its_module(url: str, kind: BrokerKind) -> None:
    broker = build_broker(BrokerConfig(url=SecretStr(url)))
    assert type(broker).__module__ == BROKERS[kind][0]


def test_a_gateway_needs_a_broker_with_results() -> None:
    assert build_broker(BrokerConfig()) is None
    for url in ("", "sqs://q"):
        with pytest.raises(SettingsInvalid, match="BROKER_URL: without results"):
            build_producer(BrokerConfig(url=SecretStr(url)))
