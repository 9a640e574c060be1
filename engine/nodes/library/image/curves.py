"""Nodes of curves that the page draws, and of the histograms that it draws behind them.

HISTOGRAM: 256 counts of pixels, from the darkest level to the brightest.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from darkroom.engine.images.curves import STRAIGHT, Curve
from darkroom.engine.images.pixels import to_uint8
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.sockets import IMAGE

MODULE = "comfy_extras.nodes_curve"
LEVELS = 256
BT709_WEIGHTS = (0.2126, 0.7152, 0.0722)  # ITU-R BT.709-6, item 3.2

Counts = list[int]
Histogram = Annotated[Counts, Socket("HISTOGRAM")]


def _complaint(environment: NodeEnvironment, curve: object) -> str | None:
    """Return the fault of a curve that the prompt gives, None for a good one."""
    try:
        Curve.from_raw(curve)
    except ValueError as error:
        return str(error)
    return None


@node("CurveEditor", display_name="Curve Editor", category="utilities", python_module=MODULE, check=_complaint,
      has_intermediate_output=True)  # fmt: skip
def curve_editor(
    context: NodeContext,
    *,
    curve: Annotated[object, PageWidget("CURVE", extra=WITHOUT_SOCKET)] = STRAIGHT,
    histogram: Annotated[Histogram | None, Optional()] = None,
) -> Annotated[NodeOutput, Socket("CURVE"), Out("curve")]:
    """Return the curve that was drawn."""
    shown = {} if histogram is None else {"histogram": list(histogram)}
    return NodeOutput(shown, (Curve.from_raw(curve),))


@node("ImageHistogram", display_name="Image Histogram", category="utilities", python_module=MODULE)
def image_histogram(
    context: NodeContext, *, image: IMAGE
) -> tuple[
    Annotated[Histogram, Out("rgb")],
    Annotated[Histogram, Out("luminance")],
    Annotated[Histogram, Out("red")],
    Annotated[Histogram, Out("green")],
    Annotated[Histogram, Out("blue")],
]:
    """Count the levels of the first image: the mean of its channels, its luminance, and each channel."""
    first = image[0, ..., :3].cpu().float()  # [H, W, 3]
    red, green, blue = (_counts(channel) for channel in first.unbind(-1))
    mean = [sum(counts) // 3 for counts in zip(red, green, blue, strict=True)]
    luminance = sum((first[..., index] * weight for index, weight in enumerate(BT709_WEIGHTS)), torch.zeros(()))
    return mean, _counts(luminance), red, green, blue


def _counts(levels: torch.Tensor) -> Counts:
    """Return the number of pixels at each level of [H, W]."""
    counts: Counts = np.bincount(to_uint8(levels).ravel(), minlength=LEVELS).tolist()
    return counts


NODES = (curve_editor, image_histogram)
