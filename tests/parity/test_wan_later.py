"""Wan's later networks beside ComfyUI's recorded latents and images: all workflows, with `./test.sh -m slow`."""

from __future__ import annotations

import pytest

from darkroom.engine.engine import Engine
from tests.parity.in_process import assert_like_the_reference
from tests.parity.recorded import Case, find_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("case", [*find_cases(family="wan_later")], ids=lambda case: case.name)
def test_draws_what_comfyui_draws(engine: Engine, case: Case) -> None:
    assert_like_the_reference(engine, case)
