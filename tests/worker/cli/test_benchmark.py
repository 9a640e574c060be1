"""`darkroom benchmark`, as a program, beside a front with a fake engine and with none."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.cli.benchmark import report_lines
from darkroom.worker.engines.supervisor import free_port
from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front


@pytest.fixture
def workflow(tmp_path: Path) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(draw("image __RANDOM_INT__")))
    return str(path)


async def darkroom_benchmark(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "darkroom.worker", "benchmark", "--json", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout.decode(), stderr.decode()


async def test_a_running_worker_runs_it_anew(tmp_path: Path, engine: FakeEngine, workflow: str) -> None:
    async with running_front(tmp_path, engine, benchmark="auto", BENCHMARK_WORKFLOW=workflow) as front:
        num_runs = len(engine.runs)
        code, stdout, stderr = await darkroom_benchmark("--url", front.url)
        assert (code, json.loads(stdout)["verdict"]) == (0, "pass"), stderr
        assert len(engine.runs) > num_runs
        num_runs = len(engine.runs)
        code, stdout, _ = await darkroom_benchmark("--url", front.url, "--last")
        assert code == 0 and json.loads(stdout)["num_runs"] >= 3
        assert len(engine.runs) == num_runs


async def test_a_machine_that_does_not_pass_shows_in_the_exit_code(
    tmp_path: Path, engine: FakeEngine, workflow: str
) -> None:
    changes: dict[str, Any] = {
        "BENCHMARK_WORKFLOW": workflow,
        "benchmark_max_seconds": 0.00001,
        "benchmark_on_fail": "serve",
    }
    async with running_front(tmp_path, engine, benchmark="auto", **changes) as front:
        code, stdout, _ = await darkroom_benchmark("--url", front.url)
    assert (code, json.loads(stdout)["verdict"]) == (1, "slow")


@pytest.mark.slow
async def test_where_no_worker_answers_one_is_started_and_stopped(
    tmp_path: Path, engine: FakeEngine, workflow: str
) -> None:
    settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(tmp_path / "state"), "WORKER_PORT": str(free_port())}
    settings |= {"BENCHMARK": "off", "BENCHMARK_WORKFLOW": workflow, "DRAIN_TIMEOUT": "1"}
    code, stdout, stderr = await darkroom_benchmark(**settings)
    assert (code, json.loads(stdout)["verdict"]) == (0, "pass"), stderr
    assert "starting one" in stderr
    code, _, _ = await darkroom_benchmark(**settings, BENCHMARK_MAX_SECONDS="0.00001", BENCHMARK_ON_FAIL="exit")
    assert code == 1


async def test_an_address_that_is_named_must_answer() -> None:
    code, _, stderr = await darkroom_benchmark("--url", "http://127.0.0.1:9")
    assert code == 2 and "does not answer" in stderr


def test_a_report_in_words_has_speed_seconds_an_image_and_verdict() -> None:
    report = {
        "verdict": "slow", "reason": "12 it/s where 30 are usual", "error": None, "warnings": ["the clock was low"],
        "its_per_second": 12.345, "seconds_per_picture": 1.6, "model": "sd15", "width_px": 512, "height_px": 512,
        "steps": 20, "shrunk": None,
    }  # fmt: skip
    assert list(report_lines(report)) == [
        "speed          12.35 it/s (sd15 at 512x512, 20 steps)",
        "an image       1.60 s",
        "warning        the clock was low",
        "verdict        slow: 12 it/s where 30 are usual",
    ]
    assert list(report_lines({"verdict": "skipped"})) == ["verdict        skipped"]
