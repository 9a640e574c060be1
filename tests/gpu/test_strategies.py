"""Every strategy that a card can have, also those with kernels of their own, draws what the plain path draws.

They are found by being there: a new one is tested by these.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.gpu_parts.sampling import COMPILING, Drawing, computing_engine, usable_strategies
from darkroom.contract.quality import STRATEGIES
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.tuning.quality import Quality
from tests.gpu.benches import bench_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAMILIES = ("sd15", "sdxl", "flux", "wan", "qwen_image", "z_image")
# In 16 bits each order of additions has an error of its own, more than the tolerance for a network of full size.
MOST_ROUNDING = 2e-2


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in COMPILING])
def test_a_strategy_draws_what_the_plain_path_draws(tmp_path: Path, name: str) -> None:
    bench = bench_in(tmp_path)
    strategy = usable_strategies(bench).get(name)
    if strategy is None:
        pytest.skip(f"needs a CUDA device that has {name}")
    for family in FAMILIES:
        with computing_engine(bench) as engine:
            model, clip, _ = engine.models.random_checkpoint(family, "small")
            drawing = Drawing.of_text(bench, engine, model, clip, family=family, side_px=64, num_steps=3)
            plain, tuned, again = (drawing.draw(names).latent for names in ((), (name,), ()))
            engine.tuner.release()
        error = relative_error(tuned, plain)
        most = {Quality.EXACT: 0.0, Quality.SAME: MOST_ROUNDING}.get(strategy.quality, Quality.DRAFT.tolerance)
        assert error <= most, (family, error)
        assert torch.equal(again, plain), (family, "it has left a change behind")
