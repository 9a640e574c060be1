"""Workflow that a worker's start-up benchmark measures: that of Text2Image, with an image that is not kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from darkroom.modifiers.text_to_image import Text2Image

WORKFLOWS: Final = Path(__file__).with_name("workflows")
SAMPLER, LOADER, SIZE, PROMPT, NEGATIVE, RESULT = "3", "4", "5", "6", "7", "9"
"""Nodes of the workflow."""

UNWANTED: Final = "blurry, low quality"


@dataclass(frozen=True, slots=True)
class Measured:
    """Parameters of a measured run. `scale` is that of random weights of the family, None with a checkpoint."""

    checkpoint: str
    family: str
    scale: str | None
    width_px: int
    height_px: int
    sampling: Mapping[str, object]
    """Inputs of the sampler: seed, steps, CFG, names of sampler and schedule."""


def measured_workflow(asked: Measured, text: str) -> dict[str, Any]:
    """Return the workflow in ComfyUI's API form."""
    nodes: dict[str, Any] = json.loads(_template())
    for node in nodes.values():
        node.pop("_meta", None)
    if asked.scale is None:
        nodes[LOADER]["inputs"] = {"ckpt_name": asked.checkpoint}
    else:
        random_weights = {"family": asked.family, "scale": asked.scale}
        nodes[LOADER] = {"class_type": "DarkroomRandomCheckpoint", "inputs": random_weights}
    nodes[SAMPLER]["inputs"] |= asked.sampling
    nodes[SIZE]["inputs"] |= {"width": asked.width_px, "height": asked.height_px}
    nodes[PROMPT]["inputs"]["text"] = text
    nodes[NEGATIVE]["inputs"]["text"] = UNWANTED
    nodes[RESULT] = {"class_type": "PreviewImage", "inputs": {"images": nodes[RESULT]["inputs"]["images"]}}
    return nodes


@functools.cache
def _template() -> str:
    return (WORKFLOWS / Text2Image.workflow_file).read_text("utf-8")
