"""All checks together: from the command line, and from within a worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.worker.cli.main import app
from darkroom.worker.doctor import examination
from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.examination import examine
from tests.fakes import FakeEngine
from tests.worker.running_front import RunningFront, running_front, settings_for

ROOT = Path(__file__).parents[3]
NAMES = [
    *("settings", "device", "driver", "disk", "memory", "models", "packs", "fallback", "state", "s3", "webhook"),
    *("autoscaler", "clock", "ports", "limits"),
]


def doctor(tmp_path: Path, *arguments: str, **environment: str) -> Any:
    given = {"STATE_DIRECTORY": str(tmp_path / "state"), "BASE_DIRECTORY": str(tmp_path), "CPU": "true"}
    return CliRunner().invoke(app, ["doctor", *arguments], env={**given, "WORKER_PORT": "0", **environment})


def test_every_check_is_listed_with_its_status(tmp_path: Path) -> None:
    shown = doctor(tmp_path)
    assert [line.split()[1] for line in shown.output.splitlines() if "->" not in line] == NAMES
    assert shown.exit_code == (1 if "failed " in shown.output else 0)


def test_json_has_the_same_and_a_failure_is_the_exit_code(tmp_path: Path) -> None:
    found = doctor(tmp_path, "--json", MIN_FREE_DISK_BYTES=str(1 << 60))
    checks = {check["name"]: check for check in json.loads(found.output)}
    assert list(checks) == NAMES and found.exit_code == 1
    assert checks["disk"]["status"] == "failed" and "RESULT_TTL" in checks["disk"]["remedy"]


def test_settings_that_do_not_parse_are_the_only_check(tmp_path: Path) -> None:
    found = doctor(tmp_path, "--json", MAX_QUEUE_SIZE="many")
    (check,) = json.loads(found.output)
    assert check["name"] == "settings" and "MAX_QUEUE_SIZE" in check["detail"] and found.exit_code == 1


def test_a_misspelt_variable_is_a_warning(tmp_path: Path) -> None:
    found = doctor(tmp_path, "--json", MAX_QUEUE_SIZ="7")
    check = json.loads(found.output)[0]
    assert check["status"] == "warning" and "MAX_QUEUE_SIZE" in check["detail"]


async def test_a_check_that_breaks_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "check_models", lambda _: 1 / 0)
    checks = {check.name: check for check in await examine(settings_for(tmp_path, ""), ())}
    assert list(checks) == NAMES and checks["models"].status is Status.FAILED


async def test_of_engines_elsewhere_nothing_is_checked_here(tmp_path: Path) -> None:
    checks = {check.name: check for check in await examine(settings_for(tmp_path, "http://127.0.0.1:9"), ())}
    assert {checks[name].status for name in ("device", "driver", "models", "packs")} == {Status.SKIPPED}


async def test_a_worker_shows_its_checks_at_ready(front: RunningFront) -> None:
    plain = await front.http.get("/ready")
    assert plain.json() == {"status": "ready"}
    verbose = await front.http.get("/ready?verbose")
    assert verbose.status_code == 200 and [check["name"] for check in verbose.json()["checks"]] == NAMES
    assert {check["name"]: check["status"] for check in verbose.json()["checks"]}["ports"] == "good"


async def test_the_checks_are_for_operators_and_hold_no_secret(tmp_path: Path, engine: FakeEngine) -> None:
    settings: dict[str, Any] = {"api_keys": "shop:planted-secret:submit", "admin_api_keys": "ops:planted-other"}
    settings |= {"webhook_url": "http://user:planted-password@127.0.0.1:9/hook?token=planted-token"}
    async with running_front(tmp_path, engine, waits_until_ready=True, **settings) as front:
        assert (await front.http.get("/ready")).status_code == 200
        assert (await front.http.get("/ready?verbose")).status_code == 401
        reply = await front.http.get("/ready?verbose", headers={"Authorization": "Bearer planted-other"})
        assert reply.status_code == 200 and "planted" not in reply.text


def test_the_page_lists_every_check() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8").partition("## Doctor")[2]
    listed = re.findall(r"`([a-z0-9]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)))
    assert listed == NAMES
