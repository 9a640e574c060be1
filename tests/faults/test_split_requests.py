"""One request on two engines, on the CPU: its images are those of one engine, whatever happens to the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from tests.faults.rig import Rig, a_rig
from tests.faults.test_several_engines import engines_of, until_both_are_up

pytestmark = pytest.mark.slow


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def seeds(*given: int, batch: int = 1, steps: int = 4) -> dict[str, Any]:
    """A workflow that saves a batch of small images for each seed."""
    workflow = {
        "model": node("CheckpointLoaderSimple", ckpt_name="darkroom-emoji.safetensors"),
        "text": node("CLIPTextEncode", clip=["model", 1], text="a red apple"),
        "none": node("CLIPTextEncode", clip=["model", 1], text=""),
        "latent": node("EmptyLatentImage", width=64, height=64, batch_size=batch),
    }
    for seed in given:
        linked = {
            "model": ["model", 0],
            "positive": ["text", 0],
            "negative": ["none", 0],
            "latent_image": ["latent", 0],
        }
        drawn = {"seed": seed, "steps": steps, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal"}
        workflow[f"sample-{seed}"] = node("KSampler", **linked, **drawn, denoise=1.0)
        workflow[f"decode-{seed}"] = node("VAEDecode", samples=[f"sample-{seed}", 0], vae=["model", 2])
        workflow[f"save-{seed}"] = node("SaveImage", images=[f"decode-{seed}", 0], filename_prefix=f"p{seed}")
    return workflow


def images(result: dict[str, Any]) -> list[Any]:
    assert result["status"] == "completed", result
    return [numpy.asarray(Image.open(output["local_path"])).astype(int) for output in result["output"]]


async def drawn(rig: Rig, name: str, workflow: dict[str, Any], **fields: Any) -> dict[str, Any]:
    await rig.submit(name, workflow, **fields)
    return await rig.until(name)


async def test_seeds_have_the_same_bits_and_items_of_a_batch_differ_by_rounding_at_most(tmp_path: Path) -> None:
    async with a_rig(tmp_path, ENGINES="2") as rig:
        await rig.start()
        await until_both_are_up(rig)
        whole = await drawn(rig, "whole", seeds(1, 2, 3))
        split = await drawn(rig, "split", seeds(1, 2, 3), split=True)
        assert "split" not in whole and split["split"] == {"engines": 2, "by": "outputs"}
        assert [output["node_id"] for output in split["output"]] == ["save-1", "save-2", "save-3"]
        assert all((a == b).all() for a, b in zip(images(whole), images(split), strict=True))

        whole = await drawn(rig, "whole-batch", seeds(5, batch=3))
        split = await drawn(rig, "split-batch", seeds(5, batch=3), split=True)
        assert split["split"] == {"engines": 2, "by": "batch"}
        assert all(abs(a - b).max() <= 2 for a, b in zip(images(whole), images(split), strict=True))

        exact = await drawn(rig, "exact", seeds(6, batch=3), split=True, quality="exact")
        assert exact["split"]["engines"] == 1 and "quality `exact`" in exact["split"]["reason"]


async def test_an_engine_that_dies_with_a_part_costs_no_image(tmp_path: Path) -> None:
    async with a_rig(tmp_path, constants={"supervision": {"max_restarts": 1000}}, ENGINES="2") as rig:
        await rig.start()
        await until_both_are_up(rig)
        for round_number in range(2):
            workflow = seeds(*range(10 * round_number, 10 * round_number + 4), steps=20)
            await rig.submit(f"job-{round_number}", workflow, split=True)
            busy: list[int] = []
            while len(busy) < 2:
                busy = [engine["pid"] for engine in await engines_of(rig) if engine["prompts"]]
            rig.kill_process(busy[round_number % 2])
            assert len(images(await rig.until(f"job-{round_number}"))) == 4
            await until_both_are_up(rig)
