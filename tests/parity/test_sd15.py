"""ComfyUI's recorded latents and images of Stable Diffusion 1.5, drawn again by the engine in this process.

A fast share runs with `./test.sh`, on one small checkpoint: what no case of the smaller models of Stable Diffusion XL
does (`test_families.py`, `test_examples.py`). Each case's models are made when it is the first to need them. All others
run with `./test.sh -m slow tests/parity`. Tolerances are far below those that came with the cases, as what differs is
the order of sums, except where a case brings one of its own.
"""

from __future__ import annotations

import pytest

from darkroom.engine.engine import Engine
from tests.parity.in_process import assert_like_the_reference
from tests.parity.recorded import Case, find_cases

FAMILY = "sd15"
FAST = ("prompt_embedding_weighted", "latent_ops_composite", "upscale_model_rrdb_x2_old")
SLOW = [case.name for case in find_cases(family=FAMILY) if case.name not in FAST]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", FAST)
def test_draws_what_comfyui_draws(engine: Engine, name: str) -> None:
    assert_like_the_reference(engine, Case(FAMILY, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_draws_what_comfyui_draws_in_the_rest(engine: Engine, name: str) -> None:
    assert_like_the_reference(engine, Case(FAMILY, name))
