"""Official workflow templates, loaded in ComfyUI's web interface and run on small models of random weights.

What makes a template large is made small on its widgets: images, steps, frames. Everything else stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from darkroom.engine.families.registry import family_named
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from tests.browser.interface import Interface
from tests.browser.visitor import SECONDS, visitor
from tests.engine.server.running_engine import RunningEngine, running_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKPOINTS = {
    "sdxl": ("sd_xl_base_1.0", "sd_xl_turbo_1.0_fp16"),
    "sdxl_refiner": ("sd_xl_refiner_1.0",),
    "sd3": ("sd3.5_large_fp8_scaled",),
    "flux": ("flux1-schnell-fp8",),
    "lumina2": ("NetaYumev35_pretrained_all_in_one",),
    "svd": ("svd_xt",),
}
TEMPLATES = (
    *(
        "flux_schnell",
        "sd3.5_simple_example",
        "image_sdxl_simple",
        "sdxl_simple_example",
        "sdxl_refiner_prompt_example",
    ),
    *("sdxlturbo_example", "image_netayume_lumina_t2i", "txt_to_image_to_video"),
)
# Their sub-graphs' values are saved in every form: of older pages, of newer ones, with entries, names, kept values.
WITH_SUB_GRAPHS = (
    *("video_wan2_2_14B_i2v", "video_wan2_2_14B_t2v", "image_flux2_text_to_image_9b", "image_krea2_turbo_t2i"),
    *("image_flux2_klein_image_edit_4b_base", "image_qwen_image_2_1_t2i", "image_ernie_image", "flux1_krea_dev"),
    *("image-qwen_image_edit_2511_lora_inflation", "image_qwen_image_instantx_controlnet", "sd3.5_large_depth"),
    *("image_z_image_turbo", "image_netayume_lumina_t2i", "flux_depth_lora_example"),
)
SMALL = {"width": 64, "height": 64, "steps": 2, "video_frames": 2, "start_at_step": 1, "end_at_step": 1,
         "x": 0, "y": 0}  # fmt: skip
RUN_SECONDS = 5 * SECONDS
"""For a run of small models on a machine that has much else to do."""
TO_THE_END = 1000  # an `end_at_step` from here on stays
LOAD = """async ([name, small, end]) => {
    const workflow = await (await fetch(`/templates/${name}.json`)).json();
    await app.loadGraphData(workflow, true, true, name);
    for (const node of app.graph.nodes)
        for (const widget of node.widgets ?? [])
            if (widget.name in small && !(widget.name === "end_at_step" && widget.value >= end))
                widget.value = Math.min(widget.value, small[widget.name]);
    return app.graph.nodes.filter((node) => node.has_errors).map((node) => node.type);
}"""
EXPORT = """async (name) => {
    const workflow = await (await fetch(`/templates/${name}.json`)).json();
    await app.loadGraphData(workflow, true, false, null);
    return [workflow, (await app.graphToPrompt()).output];
}"""
RUN = """async () => {
    const { output, workflow } = await app.graphToPrompt();
    const { prompt_id, node_errors } = await app.api.queuePrompt(0, { output, workflow });
    return [prompt_id, node_errors];
}"""


def furnish(base: Path) -> None:
    """Write every model that the templates name."""
    folder = base / "models" / "checkpoints"
    folder.mkdir(parents=True)
    for family, names in CHECKPOINTS.items():
        first = folder / f"{names[0]}.safetensors"
        write_random_checkpoint(first, family=family_named(family))
        for name in names[1:]:
            os.link(first, first.with_name(f"{name}.safetensors"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    pytest.importorskip("comfyui_frontend_package", reason="the extra front-end is not installed")
    pytest.importorskip("comfyui_workflow_templates_json", reason="the extra front-end is not installed")
    base = tmp_path_factory.mktemp("templates")
    furnish(base)
    with running_engine(base, "--front-end") as running:
        yield running


@pytest.fixture(scope="module")
def interface(browser: Browser, engine: RunningEngine) -> Iterator[Interface]:
    with visitor(browser, width=1500, height=900) as guest:
        guest.page.goto(engine.url)
        guest.page.get_by_placeholder("Search ...").last.wait_for()
        guest.page.keyboard.press("Escape")
        yield Interface(guest, engine.url)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_loaded_and_runs(interface: Interface, name: str) -> None:
    page = interface.page
    assert page.evaluate(LOAD, [name, SMALL, TO_THE_END]) == []
    assert page.get_by_text("Missing Node Types").count() == 0
    prompt_id, errors = page.evaluate(RUN)
    assert not errors
    entry = page.evaluate(
        """async ([id, milliseconds]) => {
            for (const end = Date.now() + milliseconds; Date.now() < end; ) {
                const found = (await (await fetch(`/history/${id}`)).json())[id];
                if (found) return found;
                await new Promise((wake) => setTimeout(wake, 100));
            }
        }""",
        [prompt_id, RUN_SECONDS * 1000],
    )
    assert entry["status"]["status_str"] == "success", entry["status"]
    assert any("images" in output for output in entry["outputs"].values())
    assert not interface.complaints()


@pytest.mark.parametrize("name", WITH_SUB_GRAPHS)
def test_the_interface_makes_the_same_prompt_of_a_template(interface: Interface, name: str) -> None:
    saved, prompt = interface.page.evaluate(EXPORT, name)
    declared = interface.page.evaluate("async () => await (await fetch('/object_info')).json()")
    ours = to_prompt(saved, declared, lambda _count: 0)
    assert {node_id: entry["inputs"] for node_id, entry in ours.items()} == {
        node_id: entry["inputs"] for node_id, entry in prompt.items()
    }
