"""The estimated cost of images and videos beside the arithmetic of their networks, counted at their full size.

Networks on the device `meta` compute nothing, but their operations are counted as they would run.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from darkroom.contract.graph.cost import price_of
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork
from darkroom.engine.families import registry
from darkroom.worker.engines.families import Family, read_families

NUM_WORDS = 256
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Size:
    """An image or a video, in pixels and frames."""

    width: int
    height: int
    frames: int | None = None


SIZES = {
    "sd15": (Size(512, 512), Size(1024, 512), Size(1024, 1024)),
    "flux": (Size(1024, 1024), Size(1536, 1024), Size(2048, 2048)),
    "wan": (Size(832, 480, 81), Size(832, 480, 33), Size(1280, 720, 81), Size(832, 480, 161)),
    "ltx_video": (Size(768, 512, 97), Size(768, 512, 49), Size(1216, 704, 97), Size(768, 512, 257)),
    "hunyuan_video": (Size(848, 480, 73), Size(848, 480, 33), Size(1280, 720, 129)),
}
CELLS_PX = {"ltx_video": (32, 8)}  # of the latent: pixels a side, frames
OTHER_CELLS_PX = (8, 4)


def network_of(name: str) -> Any:
    family = registry.family_named(name)
    with torch.device("meta"):
        return family.denoiser.build(family.scales["full"].denoiser)


def measured_work(name: str, network: Any, size: Size) -> int:
    """Return the operations of one pass of the network over one image or video."""
    side_px, frames_ratio = CELLS_PX.get(name, OTHER_CELLS_PX)
    cells: tuple[int, ...] = (size.height // side_px, size.width // side_px)
    if size.frames is not None:
        cells = ((size.frames - 1) // frames_ratio + 1, *cells)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        channels = registry.family_named(name).latent_format().latent_channels
        inputs = inspect.signature(network.forward).parameters
        given: dict[str, Any] = {}
        if name in ("flux", "hunyuan_video"):
            given = {"y": torch.empty(1, 768), "guidance": torch.empty(1)}
        assert given.keys() <= inputs.keys()
        config = network.config
        width = getattr(config, "context_dim", None) or config.text_dim
        network(torch.empty(1, channels, *cells), torch.empty(1), torch.empty(1, NUM_WORDS, width), **given)
    return int(counter.get_total_flops())


def estimated_work(name: str, families: dict[ModelFile, Family], size: Size) -> float:
    latent: dict[str, Any] = {"width": size.width, "height": size.height, "batch_size": 1}
    if size.frames is not None:
        latent["length"] = size.frames
    prompt = {
        "1": {"class_type": "DarkroomRandomCheckpoint", "inputs": {"family": name, "scale": "full"}},
        "2": {"class_type": "EmptyLatent", "inputs": latent},
        "3": {
            "class_type": "KSampler",
            "inputs": {"model": ["1", 0], "latent_image": ["2", 0], "steps": 1, "cfg": 1.0},
        },
    }
    return price_of(PromptWork(prompt), families).cost


FAST = "wan"


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == FAST else pytest.mark.slow) for name in SIZES])
def test_the_estimate_grows_as_the_work_of_the_network_does(name: str) -> None:
    described = [
        {"name": family.name, "default": registry.described_defaults(family, family.default)}
        for family in registry.families()
    ]
    families = {ModelFile("family", item.name): item for item in read_families(described)}
    network = network_of(name)
    default, *others = SIZES[name]
    work, cost = measured_work(name, network, default), estimated_work(name, families, default)
    for size in others:
        measured = measured_work(name, network, size) / work
        estimated = estimated_work(name, families, size) / cost
        assert estimated == pytest.approx(measured, rel=TOLERANCE), size
