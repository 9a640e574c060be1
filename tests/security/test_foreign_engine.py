"""Before an engine that is not ours the front alone looks at the names of files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, paint
from tests.worker.running_front import running_front

OTHERS = ("x_00001_.png [output]", "x.png [temp]", "../output/x.png", "/etc/x.png", f"darkroom/{'a' * 64}.png")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path / "engine") as running:
        yield running


@pytest.mark.parametrize("name", OTHERS)
async def test_another_jobs_file_is_refused_before_the_engine_sees_the_prompt(
    tmp_path: Path, engine: FakeEngine, name: str
) -> None:
    async with running_front(tmp_path, engine) as front:
        answer = await front.sync(paint("ab", name))
        assert answer.status_code == 422 and not engine.runs
        [problem] = answer.json()["error"]["problems"]
        assert (problem["node_id"], problem["field"], problem["type"]) == ("1", "image", "foreign_file")


async def test_an_engine_is_no_place_to_fetch_an_input_from(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        answer = await front.sync(paint("ab", f"{engine.url}/view?filename=x_00001_.png&type=output"))
        assert answer.status_code == 422 and "is an engine of this worker" in answer.text
