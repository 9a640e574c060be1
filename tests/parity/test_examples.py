"""Published workflows, drawn by the engine in this process as ComfyUI draws them.

The cases are those that ComfyUI's own examples and other serverless workers ship, and official templates, on small
models: smaller images, fewer steps, other words; the README lists where each comes from. A fast share runs with
`./test.sh` (of the templates by `test_families.py`), the others with `./test.sh -m slow tests/parity`.
"""

from __future__ import annotations

import pytest

from darkroom.engine.engine import Engine
from tests.parity.in_process import assert_like_the_reference
from tests.parity.recorded import Case, find_cases

EXAMPLES = "examples"
TEMPLATES = "templates"
FAST = (
    "sdxl_refiner_prompt", "lcm_basic", "sdturbo_sdxlturbo", "edit_models_sdxl_edit_model",
    "sdxl_revision_text_prompts", "comfyui_api_sdxl_img2img", "comfyui_api_sdxl_refiner", "worker_comfyui_sdxl_turbo",
)  # fmt: skip
SLOW = [case.name for case in find_cases(family=EXAMPLES) if case.name not in FAST]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", FAST)
def test_draws_a_published_workflow_as_comfyui_does(engine: Engine, name: str) -> None:
    assert_like_the_reference(engine, Case(EXAMPLES, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_draws_the_other_published_workflows_as_comfyui_does(engine: Engine, name: str) -> None:
    assert_like_the_reference(engine, Case(EXAMPLES, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in find_cases(family=TEMPLATES)])
def test_draws_an_official_template_as_comfyui_does(engine: Engine, name: str) -> None:
    assert_like_the_reference(engine, Case(TEMPLATES, name))
