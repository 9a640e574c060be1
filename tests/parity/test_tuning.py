"""Parity with strategies of tuning on: `same` within the tolerance of parity, `exact` with the bits of the plain path.

CUDA graphs are played by a recorder that computes anew from the static buffers, so that these are proven here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.settings import EngineSettings
from engine.tuning.strategies.cuda_graph import CudaGraph, Graphs
from engine.tuning.strategies.step_graph import StepGraph
from tests.engine.tuning.replaying import Replaying
from tests.parity.compare import CASES
from tests.parity.in_process import assert_like_the_reference, run_case

FAMILY = "sd15"
FAST = ("lora_hook_cond",)
SLOW = (
    "base_odd_latent", "control_apply",
    "base_batch2_ancestral", "lora_one", "patch_tome", "cond_set_area_percentage", "custom_dual_cfg_nested",
    "base_txt2img", "base_cfg_1", "prompt_long_weighted", "sampler_dpm_2", "sampler_lms", "patch_hypertile",
    "patch_freeu_v2", "patch_sag", "patch_lazy_cache", "patch_perp_neg", "cond_default_combine", "cond_timestep_range",
    "inpaint_differential", "advanced_two_models", "control_two", "patch_hypernetwork", "img2img_basic",
)  # fmt: skip
CASES_TO_RUN = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
WITH_GRAPHS, WITH_CACHE = ("cuda_graph", "step_graph"), ("prompt_cache",)
SAME = (
    "prompt_cache",
    "channels_last",
    "fused_qkv",
    "fused_geglu",
    "attention_kernels",
    "joined_embeddings",
    "host_sigmas",
)

pytestmark = pytest.mark.timeout(600)


def tuned_engine(base: Path, names: tuple[str, ...]) -> Iterator[Engine]:
    choice = {"names": names, "it_per_s": 1.0, "error": 0.0}
    outcome = {"machine": {}, "network": "UnetModel", "workload": {}, "plain_it_per_s": 1.0, "figures": [],
               "choices": {"same": choice}, "seconds": 0.0, "version": 1}  # fmt: skip
    with Engine(EngineSettings(base_directory=base, cpu=True)) as engine:
        graphs = Graphs(Replaying())
        engine.tuner._strategies.update(cuda_graph=CudaGraph(graphs), step_graph=StepGraph(graphs))
        engine.adopt_tuning(outcome)
        yield engine
        engine.tuner.check_integrity()


@pytest.fixture(scope="module")
def of_same(base: Path) -> Iterator[Engine]:
    yield from tuned_engine(base, SAME)


@pytest.fixture(scope="module", params=[WITH_GRAPHS, pytest.param(WITH_CACHE, marks=pytest.mark.slow)], ids="".join)
def of_exact(base: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from tuned_engine(base, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", (*FAST, *SLOW))
def test_draws_what_comfyui_draws(of_same: Engine, name: str) -> None:
    assert_like_the_reference(of_same, CASES / FAMILY / f"{name}.json")


@pytest.mark.parametrize("name", CASES_TO_RUN)
def test_exact_strategies_draw_the_plain_paths_bits(engine: Engine, of_exact: Engine, name: str) -> None:
    case = CASES / FAMILY / f"{name}.json"
    assert run_case(of_exact, case) == run_case(engine, case)
