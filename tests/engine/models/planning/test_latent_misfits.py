"""A VAE of other latents than the model's is refused when the prompt is checked, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import EngineSettings
from tests.engine.simulated_card import node

# The VAEs of the first two have other channels than one another, those of the others the same number as Flux's.
PAIRS = {"sd15": "flux", "flux": "sd15", "wan": "hunyuan_video", "hunyuan_video": "wan"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with a checkpoint of each family, and the VAE of each in a file of its own."""
    base = tmp_path_factory.mktemp("base")
    for name in PAIRS:
        family = registry.family_named(name)
        path = base / "models" / "checkpoints" / f"{name}.safetensors"
        write_random_checkpoint(path, family=family)
        file = SafetensorsFile(path)
        found = registry.names_of(family.vae, file.shapes, in_checkpoint=True)
        assert found is not None
        held = sorted({item for item in found.values() if isinstance(item, str)})
        vae = {item.removeprefix("vae.").removeprefix("first_stage_model."): file.tensor(item) for item in held}
        write_safetensors(base / "models" / "vae" / f"{name}_vae.safetensors", vae, {})
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def workflow(model: str, vae: list[object], **between: Any) -> dict[str, Any]:
    sampling = {"seed": 1, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=f"{model}.safetensors"),
        "2": node("CheckpointLoaderSimple", ckpt_name=f"{PAIRS[model]}.safetensors"),
        "3": node("VAELoader", vae_name=f"{model}_vae.safetensors"),
        "4": node("VAELoader", vae_name=f"{PAIRS[model]}_vae.safetensors"),
        "5": node("CLIPTextEncode", clip=["1", 1], text="a boat"),
        "6": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "7": node("KSampler", model=["1", 0], positive=["5", 0], negative=["5", 0], latent_image=["6", 0], **sampling),
        **between,
        "8": node("VAEDecode", samples=["9", 0] if between else ["7", 0], vae=vae),
        "10": node("SaveImage", images=["8", 0], filename_prefix="a"),
    }


UPSCALED = {"9": node("LatentUpscaleBy", samples=["7", 0], upscale_method="nearest-exact", scale_by=1.0)}


PARTED = {"9": node("LTXVSeparateAVLatent", av_latent=["7", 0])}
MERGED = {"9": node("SeedVR2TemporalMerge", latents=["7", 0], temporal_overlap=0)}


@pytest.mark.parametrize("between", [{}, UPSCALED, PARTED, MERGED], ids=["", "upscaled", "parted", "merged"])
@pytest.mark.parametrize("source", ["2", "4"])
@pytest.mark.parametrize("model", PAIRS)
def test_another_vae_is_refused_with_what_would_fit(
    engine: Engine, model: str, source: str, between: dict[str, Any]
) -> None:
    label = registry.family_named(model).label
    slot = 2 if source == "2" else 0
    with pytest.raises(PromptRejected) as refused:
        engine.check(workflow(model, [source, slot], **between))
    (problem,) = refused.value.node_problems["8"].problems
    assert problem.explanation is not None and problem.explanation.field == "vae"
    assert problem.explanation.allowed == [f"{model}_vae.safetensors"]
    assert f"cannot decode what '{model}.safetensors' samples" in problem.details and label in problem.details


@pytest.mark.parametrize("source", ["1", "3"])
@pytest.mark.parametrize("model", PAIRS)
def test_the_models_own_vae_fits(engine: Engine, model: str, source: str) -> None:
    assert engine.check(workflow(model, [source, 2 if source == "1" else 0])).outputs == ("10",)


def test_other_streams_than_the_first_are_left_alone(engine: Engine) -> None:
    prompt = workflow("sd15", ["4", 0], **PARTED)
    prompt["8"]["inputs"]["samples"] = ["9", 1]
    assert engine.check(prompt).outputs == ("10",)


@pytest.mark.parametrize(
    "between",
    [
        node("LatentAdd", samples1=["7", 0], samples2=["7", 0]),
        node("ReplaceVideoLatentFrames", destination=["7", 0], source=["7", 0], index=0),
    ],
)
def test_latents_of_unknown_nodes_and_of_several_others_are_left_alone(engine: Engine, between: dict[str, Any]) -> None:
    prompt = workflow("sd15", ["4", 0], **{"9": between})
    assert engine.check(prompt).outputs == ("10",)
