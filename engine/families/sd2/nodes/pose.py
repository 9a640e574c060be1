"""Node class made for SDPose: points of people in images, in OpenPose's format.

`B` images, `C` channels, `H W` pixels, `h w` latent cells, `K` points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.ksampler import sample
from darkroom.engine.diffusion.wrappers import DIFFUSION_MODEL
from darkroom.engine.families.sd2.heatmap_head import PoseUnet
from darkroom.engine.families.sd2.nodes.lotus import empty_prompt
from darkroom.engine.images.boxes import Box, boxes_by_image, corners_of
from darkroom.engine.images.heatmap_points import heatmap_points
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.images.whole_body import pose_frame
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.boxes import DEFAULT_BOX
from darkroom.engine.nodes.library.image.poses import POSE_KEYPOINT
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.running_call import call_of
from darkroom.engine.nodes.sockets import FRAMES, MODEL, VAE
from darkroom.engine.nodes.widgets import Int

FAMILY, VARIANT = "sd2", "pose"
WIDTH_PX, HEIGHT_PX = 768, 1024  # at which the network sees an image or a person
HEATMAP_CELL_PX = 4
LATENT_CHANNELS = 4
MOST_AT_ONCE = 64  # images; each has the points that it has alone
COPIES = 4  # of the features, in cells of a heatmap, that a layer of the head computes with
KEY = "sdpose"
OptionalBoxes = Annotated[
    Any,
    PageWidget("BOUNDING_BOX", extra={**WITHOUT_SOCKET, "forceInput": True, "default": dict(DEFAULT_BOX)}),
    Optional(),
]
Floats = NDArray[np.float32]
Person = tuple[Floats, Floats]
"""Places [K, 2] in pixels of an image, and scores [K]."""


@dataclass
class KeptFeatures:
    """The last features of so many channels that output blocks get in a pass, [B, C, h, w]."""

    channels: int
    features: torch.Tensor | None = field(default=None, init=False)

    def wrap(
        self, executor: Any, x: object, timesteps: object, context: object, y: object, control: object,
        options: dict[str, Any], **inputs: object,
    ) -> object:  # fmt: skip
        """Keep the features of a pass of the network."""
        patches = {"output_block_patch": [self._keep]}
        return executor(x, timesteps, context, y, control, {**options, "patches": patches}, **inputs)

    def _keep(self, h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        if h.shape[1] == self.channels:
            self.features = h
        return h, skip


def _complaint(environment: NodeEnvironment, bboxes: object = None) -> str | None:
    """Return the fault of boxes that the prompt gives, None for good ones and those of another node."""
    if bboxes is None:
        return None
    try:
        boxes_by_image(bboxes)
    except ValueError as error:
        return str(error)
    return None


@node("SDPoseKeypointExtractor", display_name="SDPose Keypoint Extractor", category="image/detection",
      python_module="comfy_extras.nodes_sdpose", check=_complaint,
      facts=NodeFacts(reads_images_with=FAMILY, reads_images_variant=VARIANT),
      search_aliases=["openpose", "pose detection", "preprocessor", "keypoints", "sdpose"])  # fmt: skip
def sdpose_keypoint_extractor(
    context: NodeContext,
    *,
    model: MODEL,
    vae: VAE,
    image: FRAMES,
    batch_size: Annotated[int, Int(min=1, max=10000, step=1)] = 16,
    bboxes: OptionalBoxes = None,
) -> Annotated[POSE_KEYPOINT, Out("keypoints")]:
    """Find the points of the person in each image, or in each of its boxes.

    Images without boxes of their own have those of the last one that has. Raises ValueError for another model or VAE.
    """
    height, width = image.shape[1:3]
    extractor = PoseExtractor(context, model, vae)
    boxes = [] if bboxes is None else boxes_by_image(bboxes)
    frames: list[dict[str, Any]] = []
    for images in _batches(image, 1 if boxes else min(batch_size, MOST_AT_ONCE)):
        own = boxes[min(len(frames), len(boxes) - 1)] if boxes else []
        people = [extractor.in_boxes(images, own)] if own else [[person] for person in extractor.people(images)]
        frames += (pose_frame(item, height, width) for item in people)
        context.report_progress(len(frames), image.shape[0])
    return frames


def _batches(image: torch.Tensor | FrameStream, size: int) -> Iterator[torch.Tensor]:
    """Yield images [b, H, W, 3], at most `size` at once."""
    if isinstance(image, torch.Tensor):
        yield from torch.split(image[..., :3], size)
        return
    frames: list[torch.Tensor] = []
    for frame in image:
        frames.append(frame[..., :3])
        if len(frames) == size:
            yield torch.stack(frames)
            frames = []
    if frames:
        yield torch.stack(frames)


class PoseExtractor:
    """SDPose's network with the VAE of the latents that it reads. Raises ValueError for others."""

    def __init__(self, context: NodeContext, model: MODEL, vae: VAE) -> None:
        network = model.model.diffusion_model
        if not isinstance(network, PoseUnet):
            raise ValueError("model: another network; got one without a heatmap head, expected SDPose's")
        if vae.latent_dim != 2 or vae.latent_channels != LATENT_CHANNELS:
            raise ValueError(
                f"vae: another network's; got one of {vae.latent_channels} channels, expected {LATENT_CHANNELS}"
            )
        self._context = context
        self._vae = vae
        self._kept = KeptFeatures(network.heatmap_head.in_channels)
        self._model = model.clone()
        self._model.model_options["transformer_options"] = {}
        self._model.add_wrapper_with_key(DIFFUSION_MODEL, KEY, self._kept.wrap)

    def in_boxes(self, image: torch.Tensor, boxes: list[Box]) -> list[Person]:
        """Return the person in each box of an image [1, H, W, 3]; boxes outside of it have none."""
        height, width = image.shape[1:3]
        people = []
        for box in boxes:
            left, top, right, bottom = corners_of(box)
            left, top, right, bottom = max(0, left), max(0, top), min(width, right), min(height, bottom)
            if left < right and top < bottom:
                (person,) = self.people(image[:, top:bottom, left:right], (left, top))
                people.append(person)
        return people

    def people(self, images: torch.Tensor, corner: tuple[int, int] = (0, 0)) -> list[Person]:
        """Return the person in each of the images [B, H, W, 3], which begin at a corner of larger ones."""
        self._context.cancel.check()
        height, width = images.shape[1:3]
        method = "area" if height >= HEIGHT_PX and width >= WIDTH_PX else "bilinear"
        latents = self._vae.encode(resize_image(images.float(), WIDTH_PX, HEIGHT_PX, method))
        scale = np.array((WIDTH_PX / width, HEIGHT_PX / height), dtype=np.float32)
        return [
            (np.where(places[:, :1] < 0, -1, places / scale + np.array(corner, dtype=np.float32)), scores)
            for places, scores in self._points(latents)
        ]

    def _points(self, latents: torch.Tensor) -> list[Person]:
        """Return places, in pixels of what the network reads, and scores for each latent [B, 4, h, w]."""
        prompt = [[empty_prompt(), {}]]
        with call_of(self._context):
            sample(
                self._model, torch.zeros_like(latents), 1, 1.0, "euler", "simple", prompt, prompt, latents,
                disable_noise=True, disable_pbar=True,
            )  # fmt: skip
        features, self._kept.features = self._kept.features, None
        if features is None:
            raise ValueError("model: a patch computes its output blocks; expected SDPose's network without it")
        return [self._decoded(item[None]) for item in features]

    def _decoded(self, features: torch.Tensor) -> Person:
        num_cells = 4 * features.numel()  # a heatmap has twice the cells of each side
        working_bytes = COPIES * num_cells * features.element_size()
        with torch.no_grad(), self._model.in_use(working_bytes=working_bytes) as holder:
            found = heatmap_points(holder.diffusion_model.heatmap_head(features)[0])
        sides = np.array((WIDTH_PX, HEIGHT_PX))
        places = found.places * ((sides - 1) / (sides // HEATMAP_CELL_PX - 1)).astype(np.float32)
        places[found.scores <= 0] = -1
        return places, found.scores


NODES = (sdpose_keypoint_extractor,)
