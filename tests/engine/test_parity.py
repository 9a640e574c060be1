"""ComfyUI's recorded latents and pictures, drawn again by the engine in this process.

A fast share of `../shared/parity/cases`, on one small checkpoint; each case's models are made when it is the first to
need them. All others run with `./test.sh -m slow tests/engine/test_parity.py`. Tolerances are far below those that
came with the cases, as what differs is the order of sums, except where a case brings one of its own.
"""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.checkpoints.safetensors_file import SafetensorsFile
from engine.engine import Engine
from engine.runtime.request import RunRequest
from engine.settings import EngineSettings

PARITY = Path(__file__).parents[3] / "shared" / "parity"
LATENT_REL_L2 = 5e-5
PIXEL_MAX = 1

FAST = (
    "base_txt2img", "base_odd_latent", "base_batch2_ancestral", "base_cfg_1", "clip_skip_2", "prompt_weight_nested",
    "prompt_long_weighted", "prompt_unicode", "img2img_basic", "img2img_latent_file", "vae_encode_odd_size",
    "sampler_dpm_2", "sampler_dpmpp_2m", "sampler_lms", "sampler_ddim", "scheduler_ddim_uniform", "scheduler_karras",
    "scheduler_sgm_uniform", "custom_dual_cfg_nested", "custom_extend_sigmas", "custom_node_sampler_sa_solver",
    "custom_scheduler_gits", "custom_denoised_output", "patch_freeu_v2", "patch_hypertile", "patch_sag", "patch_tome",
    "patch_discrete_lcm", "patch_lazy_cache", "patch_perp_neg", "patch_apg", "patch_rescale_cfg",
    "inpaint_differential", "inpaint_vae_encode_odd", "advanced_two_stage", "vae_encode_tiled",
    "latent_ops_math", "latent_ops_composite", "latent_ops_geometry", "latent_operation",
    "cond_default_combine", "cond_set_area_percentage",
    "primitives_into_sampler", "text_nodes",
    "lora_one", "lora_lokr", "lora_hook_cond", "prompt_embedding_weighted", "control_apply", "patch_hypernetwork",
    "upscale_model_rrdb_x2_old",
)  # fmt: skip
SLOW = [
    path.stem
    for path in sorted((PARITY / "cases").glob("*.json"))
    if path.stem not in FAST and not path.stem.endswith(".tolerance")
]

pytestmark = [
    pytest.mark.skipif(not PARITY.is_dir(), reason=f"no parity cases at {PARITY}"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("parity")
    shutil.copytree(PARITY / "inputs", base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


def _make_models(engine: Engine, prompt_text: str) -> None:
    """Writes the model files that a prompt names and that are not there yet."""
    models = engine.settings.models_path
    write_model = runpy.run_path(str(PARITY / "make_models.py"))["write_model"]
    for path in sorted((PARITY / "layouts").glob("*.json")):
        layout = json.loads(path.read_text("utf-8"))
        file = models / layout["file"]
        name = file.stem if "embeddings" in file.parts else file.name  # prompts name embeddings without an ending
        if name in prompt_text and not file.exists():
            write_model(layout, models, "float16")


def _path(engine: Engine, file: dict[str, Any]) -> Path:
    return Path(engine.files.of(file["type"]), file["subfolder"], file["filename"])


def _run(engine: Engine, case: str) -> dict[str, Path | str]:
    """Runs a case; the file or text of each output by `NODE_INDEX`, as the expected ones are named."""
    text = (PARITY / "cases" / f"{case}.json").read_text("utf-8")
    _make_models(engine, text)
    prompt: dict[str, Any] = json.loads(text)
    request = RunRequest(case, prompt, engine.check(prompt).outputs, {})
    result = engine.submit(request, lambda event: None).result()
    engine.memory.pool.check_integrity()
    assert result.status == "success"
    found: dict[str, Path | str] = {}
    for node_id, shown in result.outputs.items():
        items = [item for kind in shown.values() for item in kind if isinstance(item, (dict, str))]
        for index, item in enumerate(items):
            found[f"{node_id}_{index}"] = item if isinstance(item, str) else _path(engine, item)
    return found


def _assert_like_the_reference(engine: Engine, case: str) -> None:
    own = PARITY / "cases" / f"{case}.tolerance.json"
    tolerance = json.loads(own.read_text("utf-8")) if own.exists() else {}
    outputs = _run(engine, case)
    assert sorted(outputs) == sorted(path.stem for path in (PARITY / "cases" / f"{case}.expected").iterdir())
    for expected in sorted((PARITY / "cases" / f"{case}.expected").iterdir()):
        path = outputs[expected.stem]
        if isinstance(path, str):
            assert path == expected.read_text("utf-8"), expected.name
        elif expected.suffix == ".latent":
            ours, theirs = (SafetensorsFile(item).tensor("latent_tensor").double() for item in (path, expected))
            assert float((ours - theirs).norm() / theirs.norm()) < tolerance.get("latent_rel_l2", LATENT_REL_L2)
        else:
            pixels, reference = (np.asarray(Image.open(item).convert("RGBA")).astype(int) for item in (path, expected))
            assert np.abs(pixels - reference).max() <= tolerance.get("png_max", PIXEL_MAX), expected.name


@pytest.mark.parametrize("case", FAST)
def test_draws_what_comfyui_draws(engine: Engine, case: str) -> None:
    _assert_like_the_reference(engine, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_draws_what_comfyui_draws_in_every_other_case(engine: Engine, case: str) -> None:
    _assert_like_the_reference(engine, case)
