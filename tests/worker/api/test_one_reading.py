"""A request's prompt is read once, for its limits, its cost, its caller's limits and its progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.contract.graph.work import PromptWork
from tests.fakes import OBJECT_INFO, steps
from tests.security.test_caller_limits import FROM_OUTSIDE, limited, send

LIMITS = {"prompt_max_steps": 50, "caller_max_pixel_steps_per_minute": 10**12}


async def test_a_request_has_one_reading_by_the_engines_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {**OBJECT_INFO["Steps"], "output": ["LATENT"]}
    monkeypatch.setitem(OBJECT_INFO, "Steps", info)
    made: list[PromptWork] = []
    begin = PromptWork.__init__

    def counted(work: PromptWork, *arguments: object) -> None:
        made.append(work)
        begin(work, *arguments)  # type: ignore[arg-type]

    async with limited(tmp_path, **LIMITS) as front:
        monkeypatch.setattr(PromptWork, "__init__", counted)
        assert (await send(front, steps(6), FROM_OUTSIDE, request_id="one")).status_code == 202
        assert (await front.until("one", "completed", headers=FROM_OUTSIDE))["output"]
        assert len(made) == 1 and made[0].graph.object_info["Steps"]["output"] == ["LATENT"]  # type: ignore[index]
