"""Limits on the work that a prompt asks for."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.errors import Problem
from darkroom.worker.prompts.limits import find_limit_problems
from darkroom.worker.settings.jobs import PromptLimits

INFO: dict[str, Any] = {
    name: {"output": output}
    for name, output in {
        "EmptyLatentImage": ["LATENT"],
        "EmptyHunyuanLatentVideo": ["LATENT"],
        "EmptyImage": ["IMAGE"],
        "KSampler": ["LATENT"],
        "KSamplerAdvanced": ["LATENT"],
        "SamplerCustomAdvanced": ["LATENT", "LATENT"],
        "BasicScheduler": ["SIGMAS"],
        "SplitSigmas": ["SIGMAS", "SIGMAS"],
        "LatentUpscaleBy": ["LATENT"],
        "ImageScaleToTotalPixels": ["IMAGE"],
        "ImagePadForOutpaint": ["IMAGE", "MASK"],
        "ImageUpscaleWithModel": ["IMAGE"],
        "ImageStitch": ["IMAGE"],
        "RepeatLatentBatch": ["LATENT"],
        "LatentBatch": ["LATENT"],
        "LatentFromBatch": ["LATENT"],
        "LoadImage": ["IMAGE", "MASK"],
        "CLIPTextEncodeSDXL": ["CONDITIONING"],
        "ControlNetApply": ["CONDITIONING"],
        "PrimitiveInt": ["INT"],
        "Reroute": ["*"],
        "SaveImage": [],
        "CreateVideo": ["VIDEO"],
        "SaveWEBM": [],
        "VAEDecode": ["IMAGE"],
        "LTXVConditioning": ["CONDITIONING", "CONDITIONING"],
        "EmptyLatentAudio": ["LATENT"],
        "EmptyAudio": ["AUDIO"],
        "VAEDecodeAudio": ["AUDIO"],
        "AudioConcat": ["AUDIO"],
        "TrimAudioDuration": ["AUDIO"],
        "SimpleMath": ["INT"],
    }.items()
}
LIMITS = PromptLimits(
    max_pixels=1024 * 1024, max_batch=4, max_frames=33, max_steps=50, max_video_pixels=2**24, max_seconds=10.0
)


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def latent(width: Any = 512, height: Any = 512, batch_size: Any = 1) -> dict[str, Any]:
    return node("EmptyLatentImage", width=width, height=height, batch_size=batch_size)


def problems_of(prompt: dict[str, Any], limits: PromptLimits = LIMITS) -> list[Problem]:
    return list(find_limit_problems(PromptWork(prompt, INFO), limits))


def found(prompt: dict[str, Any]) -> list[tuple[str | None, str | None, str | None, Any]]:
    return [(item.type, item.node_id, item.field, (item.extra or {})["received"]) for item in problems_of(prompt)]


def test_a_prompt_within_its_limits_is_fine() -> None:
    assert found({"1": latent(1024, 1024, 4), "2": node("KSampler", latent_image=["1", 0], steps=50)}) == []


def test_a_problem_names_node_input_value_and_limit() -> None:
    (problem,) = problems_of({"1": latent(2048, 1024)})
    assert problem.as_json() == {
        "node_id": "1",
        "class_type": "EmptyLatentImage",
        "field": "width",
        "type": "max_pixels",
        "message": "width: too many pixels; got 2097152, expected at most 1048576",
        "allowed": {"maximum": 1048576},
        "extra": {"received": 2097152},
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ({"1": latent(512, 512, 5)}, ("max_batch", "1", "batch_size", 5)),
        ({"1": latent(), "2": node("RepeatLatentBatch", samples=["1", 0], amount=8)}, ("max_batch", "2", "amount", 8)),
        (
            {"1": node("EmptyHunyuanLatentVideo", width=64, height=64, length=121, batch_size=1)},
            ("max_frames", "1", "length", 121),
        ),
        (
            {"1": node("EmptyLTXVLatentVideo", width=1024, height=1024, length=25, batch_size=1)},
            ("max_video_pixels", "1", "length", 25 * 2**20),
        ),
        (
            {"1": latent(), "2": node("LatentUpscaleBy", samples=["1", 0], scale_by=8)},
            ("max_pixels", "2", "scale_by", 4096 * 4096),
        ),
        (
            {"1": node("LoadImage", image="a"), "2": node("ImageScaleToTotalPixels", image=["1", 0], megapixels=4)},
            ("max_pixels", "2", "megapixels", 4 * 1024 * 1024),
        ),
        (
            {"1": latent(), "2": node("ImagePadForOutpaint", image=["1", 0], left=2000, top=0, right=0, bottom=0)},
            ("max_pixels", "2", "left", 2512 * 512),
        ),
        (
            {"1": latent(), "2": node("ImageUpscaleWithModel", image=["1", 0], upscale_model=["9", 0])},
            ("max_pixels", "2", "upscale_model", 2048 * 2048),
        ),
        (
            {
                "1": latent(1024, 1024),
                "2": node("ImageStitch", image1=["1", 0], image2=["1", 0], direction="right"),
            },
            ("max_pixels", "2", "image2", 2048 * 1024),
        ),
        (
            {
                "1": latent(batch_size=4),
                "2": node("LatentBatch", samples1=["1", 0], samples2=["1", 0]),
                "3": node("LatentFromBatch", samples=["2", 0], length=2, batch_index=0),
                "4": node("KSampler", latent_image=["3", 0], steps=1),
            },
            ("max_batch", "2", "samples1", 8),
        ),
        ({"1": latent(), "2": node("KSampler", latent_image=["1", 0], steps=60)}, ("max_steps", "2", "steps", 60)),
        (
            {
                "1": latent(),
                "2": node("KSampler", latent_image=["1", 0], steps=30),
                "3": node("KSampler", latent_image=["2", 0], steps=30),
                "4": node("KSampler", latent_image=["3", 0], steps=30),
            },
            ("max_steps", "3", "steps", 60),
        ),
        (
            {
                "s": node("BasicScheduler", steps=60),
                "1": latent(),
                "2": node("SamplerCustomAdvanced", latent_image=["1", 0], sigmas=["s", 0]),
            },
            ("max_steps", "2", "sigmas", 60),
        ),
    ],
)
def test_every_limit_is_checked_where_the_prompt_goes_over_it(prompt: dict[str, Any], expected: Any) -> None:
    assert found(prompt) == [expected]


def test_a_value_is_followed_to_the_primitive_that_says_it() -> None:
    relays = {str(index): node("Reroute", **{"": [str(index + 1), 0]}) for index in range(300)}
    prompt = {**relays, "300": node("PrimitiveInt", value="4096"), "a": latent(["0", 0], 1024)}
    assert found(prompt) == [("max_pixels", "a", "width", 4096 * 1024)]
    steps = {"p": node("PrimitiveInt", value=99), "1": latent(), "2": node("KSampler", steps=["p", 0])}
    assert found(steps) == [("max_steps", "2", "steps", 99)]


def test_steps_that_are_not_run_do_not_count() -> None:
    parts = {
        "1": latent(),
        "2": node("KSamplerAdvanced", latent_image=["1", 0], steps=40, start_at_step=0, end_at_step=20),
        "3": node("KSamplerAdvanced", latent_image=["2", 0], steps=40, start_at_step=20, end_at_step=10000),
    }
    assert found(parts) == []
    split = {
        "s": node("BasicScheduler", steps=40),
        "h": node("SplitSigmas", sigmas=["s", 0], step=10),
        "1": latent(),
        "2": node("SamplerCustomAdvanced", latent_image=["1", 0], sigmas=["h", 0]),
        "3": node("SamplerCustomAdvanced", latent_image=["2", 0], sigmas=["s", 0]),
    }
    assert found(split) == []


def test_steps_in_a_loop_count_in_each_iteration() -> None:
    sampler = node("KSampler", latent_image=["s", 0], steps=20)
    looped = {
        "5": latent(),
        "s": node("StartLoop", initial_value0=["5", 0], **{"mode": "simple", "mode.num_iterations": 3}),
        "3": sampler,
        "e": node("EndLoop", output_value=["3", 0]),
    }
    info = INFO | {"StartLoop": {"output": ["*"]}, "EndLoop": {"output": ["*"]}}
    (problem,) = find_limit_problems(PromptWork(looped, info), LIMITS)
    assert (problem.node_id, problem.type, problem.extra) == ("3", "max_steps", {"received": 60})
    assert PromptWork(looped, info).pixel_steps == 3 * PromptWork({**looped, "e": latent()}, info).pixel_steps


def test_sizes_that_are_no_images_do_not_count() -> None:
    prompt = {
        "1": node("CLIPTextEncodeSDXL", width=4096, height=4096, target_width=4096, target_height=4096),
        "2": node("ControlNetApply", conditioning=["1", 0], image=["9", 0]),
        "3": node("SaveImage", width=9999, height=9999),
    }
    assert found(prompt) == []


def test_what_only_a_run_can_tell_limits_nothing() -> None:
    prompt = {
        "m": node("SimpleMath", a=64, b=64),
        "1": latent(["m", 0], 512),
        "2": node("LoadImage", image="huge.png"),
        "3": node("LatentUpscaleBy", samples=["2", 0], scale_by=8),
    }
    assert found(prompt) == []


def test_pixel_steps_are_the_sum_over_all_that_samples() -> None:
    prompt = {
        "1": latent(64, 64, 2),
        "2": node("KSampler", latent_image=["1", 0], steps=10),
        "3": node("LatentUpscaleBy", samples=["2", 0], scale_by=2),
        "4": node("KSampler", latent_image=["3", 0], steps=5),
    }
    assert PromptWork(prompt, INFO).pixel_steps == 2 * 64 * 64 * 10 + 2 * 128 * 128 * 5
    assert PromptWork({"1": node("SaveImage")}, INFO).pixel_steps == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["1", "2", "3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["width", "height", "steps", "sigmas", "scale_by", "amount", "batch_size", "length", "value", "image1", "left"]
)
VALUES = JSON | st.tuples(st.sampled_from(["1", "2", "3"]), st.integers(-1, 2)).map(list)
NODES = st.fixed_dictionaries(
    {"class_type": st.sampled_from([*INFO, "Other"]), "inputs": st.dictionaries(NAMES, VALUES, max_size=6)}
)


@given(st.dictionaries(st.sampled_from(["1", "2", "3"]), NODES | JSON, max_size=3))
def test_nothing_in_a_prompt_makes_it_raise(prompt: dict[str, Any]) -> None:
    problems_of(prompt)
    assert PromptWork(prompt, INFO).pixel_steps >= 0


def test_numbers_that_are_no_numbers_of_pixels_are_no_trouble() -> None:
    doubling = {str(index): node("RepeatLatentBatch", samples=[str(index - 1), 0], amount=64) for index in range(1, 99)}
    prompt = {"0": latent(1e308, 10**300, -5), **doubling}
    assert {problem.type for problem in problems_of(prompt)} == {"max_pixels", "max_batch"}


def test_long_chains_cost_what_their_length_does() -> None:
    num_nodes = 20_000
    chain = {str(index): node("KSampler", latent_image=[str(index - 1), 0], steps=1) for index in range(num_nodes)}
    relays = {f"r{index}": node("Reroute", x=[f"r{index + 1}", 0]) for index in range(num_nodes)}
    sigmas = {f"s{index}": node("SplitSigmas", sigmas=[f"s{index + 1}", 0], step=5) for index in range(num_nodes)}
    samplers = {
        f"k{index}": node("SamplerCustomAdvanced", latent_image=["0", 0], sigmas=[f"s{index}", 0])
        for index in range(num_nodes)
    }
    began = time.process_time()
    PromptWork({**chain, **relays, **sigmas, **samplers, "l": latent(["r0", 0])}, INFO).pixel_steps  # noqa: B018
    assert time.process_time() - began < 30


def clip(frames: int, batch: int = 1, **rate: Any) -> dict[str, Any]:
    return {
        "1": node("EmptyHunyuanLatentVideo", width=64, height=64, length=frames, batch_size=batch),
        "2": node("KSampler", latent_image=["1", 0], steps=4),
        "3": node("VAEDecode", samples=["2", 0]),
        "4": node("SaveWEBM", images=["3", 0], **rate),
    }


def test_a_video_is_as_long_as_its_frames_at_the_rate_of_the_saving_node() -> None:
    assert found(clip(33, fps=4)) == []
    assert found(clip(33, fps=3)) == [("max_seconds", "1", "length", 11.0)]
    assert found(clip(33, batch=2, frame_rate=5)) == [("max_seconds", "1", "length", 13.2)]
    two_files = clip(33, fps=3) | {"5": node("CreateVideo", images=["3", 0], fps=2)}
    assert found(two_files) == [("max_seconds", "1", "length", 16.5)]
    images = {
        "1": node("EmptyImage", width=8, height=8, batch_size=4),
        "2": node("SaveWEBM", images=["1", 0], fps=0.1),
    }
    assert found(images) == [("max_seconds", "1", "batch_size", 40.0)]
    assert found({"1": node("LTXVConditioning", frame_rate=0.01, positive=["2", 0])}) == []


def test_audio_is_as_long_as_the_node_that_makes_it_says() -> None:
    latents = {"1": node("EmptyLatentAudio", seconds=11, batch_size=1), "2": node("VAEDecodeAudio", samples=["1", 0])}
    assert found(latents) == [("max_seconds", "1", "seconds", 11.0)]
    silence = {"1": node("EmptyAudio", duration=6), "2": node("AudioConcat", audio1=["1", 0], audio2=["1", 0])}
    assert found(silence) == [("max_seconds", "2", "audio2", 12.0)]
    part = {"1": node("EmptyAudio", duration=9), "2": node("TrimAudioDuration", audio=["1", 0], duration=5)}
    part["3"] = node("AudioConcat", audio1=["2", 0], audio2=["2", 0])
    assert found(part) == []


def test_audio_is_sampled_by_its_seconds() -> None:
    prompt = {"1": node("EmptyLatentAudio", seconds=10), "2": node("KSampler", latent_image=["1", 0], steps=5)}
    assert PromptWork(prompt, INFO).pixel_steps == 10 * 1400 * 5
