"""Memory plans of prompts: stages by the nodes, sizes by the files' headers or by their families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.settings import EngineSettings
from tests.tiny_checkpoint import make_tiny_checkpoint

GIB = 1 << 30


def image(checkpoint: str = "tiny.safetensors") -> dict[str, Any]:
    sampled = {"seed": 1, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "9": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "a"}},
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {
            "class_type": "LoraLoader",
            "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": "l", "strength_model": 1, "strength_clip": 1},
        },
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "a", "clip": ["2", 1]}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "6": {
            "class_type": "KSampler",
            "inputs": {
                **sampled, "model": ["2", 0], "positive": ["4", 0], "negative": ["4", 0], "latent_image": ["5", 0],
            },
        },
        "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": ["1", 2]}},
        "8": {"class_type": "NobodyHasThis", "inputs": {"model": ["1", 0]}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("base")
    (base / "models" / "checkpoints").mkdir(parents=True)
    make_tiny_checkpoint(base / "models" / "checkpoints")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def test_stages_are_those_that_compute_with_a_model_and_sizes_those_of_its_weights(engine: Engine) -> None:
    plan = engine.checks.memory_plan(image(), pixels={"6": 64 * 64})
    assert [(item.need.node_id, item.need.kind) for item in plan.stages] == [
        ("4", "text_encoder"), ("6", "network"), ("7", "vae"),
    ]  # fmt: skip
    model, clip, vae = engine.models.checkpoint("tiny.safetensors")
    assert clip is not None and vae is not None
    sizes = [item.need.weights_bytes for item in plan.stages]
    for planned, value in zip(sizes, (clip.patcher, model, vae.patcher), strict=True):
        assert planned == pytest.approx(value.weights.size_bytes, rel=0.02)
    assert plan.is_shared and plan.unknown == () and not any(item.streamed_bytes for item in plan.stages)


def test_a_card_may_be_named_by_its_size(engine: Engine) -> None:
    plan = engine.checks.memory_plan(image(), total_bytes=24 * GIB)
    here = engine.checks.memory_plan(image())
    assert plan.stages[1].need.weights_bytes * 2 == here.stages[1].need.weights_bytes, "16 bits, not float32"


def test_a_missing_checkpoint_has_its_familys_size(engine: Engine) -> None:
    missing = {"checkpoints/sdxl.safetensors": {"size_bytes": 6_938_078_334, "family": "sdxl"}}
    plan = engine.checks.memory_plan(image("sdxl.safetensors"), total_bytes=6 * GIB, missing=missing)
    network = plan.stages[1]
    assert network.need.weights_bytes == pytest.approx(4.8 * GIB, rel=0.01)
    assert network.evicted and plan.as_json()["fits"] in (True, False)
    unknown = engine.checks.memory_plan(image("other.safetensors"), total_bytes=6 * GIB)
    assert unknown.unknown == ("other.safetensors",) and unknown.stages == ()


def test_a_video_with_audio_counts_the_numbers_of_its_latent(engine: Engine) -> None:
    """The estimate of the plan is that of sampling itself, which takes packed latents."""
    missing = {"checkpoints/new.safetensors": {"family": "minimax_h3"}}
    frames, height, width = 37, 48, 84  # latent frames, rows and columns of 768 x 1344 pixels
    plan = engine.checks.memory_plan(
        image("new.safetensors"), total_bytes=80 * GIB, missing=missing, pixels={"6": frames * 768 * 1344}
    )
    need = next(item.need for item in plan.stages if item.need.kind == "network")
    assert need.weights_bytes == pytest.approx(2 * 33.123e9, rel=1e-3)
    family = registry.family_named("minimax_h3")
    numbers = 24 * frames * height * width
    assert need.working_bytes == pytest.approx(numbers * 2 * 0.01 * family.memory_usage_factor * (1 << 20), rel=1e-6)


def test_a_file_of_a_network_alone_has_the_size_of_the_file(engine: Engine) -> None:
    prompt = image()
    prompt["1"] = {"class_type": "UNETLoader", "inputs": {"unet_name": "n.safetensors", "weight_dtype": "default"}}
    missing = {"diffusion_models/n.safetensors": {"size_bytes": 10 * GIB}}
    plan = engine.checks.memory_plan(prompt, total_bytes=24 * GIB, missing=missing)
    assert [item.need.weights_bytes for item in plan.stages if item.need.kind == "network"] == [10 * GIB]


def test_what_is_no_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptRejected):
        engine.checks.memory_plan([])
