"""Cost of a prompt by its samplers; one 512x512 image of 20 guided steps is 100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from darkroom.contract.graph.cost import price_of, sampler_works
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork
from darkroom.engine.families import registry
from darkroom.worker.engines.families import Family, ImageDefaults, read_families
from tests.worker.engines.test_families import LARGE


def cost_of(prompt: dict[str, Any], families: Mapping[ModelFile, Family] | None = None) -> float:
    return price_of(PromptWork(prompt), families or {}).cost


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def text_to_image(size: tuple[int, int] = (512, 512), batch: int = 1, **sampling: Any) -> dict[str, Any]:
    given = {"steps": 20, "cfg": 7.5, "sampler_name": "euler", "denoise": 1.0, "latent_image": ["5", 0]}
    return {
        "3": node("KSampler", **given | sampling),
        "5": node("EmptyLatentImage", width=size[0], height=size[1], batch_size=batch),
        "8": node("VAEDecode", samples=["3", 0]),
        "9": node("SaveImage", images=["8", 0]),
    }


@pytest.mark.parametrize(
    ("prompt", "cost"),
    [
        (text_to_image(), 100),
        (text_to_image((1024, 1024)), 400),
        (text_to_image((512, 768)), 150),
        (text_to_image(batch=4), 400),
        (text_to_image(steps=5), 25),
        (text_to_image(cfg=1.0), 50),
        (text_to_image(sampler_name="heun"), 200),
        (text_to_image(denoise=0.5), 100),
    ],
)
def test_pixels_steps_and_passes_are_multiplied(prompt: dict[str, Any], cost: float) -> None:
    assert cost_of(prompt) == pytest.approx(cost)


def test_loops_within_loops_have_a_finite_cost() -> None:
    starts = {f"s{n}": node("StartLoop", mode="simple", **{"mode.num_iterations": 1000}) for n in range(100)}
    ends = {f"e{n}": node("EndLoop", output_value=[f"e{n - 1}" if n else "8", 0]) for n in range(100)}
    for n in range(1, 100):
        starts[f"s{n}"]["inputs"]["value"] = [f"s{n - 1}", 0]
    assert 1e9 < cost_of(text_to_image(seed=["s99", 0], steps=10_000, batch=4096) | starts | ends) < 1e18


@pytest.mark.parametrize(
    ("mode", "cost"),
    [
        ({"mode": "simple", "mode.num_iterations": 3}, 300),
        ({"mode": "simple", "mode.num_iterations": ["7", 0]}, 500),
        ({"mode": "For", "mode.start_iteration_index": 2, "mode.max_iteration": 7, "mode.step": 2}, 300),
        ({"mode": "List", "mode.list": ["7", 0]}, 100),
        ({"mode": "simple", "mode.num_iterations": 10**9}, 100_000),
    ],
)
def test_a_sampler_within_a_loop_costs_each_iteration(mode: dict[str, Any], cost: float) -> None:
    looped = text_to_image(seed=["1", 0]) | {
        "1": node("StartLoop", cache_iterations=False, **mode),
        "7": node("PrimitiveInt", value=5),
        "9": node("SaveImage", images=["10", 0]),
        "10": node("EndLoop", output_value=["8", 0], accumulate=True),
    }
    assert cost_of(looped) == pytest.approx(cost)


def test_an_advanced_sampler_costs_the_steps_it_takes() -> None:
    prompt = text_to_image(start_at_step=5, end_at_step=10000)
    assert cost_of(prompt) == pytest.approx(75)


def test_a_second_sampler_after_an_upscale_costs_the_larger_size() -> None:
    prompt = text_to_image() | {
        "10": node("LatentUpscaleBy", samples=["3", 0], scale_by=2.0),
        "11": node("KSampler", steps=10, cfg=7.5, sampler_name="euler", latent_image=["10", 0]),
    }
    assert cost_of(prompt) == pytest.approx(100 + 200)


def test_sizes_are_followed_through_images_and_upscale_models() -> None:
    prompt = text_to_image() | {
        "10": node("UpscaleModelLoader", model_name="RealESRGAN_x2.pth"),
        "11": node("ImageUpscaleWithModel", upscale_model=["10", 0], image=["8", 0]),
        "12": node("VAEEncode", pixels=["11", 0]),
        "13": node("KSampler", steps=20, cfg=7.5, sampler_name="euler", latent_image=["12", 0]),
    }
    assert cost_of(prompt) == pytest.approx(100 + 400)


@pytest.mark.parametrize(
    ("scaler", "cost"),
    [
        (node("LatentUpscale", samples=["3", 0], width=1024, height=0), 400),
        (node("ImageScaleToTotalPixels", image=["3", 0], megapixels=1.0), 400),
        (node("ImagePadForOutpaint", image=["3", 0], left=256, top=0, right=256, bottom=0), 200),
        (node("RepeatLatentBatch", samples=["3", 0], amount=3), 300),
        (node("SetLatentNoiseMask", samples=["3", 0], mask=["99", 0]), 100),
    ],
)
def test_nodes_between_change_the_size_as_they_do(scaler: dict[str, Any], cost: float) -> None:
    prompt = text_to_image() | {
        "10": scaler,
        "11": node("KSampler", steps=20, cfg=7.5, sampler_name="euler", latent_image=["10", 0]),
    }
    assert cost_of(prompt) == pytest.approx(100 + cost)


def test_a_custom_sampler_gets_its_steps_and_passes_from_the_nodes_it_is_linked_to() -> None:
    def prompt(guider: dict[str, Any]) -> dict[str, Any]:
        return {
            "1": node("EmptySD3LatentImage", width=1024, height=1024, batch_size=1),
            "2": guider,
            "3": node("KSamplerSelect", sampler_name="euler"),
            "4": node("BasicScheduler", steps=10, scheduler="simple", denoise=1.0),
            "5": node("SplitSigmas", sigmas=["4", 0], step=5),
            "6": node(
                "SamplerCustomAdvanced", guider=["2", 0], sampler=["3", 0], sigmas=["5", 0], latent_image=["1", 0]
            ),
        }

    assert cost_of(prompt(node("CFGGuider", cfg=5.0))) == pytest.approx(100)
    assert cost_of(prompt(node("CFGGuider", cfg=1.0))) == pytest.approx(50)
    assert cost_of(prompt(node("BasicGuider"))) == pytest.approx(50)


def test_the_parts_of_a_split_schedule_cost_what_the_whole_does() -> None:
    prompt = {
        "1": node("EmptyLatentImage", width=512, height=512, batch_size=1),
        "2": node("BasicScheduler", steps=20, scheduler="simple", denoise=1.0),
        "3": node("SplitSigmas", sigmas=["2", 0], step=8),
        "4": node("SamplerCustom", cfg=7.0, sampler=["9", 0], sigmas=["3", 0], latent_image=["1", 0]),
        "5": node("SamplerCustom", cfg=7.0, sampler=["9", 0], sigmas=["3", 1], latent_image=["4", 0]),
        "9": node("KSamplerSelect", sampler_name="euler"),
    }
    assert [item.num_calls for item in sampler_works(PromptWork(prompt), {})] == [8, 12]
    assert cost_of(prompt) == pytest.approx(100)


def test_what_was_assumed_for_a_cost_is_named() -> None:
    prompt = text_to_image(model=["1", 0], sampler_name="of_a_pack") | {
        "1": node("CheckpointLoaderSimple", ckpt_name="large.safetensors")
    }
    assumed = price_of(PromptWork(prompt), {})
    assert (assumed.models, assumed.samplers) == (("large.safetensors",), ("of_a_pack",))
    assert assumed.cost == pytest.approx(100)
    prompt["3"]["inputs"]["sampler_name"] = "heun"
    known = price_of(PromptWork(prompt), {ModelFile("checkpoints", "large.safetensors"): LARGE})
    assert (known.models, known.samplers) == ((), ())
    assert sampler_works(PromptWork(prompt), {})[0].unknown_sampler == ""


def test_a_sampler_that_decides_itself_is_of_unknown_cost() -> None:
    assert price_of(PromptWork(text_to_image(sampler_name="dpm_adaptive")), {}).samplers == ("dpm_adaptive",)


def test_a_node_that_stands_for_a_sampler_says_which() -> None:
    prompt = text_to_image() | {
        "3": node("SamplerCustom", cfg=7.5, sampler=["4", 0], sigmas=["6", 0], latent_image=["5", 0]),
        "4": node("SamplerDPMPP_SDE", eta=1.0, noise_device="gpu"),
        "6": node("BasicScheduler", steps=20),
    }
    assert cost_of(prompt) == pytest.approx(200)


def test_a_node_that_only_adds_noise_costs_nothing() -> None:
    prompt = text_to_image() | {
        "6": node("BasicScheduler", steps=20),
        "7": node("AddNoise", model=["1", 0], noise=["2", 0], sigmas=["6", 0], latent_image=["5", 0]),
    }
    assert cost_of(prompt) == pytest.approx(100)


def test_a_size_that_a_primitive_says_counts() -> None:
    prompt = text_to_image() | {"20": node("PrimitiveInt", value=1024)}
    prompt["5"]["inputs"] |= {"width": ["20", 0], "height": ["20", 0]}
    assert cost_of(prompt) == pytest.approx(400)


def test_what_cannot_be_known_counts_as_the_unit() -> None:
    uploaded = text_to_image(latent_image=["6", 0]) | {
        "6": node("VAEEncode", pixels=["7", 0]),
        "7": node("LoadImage", image="somebodys.png"),
    }
    assert cost_of(uploaded) == pytest.approx(100)
    assert cost_of({"1": node("Draw", text="x")}) == 100
    assert cost_of({}) == 100


def test_a_ring_of_links_ends() -> None:
    ring = {
        "1": node("KSampler", steps=20, cfg=7.5, latent_image=["2", 0]),
        "2": node("LatentFlip", samples=["1", 0]),
    }
    assert cost_of(ring) > 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(
    ["steps", "cfg", "width", "height", "batch_size", "latent_image", "samples", "scale_by", "length", "seconds"]
)
LINKS = st.lists(st.sampled_from(["1", "2", 1]) | st.integers(), min_size=2, max_size=2)
NODES = st.fixed_dictionaries({"inputs": st.dictionaries(NAMES, JSON | LINKS, max_size=6)}) | JSON


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["1", "2", "3"]), NODES))
def test_no_prompt_is_too_strange_for_a_finite_cost(prompt: dict[str, Any]) -> None:
    assert 0 < cost_of(prompt) < float("inf")


def test_a_sampler_costs_what_the_family_of_its_model_does() -> None:
    prompt = {
        "1": node("CheckpointLoaderSimple", ckpt_name="large.safetensors"),
        "2": node("LoraLoader", model=["1", 0], clip=["1", 1], lora_name="a"),
        "3": node("CheckpointLoaderSimple", ckpt_name="plain.safetensors"),
        "4": node("EmptyLatentImage", width=512, height=512, batch_size=1),
        "5": node("KSampler", model=["2", 0], latent_image=["4", 0], steps=20, cfg=7.0),
        "6": node("KSampler", model=["3", 0], latent_image=["5", 0], steps=20, cfg=7.0),
    }
    families = {ModelFile("checkpoints", "large.safetensors"): LARGE}
    assert cost_of(prompt, families=families) == pytest.approx(100 * LARGE.pixel_cost + 100)
    assert cost_of(prompt) == pytest.approx(200)


@pytest.mark.parametrize("first_link", ["guider", "model"])
def test_the_model_is_found_through_a_guider_and_a_random_checkpoint(first_link: str) -> None:
    prompt = {
        "1": node("DarkroomRandomCheckpoint", family="large", scale="full"),
        "2": node("CFGGuider", model=["1", 0], cfg=5.0),
        "3": node("EmptyLatentImage", width=512, height=512, batch_size=1),
        "4": node("Sampler", **{first_link: ["2", 0]}, latent_image=["3", 0], steps=20, cfg=5.0),
    }
    assert cost_of(prompt, families={ModelFile("family", "large"): LARGE}) == pytest.approx(100 * LARGE.pixel_cost)


def test_an_image_of_unknown_size_counts_as_the_familys_default() -> None:
    prompt = {
        "1": node("CheckpointLoaderSimple", ckpt_name="large.safetensors"),
        "2": node("LoadImage", image="a.png"),
        "3": node("VAEEncode", pixels=["2", 0], vae=["1", 2]),
        "4": node("KSampler", model=["1", 0], latent_image=["3", 0], steps=20, cfg=7.0),
    }
    families = {ModelFile("checkpoints", "large.safetensors"): LARGE}
    assert cost_of(prompt, families=families) == pytest.approx(100 * 4 * LARGE.pixel_cost)


def test_a_video_costs_what_its_latent_frames_do() -> None:
    video = ImageDefaults(512, 512, 20, 7.0, "euler", "simple", frames=81, frame_rate=16.0)
    families = {ModelFile("diffusion_models", "wan.safetensors"): Family("wan", video, pixel_cost=2.0)}
    prompt = {
        "1": node("UNETLoader", unet_name="wan.safetensors"),
        "2": node("EmptyHunyuanLatentVideo", width=512, height=512, length=33, batch_size=1),
        "3": node("KSampler", model=["1", 0], latent_image=["2", 0], steps=20, cfg=7.0),
    }
    assert video.latent_frames == 21
    assert cost_of(prompt, families=families) == pytest.approx(100 * 2.0 * 9)
    unsized = {**prompt, "2": node("PackLatent")}
    assert cost_of(unsized, families=families) == pytest.approx(100 * 2.0 * 21)


def test_pixels_are_dearer_in_a_longer_video_by_the_share_of_attention() -> None:
    video = ImageDefaults(512, 512, 20, 7.0, "euler", "simple", attention=0.5, frames=81, frame_rate=16.0)
    families = {ModelFile("diffusion_models", "wan.safetensors"): Family("wan", video, pixel_cost=2.0)}

    def cost(length: int, batch_size: int) -> float:
        prompt = {
            "1": node("UNETLoader", unet_name="wan.safetensors"),
            "2": node("EmptyHunyuanLatentVideo", width=512, height=512, length=length, batch_size=batch_size),
            "3": node("KSampler", model=["1", 0], latent_image=["2", 0], steps=20, cfg=7.0),
        }
        return cost_of(prompt, families=families)

    assert cost(81, 1) == pytest.approx(100 * 2.0 * 21)
    assert cost(165, 1) == pytest.approx(100 * 2.0 * 42 * 1.5)
    assert cost(81, 2) == pytest.approx(100 * 2.0 * 21 * 2)


def test_frames_that_are_images_of_a_batch_are_counted_each() -> None:
    prompt = {
        "1": node("LoadImage", image="a.png"),
        "2": node("SVD_img2vid_Conditioning", init_image=["1", 0], width=1024, height=512, video_frames=14),
        "3": node("KSampler", latent_image=["2", 2], steps=20, cfg=2.5),
    }
    assert cost_of(prompt) == pytest.approx(100 * 2 * 14)


def test_the_cost_of_stable_video_diffusion_is_that_of_its_usual_frames() -> None:
    shown = [(family.name, registry.described_defaults(family, family.default)) for family in registry.families()]
    read = {family.name: family for family in read_families([{"name": name, "default": item} for name, item in shown])}
    families = {ModelFile("checkpoints", "svd.safetensors"): read["svd"]}

    def cost(frames: int) -> float:
        size = {"width": 1024, "height": 576}
        prompt = {
            "1": node("ImageOnlyCheckpointLoader", ckpt_name="svd.safetensors"),
            "2": node("SVD_img2vid_Conditioning", clip_vision=["1", 1], vae=["1", 2], video_frames=frames, **size),
            "3": node("VideoLinearCFGGuidance", model=["1", 0], min_cfg=1.0),
            "4": node("KSampler", model=["3", 0], positive=["2", 0], latent_image=["2", 2], steps=20, cfg=2.5),
        }
        return cost_of(prompt, families=families)

    assert cost(14) == pytest.approx(
        100 * next(item.default.cost for item in registry.families() if item.name == "svd")
    )
    assert cost(25) == pytest.approx(25 / 14 * cost(14))


def test_audio_costs_what_its_seconds_do() -> None:
    audio = ImageDefaults(256, 256, 50, 5.0, "euler", "simple", seconds=40.0)
    families = {ModelFile("checkpoints", "sound.safetensors"): Family("sound", audio, pixel_cost=4.0)}

    def prompt(**latent: Any) -> dict[str, Any]:
        return {
            "1": node("CheckpointLoaderSimple", ckpt_name="sound.safetensors"),
            "2": node("EmptyLatentAudio", **latent),
            "3": node("KSampler", model=["1", 0], latent_image=["2", 0], steps=20, cfg=7.0),
        }

    of_default = cost_of(prompt(seconds=40.0, batch_size=1), families=families)
    assert of_default == pytest.approx(100)  # a quarter of the unit's pixels, at four times the price
    assert cost_of(prompt(seconds=10.0, batch_size=1), families=families) == pytest.approx(25)
    assert cost_of(prompt(seconds=80.0, batch_size=3), families=families) == pytest.approx(600)


def test_models_in_a_circle_end_the_search() -> None:
    prompt = {
        "1": node("KSampler", model=["2", 0], latent_image=["1", 0], steps=20, cfg=7.0),
        "2": node("Patch", model=["3", 0]),
        "3": node("Patch", model=["2", 0]),
    }
    assert cost_of(prompt, families={ModelFile("checkpoints", "large.safetensors"): LARGE}) == pytest.approx(100)


def test_a_model_is_followed_through_a_switch() -> None:
    families = {ModelFile("checkpoints", "large.safetensors"): LARGE}
    prompt = {
        **text_to_image(model=["20", 0]),
        "20": node("ModelSamplingSD3", model=["21", 0], shift=3.0),
        "21": node("Switch", on_false=["22", 0], on_true=["23", 0], switch=["24", 0]),
        "22": node("CheckpointLoaderSimple", ckpt_name="large.safetensors"),
        "23": node("LoraLoaderModelOnly", model=["22", 0], lora_name="fast.safetensors"),
        "24": node("PrimitiveBoolean", value=True),
    }
    assert cost_of(prompt, families=families) == pytest.approx(100 * LARGE.pixel_cost)
    assert sampler_works(PromptWork(prompt), families)[0].model == "large.safetensors"


def test_a_sampler_without_a_model_does_not_take_that_of_its_text() -> None:
    prompt = {
        **text_to_image(positive=["20", 0]),
        "20": node("CLIPTextEncode", clip=["22", 1], text="a"),
        "22": node("CheckpointLoaderSimple", ckpt_name="large.safetensors"),
    }
    assert cost_of(prompt, families={ModelFile("checkpoints", "large.safetensors"): LARGE}) == pytest.approx(100)
