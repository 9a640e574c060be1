"""Prompts that are cut into parts for several engines, and those that are not, with the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from darkroom.worker.prompts.prompt_parts import split_prompt

KINDS: dict[str, list[str]] = {
    "CheckpointLoaderSimple": ["MODEL", "CLIP", "VAE"],
    "CLIPTextEncode": ["CONDITIONING"],
    "EmptyLatentImage": ["LATENT"],
    "KSampler": ["LATENT"],
    "LatentFromBatch": ["LATENT"],
    "LatentBlend": ["LATENT"],
    "VAEDecode": ["IMAGE"],
    "SaveImage": [],
    "PackText": ["STRING"],
    "LoadImage": ["IMAGE", "MASK"],
    "UpscaleModelLoader": ["UPSCALE_MODEL"],
    "ImageUpscaleWithModel": ["IMAGE"],
}
INFO: dict[str, Any] = {
    name: {
        "output": types,
        "output_node": name == "SaveImage",
        "python_module": "custom_nodes.pack" if name.startswith("Pack") else "nodes",
    }
    for name, types in KINDS.items()
}


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def sampler(latent: str, **inputs: Any) -> dict[str, Any]:
    linked = {"model": ["loader", 0], "positive": ["text", 0], "negative": ["text", 0], "latent_image": [latent, 0]}
    return node("KSampler", **{**linked, "steps": 4, "seed": 1, "sampler_name": "euler", **inputs})


def seeds(*steps: int) -> dict[str, Any]:
    """One image for each number of steps, all from one model, one text and one empty latent."""
    prompt = drawing(batch=1, size=64)
    for number, count in enumerate(steps):
        prompt[f"s{number}"] = sampler("latent", steps=count, seed=number)
        prompt[f"d{number}"] = node("VAEDecode", samples=[f"s{number}", 0], vae=["loader", 2])
        prompt[f"o{number}"] = node("SaveImage", images=[f"d{number}", 0], filename_prefix="x")
    return prompt


def drawing(batch: int, size: int = 64) -> dict[str, Any]:
    return {
        "loader": node("CheckpointLoaderSimple", ckpt_name="a.safetensors"),
        "text": node("CLIPTextEncode", clip=["loader", 1], text="a red apple"),
        "latent": node("EmptyLatentImage", width=size, height=size, batch_size=batch),
    }


def batch(size: int = 5, side: int = 64, prefix: str = "x", **inputs: Any) -> dict[str, Any]:
    return {
        **drawing(size, side),
        "s": sampler("latent", **inputs),
        "d": node("VAEDecode", samples=["s", 0], vae=["loader", 2]),
        "o": node("SaveImage", images=["d", 0], filename_prefix=prefix),
    }


def test_outputs_of_different_samplings_are_spread_by_their_cost_and_the_prompt_stays_whole() -> None:
    prompt = seeds(10, 30, 10, 10)
    split = split_prompt(prompt, INFO, 2, may_round=False)
    assert split.by == "outputs" and [part.targets for part in split.parts] == [("o1",), ("o0", "o2", "o3")]
    assert all(part.prompt is prompt for part in split.parts)
    assert split.parts[0].nodes == {"loader", "text", "latent", "s1", "d1", "o1"}


def test_there_are_no_more_parts_than_images() -> None:
    assert len(split_prompt(seeds(4, 4, 4), INFO, 8, may_round=False).parts) == 3


def test_outputs_of_one_sampling_stay_together_and_what_samples_nothing_goes_with_the_first() -> None:
    prompt = seeds(10, 10)
    prompt["again"] = node("SaveImage", images=["d1", 0], filename_prefix="again")
    prompt["empty"] = node("SaveImage", images=["loader", 2], filename_prefix="empty")
    split = split_prompt(prompt, INFO, 3, may_round=False)
    assert [part.targets for part in split.parts] == [("o0", "empty"), ("o1", "again")]


def test_a_batch_is_cut_into_neighbouring_items_of_which_each_keeps_its_noise() -> None:
    split = split_prompt(batch(5), INFO, 2, may_round=True)
    assert split.by == "batch" and {"s", "d", "o"} <= split.by_item
    cuts = [part.prompt["latent.items"] for part in split.parts]
    assert cuts == [
        node("LatentFromBatch", samples=["latent", 0], batch_index=0, length=3),
        node("LatentFromBatch", samples=["latent", 0], batch_index=3, length=2),
    ]
    assert all(part.prompt["s"]["inputs"]["latent_image"] == ["latent.items", 0] for part in split.parts)  # type: ignore[index]


@pytest.mark.parametrize(
    ("prompt", "may_round", "reason"),
    [
        (batch(), False, "quality `exact` keeps its batch whole"),
        (batch(1), True, "one sampling without a batch"),
        (batch(65), True, "the batch of node latent cannot be cut"),
        (batch(sampler_name="euler_ancestral"), True, "sampler euler_ancestral of node s draws noise"),
        (batch(side=72), True, "the sides of node s are no multiples of 16 pixels"),
        (batch(prefix="%batch_num%"), True, "node o names files by their place in the batch"),
        ({**batch(), "text": node("PackText")}, True, r"node text \(PackText\) may belong to items"),
        ({**batch(), "d": node("LatentBlend", samples1=["s", 0])}, True, r"node d \(LatentBlend\) may use the batch"),
        ({**seeds(4, 4), "text": node("PackText")}, True, r"share node text \(PackText\) of a node pack"),
        ({"1": node("SaveImage", images=["2", 0])}, True, "no output needs a node that samples"),
        (seeds(*[1] * 257), True, "more than 256 outputs"),
        ({**seeds(4, 4), "b": node("VHS_BatchManager")}, True, "node b goes on in prompts of its own"),
        ({}, True, "no output needs a node that samples"),
    ],
)
def test_what_cannot_be_split_has_a_reason(prompt: dict[str, Any], may_round: bool, reason: str) -> None:
    split = split_prompt(prompt, INFO, 4, may_round=may_round)
    assert not split.parts and split.by is None and re.search(reason, split.reason), split.reason


def test_two_batches_are_not_split() -> None:
    prompt = {**batch(), "second": node("EmptyLatentImage", width=64, height=64, batch_size=3)}
    assert split_prompt(prompt, INFO, 2, may_round=True).reason == "several batches: ['latent', 'second']"


def test_an_upscale_without_sampling_stays_whole() -> None:
    prompt = {
        "picture": node("LoadImage", image="a.png"),
        "network": node("UpscaleModelLoader", model_name="x4.pth"),
        "large": node("ImageUpscaleWithModel", upscale_model=["network", 0], image=["picture", 0]),
        "o": node("SaveImage", images=["large", 0], filename_prefix="x"),
    }
    assert split_prompt(prompt, INFO, 2, may_round=True).reason == "no output needs a node that samples"
