"""Cameras that a video is seen by: their paths as the rays of every pixel.

Rays are Pluecker coordinates (Sitzmann et al. 2021, arXiv 2106.02634): the moment of a ray, then its direction. `F`
frames, `H W` pixels.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    FRAMES_RATIO,
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    per_latent_frame,
)
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.sockets import CONDITIONING, INT, VAE
from darkroom.engine.nodes.widgets import Combo, Float

WAN_CAMERA_EMBEDDING = Annotated[Any, Socket("WAN_CAMERA_EMBEDDING")]
Vector = tuple[float, float, float]

WHOLE_ANGLE, WHOLE_STEP = math.pi / 3, 1.5  # of a camera's path at speed 1
STILL: Vector = (0.0, 0.0, 0.0)
PATHS: dict[str, tuple[Vector, Vector]] = {  # turn and step by name
    "Static": (STILL, STILL),
    "Pan Up": (STILL, (0.0, -1.0, 0.0)),
    "Pan Down": (STILL, (0.0, 1.0, 0.0)),
    "Pan Left": (STILL, (-1.0, 0.0, 0.0)),
    "Pan Right": (STILL, (1.0, 0.0, 0.0)),
    "Zoom In": (STILL, (0.0, 0.0, 2.0)),
    "Zoom Out": (STILL, (0.0, 0.0, -2.0)),
    "Anti Clockwise (ACW)": ((0.0, 0.0, -1.0), STILL),
    "ClockWise (CW)": ((0.0, 0.0, 1.0), STILL),
}
SEEN_ASPECT = 1280 / 720  # of the images that focal lengths are given for

Share = Annotated[float, Float(min=0, max=1, step=0.000000001), Optional()]
Centre = Annotated[float, Float(min=0, max=1, step=0.01), Optional()]


def camera_poses(name: str, speed: float, length: int) -> torch.Tensor:
    """Return a camera's poses [F, 4, 4] along a path, each as seen from the first, float32."""
    turn, step = (torch.tensor(item, dtype=torch.float64) for item in PATHS[name])
    shares = torch.arange(length, dtype=torch.float64)[:, None] / length * speed
    x, y, z = (shares * WHOLE_ANGLE * turn).unbind(1)
    poses = torch.eye(4, dtype=torch.float64).repeat(length, 1, 1)
    poses[:, :3, :3] = _turned(2, z) @ _turned(1, y) @ _turned(0, x)
    poses[:, :3, 3] = shares * WHOLE_STEP * step
    seen: torch.Tensor = torch.linalg.inv(poses[0]) @ poses
    return seen.float()


def _turned(axis: int, angles: torch.Tensor) -> torch.Tensor:
    """Return the rotations [F, 3, 3] by angles around an axis."""
    first, second = [index for index in range(3) if index != axis]
    sign = -1.0 if axis == 1 else 1.0
    turned = torch.eye(3, dtype=angles.dtype).repeat(len(angles), 1, 1)
    turned[:, first, first] = turned[:, second, second] = angles.cos()
    turned[:, first, second], turned[:, second, first] = -sign * angles.sin(), sign * angles.sin()
    return turned


def camera_rays(
    poses: torch.Tensor, width: int, height: int, focal: tuple[float, float], centre: tuple[float, float]
) -> torch.Tensor:
    """Return the rays [F, 6, H, W] of a camera's pixels. Focal lengths and centre are shares of the image's sides."""
    fx, fy = focal
    if width / height < SEEN_ASPECT:
        fx *= height * SEEN_ASPECT / width
    else:
        fy *= width / SEEN_ASPECT / height
    down, across = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    x, y = (across - centre[0] * width) / (fx * width), (down - centre[1] * height) / (fy * height)
    seen = torch.stack([x, y, torch.ones_like(x)], dim=-1).flatten(0, 1)  # [H * W, 3]
    directions = (seen / seen.norm(dim=-1, keepdim=True)) @ poses[:, :3, :3].transpose(1, 2)  # [F, H * W, 3]
    origins = poses[:, None, :3, 3].expand_as(directions)
    rays = torch.cat([torch.linalg.cross(origins, directions), directions], dim=-1)
    return rays.transpose(1, 2).reshape(len(poses), 6, height, width)


@node("WanCameraEmbedding", display_name=None, category="model/conditioning/wan/camera",
      python_module="comfy_extras.nodes_camera_trajectory", advanced=("fx", "fy", "cx", "cy"))  # fmt: skip
def wan_camera_embedding(
    context: NodeContext,
    *,
    camera_pose: Annotated[str, Combo(tuple(PATHS))] = "Static",
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    speed: Annotated[float, Float(min=0, max=10.0, step=0.1), Optional()] = 1.0,
    fx: Share = 0.5,
    fy: Share = 0.5,
    cx: Centre = 0.5,
    cy: Centre = 0.5,
) -> tuple[
    Annotated[WAN_CAMERA_EMBEDDING, Out("camera_embedding")],
    Annotated[INT, Out("width")],
    Annotated[INT, Out("height")],
    Annotated[INT, Out("length")],
]:
    """Return a camera's path as rays [1, 24, f, H, W], those of four frames beside each other."""
    rays = camera_rays(camera_poses(camera_pose, speed, length), width, height, (fx, fy), (cx, cy))
    frames = torch.cat([rays[:1].repeat(FRAMES_RATIO, 1, 1, 1), rays[1:]])  # the first latent frame is one frame
    parts = frames.view(-1, FRAMES_RATIO, 6, height, width).transpose(1, 2)
    return parts.reshape(1, -1, FRAMES_RATIO * 6, height, width).transpose(1, 2), width, height, length


@node("WanCameraImageToVideo", display_name=None, category="model/conditioning/wan/camera", python_module=MODULE)
def wan_camera_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    clip_vision_output: Seen = None,
    start_image: GivenImage = None,
    camera_conditions: Annotated[WAN_CAMERA_EMBEDDING | None, Optional()] = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with images and be seen by a camera that moves."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    if start_image is not None:
        given = start_image[:length]
        mask = per_latent_frame(guide.frame_mask(given.shape[0]))
        guide.set(concat_latent_image=guide.begun_with(given), concat_mask=mask)
    if camera_conditions is not None:
        guide.set(camera_conditions=camera_conditions)
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


NODES = (wan_camera_embedding, wan_camera_image_to_video)
