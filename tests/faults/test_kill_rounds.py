"""Front and engine are killed at random instants, again and again, and nothing that was acknowledged is lost."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.faults.kill_rounds import play


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_kill_at_a_random_instant_loses_nothing(tmp_path: Path) -> None:
    await lose_nothing(tmp_path, num_rounds=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_at_random_instants_lose_nothing(tmp_path: Path) -> None:
    await lose_nothing(tmp_path, num_rounds=200)


async def lose_nothing(folder: Path, num_rounds: int) -> None:
    summary = await play(folder, num_rounds, secrets.randbelow(2**32))
    assert summary["wrong"] == [], f"python -m tests.faults.kill_rounds --seed {summary['seed']}"
    assert summary["rounds"] == num_rounds
    assert summary["acknowledged"] > num_rounds
