"""Parity with strategies of tuning on: `same` within the tolerance of parity, `exact` with the bits of the plain path.

CUDA graphs are played by a recorder that computes anew from the static buffers, so that these are proven here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph, Graphs
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from tests.engine.tuning.outcomes import use_everywhere
from tests.engine.tuning.replaying import Replaying
from tests.parity.in_process import assert_like_the_reference, run_case
from tests.parity.recorded import Case, find_cases

FAST = (Case("examples", "lcm_basic"),)  # a LoRA
ALL = list(find_cases())
CASES_TO_RUN = [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in ALL if case not in FAST)]
WITH_GRAPHS, WITH_CACHE = ("cuda_graph", "step_graph"), ("prompt_cache",)
SAME = (
    "prompt_cache",
    "fused_qkv",
    "fused_geglu",
    "attention_kernels",
)

pytestmark = pytest.mark.timeout(600)


def tuned_engine(base: Path, names: tuple[str, ...]) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=base, cpu=True)) as engine:
        graphs = Graphs(Replaying())
        engine.tuner.replace(CudaGraph(graphs), StepGraph(graphs))
        use_everywhere(engine, {"same": names})
        yield engine
        engine.tuner.check_integrity()


@pytest.fixture(scope="module")
def of_same(base: Path) -> Iterator[Engine]:
    yield from tuned_engine(base, SAME)


@pytest.fixture(scope="module", params=[WITH_GRAPHS, pytest.param(WITH_CACHE, marks=pytest.mark.slow)], ids="".join)
def of_exact(base: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from tuned_engine(base, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=str)
def test_draws_what_comfyui_draws(of_same: Engine, case: Case) -> None:
    assert_like_the_reference(of_same, case)


@pytest.mark.parametrize("case", CASES_TO_RUN, ids=str)
def test_exact_strategies_draw_the_plain_paths_bits(engine: Engine, of_exact: Engine, case: Case) -> None:
    assert run_case(of_exact, case) == run_case(engine, case)
