"""Official workflow templates, loaded in ComfyUI's web interface and run on small models of random weights.

What makes a template large is made small on its widgets: pictures, steps, frames. Everything else stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from engine.architectures.upscaler import RrdbConfig, RrdbNet
from engine.checkpoints.random_weights import write_random_checkpoint
from engine.families.registry import default_family, family_named
from engine.formats.safetensors_file import write_safetensors
from tests.browser.interface import Interface
from tests.browser.visitor import SECONDS, visitor
from tests.engine.server.running_engine import RunningEngine, running_engine
from tests.flow.small_models import write_control_net, write_lora

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKPOINTS = {
    "sd15": (
        "v1-5-pruned-emaonly-fp16", "dreamshaper_8", "DreamShaper_8_pruned", "512-inpainting-ema",
        "japaneseStyleRealistic_v20", "majicmixRealistic_v7", "architecturerealmix_v11", "awpainting_v14",
    ),
    "sd2": ("v2-1_768-ema-pruned",),
    "sdxl": ("sd_xl_base_1.0", "sd_xl_turbo_1.0_fp16"),
    "sdxl_refiner": ("sd_xl_refiner_1.0",),
    "sd3": ("sd3.5_large_fp8_scaled",),
    "flux": ("flux1-dev-fp8", "flux1-schnell-fp8"),
    "lumina2": ("NetaYumev35_pretrained_all_in_one",),
    "svd": ("svd", "svd_xt"),
}  # fmt: skip
LORAS = ("MoXinV1", "blindbox_v1_mix")
CONTROL_NETS = ("control_v11p_sd15_scribble_fp16", "control_v11p_sd15_openpose_fp16", "control_v11f1p_sd15_depth_fp16")
VAE, VAE_PREFIX = "vae-ft-mse-840000-ema-pruned", "first_stage_model."
UPSCALER = "RealESRGAN_x4plus"
PICTURES = (
    "example.png", "input.png", "mountains.png", "pasted/image (2).png", "input (3).png", "depth_input (1).png",
    "image (70).png", "image (72).png",
)  # fmt: skip
TEMPLATES = (
    "default", "image2image", "lora", "lora_multiple", "inpaint_example", "inpaint_model_outpainting",
    "embedding_example", "area_composition", "area_composition_square_area_for_subject", "hiresfix_latent_workflow",
    "esrgan_example", "hiresfix_esrgan_workflow", "latent_upscale_different_prompt_model", "controlnet_example",
    "2_pass_pose_worship", "depth_controlnet", "mixing_controlnets", "flux_dev_checkpoint_example", "flux_schnell",
    "sd3.5_simple_example", "sdxl_simple_example", "sdxl_refiner_prompt_example", "sdxlturbo_example",
    "image_netayume_lumina_t2i", "image_to_video", "txt_to_image_to_video",
)  # fmt: skip
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
RUN = """async () => {
    const { output, workflow } = await app.graphToPrompt();
    const { prompt_id, node_errors } = await app.api.queuePrompt(0, { output, workflow });
    return [prompt_id, node_errors];
}"""


def furnish(base: Path, small_checkpoint: Path) -> None:
    """Write every model and picture that the templates name."""
    models = base / "models"
    (models / "checkpoints").mkdir(parents=True)
    for family, names in CHECKPOINTS.items():
        first = models / "checkpoints" / f"{names[0]}.safetensors"
        if family == "sd15":
            os.link(small_checkpoint, first)
        else:
            write_random_checkpoint(first, family=family_named(family))
        for name in names[1:]:
            os.link(first, first.with_name(f"{name}.safetensors"))
    torch.manual_seed(0)
    for name in LORAS:
        write_lora(models / "loras" / f"{name}.safetensors", default_family(), small_checkpoint)
    for name in CONTROL_NETS:
        write_control_net(models / "controlnet" / f"{name}.safetensors", default_family())
    whole = load_file(small_checkpoint)
    weights = {name.removeprefix(VAE_PREFIX): weight for name, weight in whole.items() if name.startswith(VAE_PREFIX)}
    for folder, name, tensors in (
        ("vae", VAE, weights),
        ("upscale_models", UPSCALER, RrdbNet(RrdbConfig(3, 3, 8, 4, 1, 1)).state_dict()),
    ):
        (models / folder).mkdir()
        write_safetensors(models / folder / f"{name}.safetensors", {key: t.contiguous() for key, t in tensors.items()})
    for name in PICTURES:
        (base / "input" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").resize((64, 64)).convert("RGBA").save(base / "input" / name)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningEngine]:
    pytest.importorskip("comfyui_frontend_package", reason="the extra front-end is not installed")
    pytest.importorskip("comfyui_workflow_templates_json", reason="the extra front-end is not installed")
    base = tmp_path_factory.mktemp("templates")
    furnish(base, small_checkpoint)
    with running_engine(base, "--front-end") as running:
        yield running


@pytest.fixture(scope="module")
def interface(browser: Browser, engine: RunningEngine) -> Iterator[Interface]:
    with visitor(browser, width=1500, height=900) as guest:
        guest.page.goto(engine.url)
        guest.page.get_by_placeholder("Search...").wait_for()
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
