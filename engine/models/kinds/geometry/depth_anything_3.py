"""Depth Anything 3 (Lin et al. 2025, arXiv 2511.10647): depth of one image, or of several views with their cameras.

`B` scenes, `S` views, `H W` pixels, multiples of 14. Module names are those of the files that ComfyUI's loader takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from darkroom.engine.layers.dinov2 import dinov2_config
from darkroom.engine.layers.shapes import Shapes, expect
from darkroom.engine.models.kinds.geometry.camera_decoder import CameraDecoder, intrinsics_of, inverted
from darkroom.engine.models.kinds.geometry.dense_head import Dense, DenseHead, HeadConfig
from darkroom.engine.models.kinds.geometry.multi_view_encoder import EncoderConfig, MultiViewEncoder
from darkroom.engine.models.kinds.geometry.ray_cameras import cameras_of_rays

SIGNATURE = "backbone.embeddings.patch_embeddings.projection.weight"
PATCH_PX = 14
DEEP = 24  # layers, from which on the features of others are taken
OUT_LAYERS = {(False, False): (5, 7, 9, 11), (False, True): (5, 7, 9, 11),
              (True, False): (4, 11, 17, 23), (True, True): (11, 15, 19, 23)}  # fmt: skip
"""Layers whose features the head takes, by whether the encoder is deep and whether there is a head of rays."""


@dataclass(frozen=True, slots=True)
class DepthAnything3Config:
    """Configuration; `camera_size` is the size of the tokens that cameras are decoded from, None without a decoder."""

    encoder: EncoderConfig
    head: HeadConfig
    camera_size: int | None


class Cameras(NamedTuple):
    """Poses from the world to the camera [B, S, 3, 4], and intrinsics in pixels [B, S, 3, 3]."""

    poses: torch.Tensor
    intrinsics: torch.Tensor


def depth_anything_3_config(shapes: Shapes) -> DepthAnything3Config:
    """Return the configuration of the network with these tensors.

    Raises LookupError for a missing one, and ValueError for sizes that do not fit together.
    """
    own = {name.removeprefix("backbone."): shape for name, shape in shapes.items() if name.startswith("backbone.")}
    image = dinov2_config(own)
    normed = [index for index in range(image.num_layers) if f"encoder.layer.{index}.attention.q_norm.weight" in own]
    shared_from = normed[0] if normed and "embeddings.camera_token" in own else None
    is_dual = "head.scratch.refinenet1_aux.out_conv.weight" in shapes
    head = HeadConfig(
        in_channels=shapes["head.projects.0.weight"][1],
        level_channels=tuple(shapes[f"head.projects.{index}.weight"][0] for index in range(4)),
        channels=shapes["head.scratch.refinenet1.out_conv.weight"][0],
        num_out=shapes["head.scratch.output_conv2.2.weight"][0],
        is_dual=is_dual,
        has_sky="head.scratch.sky_output_conv2.0.weight" in shapes,
    )
    camera = shapes.get("cam_dec.fc_t.weight")
    encoder = EncoderConfig(image, OUT_LAYERS[image.num_layers >= DEEP, is_dual], shared_from)
    config = DepthAnything3Config(encoder, head, None if camera is None else camera[1])
    _check(config)
    return config


def _check(config: DepthAnything3Config) -> None:
    """Raise ValueError for parts that do not fit one another."""
    encoder, head = config.encoder, config.head
    expect("sides of a patch", encoder.image.patch_px, PATCH_PX)
    if encoder.image.num_layers <= encoder.out_layers[-1]:
        raise ValueError(
            f"layers of the encoder: got {encoder.image.num_layers}, expected {encoder.out_layers[-1] + 1}"
        )
    feature_size = encoder.image.width * (1 if encoder.shared_from is None else 2)
    expect("channels that the head takes", head.in_channels, feature_size)
    if config.camera_size is not None:
        expect("size of the tokens that cameras are decoded from", config.camera_size, feature_size)
    if head.num_out not in (1, 2):
        raise ValueError(f"values of a pixel: got {head.num_out}, expected 1 or 2")
    if head.is_dual:  # sines and cosines of both sides are added
        for count in (*head.level_channels, head.channels // 2):
            if count % 4:
                raise ValueError(f"channels of the head: got {count}, expected a multiple of 4")


class DepthAnything3(nn.Module):
    """The whole network."""

    def __init__(self, config: DepthAnything3Config) -> None:
        super().__init__()
        self.config = config
        self.backbone = MultiViewEncoder(config.encoder)
        self.head = DenseHead(config.head)
        self.cam_dec = None if config.camera_size is None else CameraDecoder(config.camera_size)

    def forward(self, views: torch.Tensor, strategy: str = "first") -> tuple[Dense, Cameras | None]:
        """Estimate normalised views [B, S, 3, H, W]: values of pixels [B * S, H, W], and the cameras of several views.

        `strategy` chooses the view that the others refer to (`reference_view.py`).
        """
        features = self.backbone(views, strategy)
        dense: Dense = self.head([patches.flatten(0, 1) for patches, _ in features], views.shape[-2:])
        if self.cam_dec is None or views.shape[1] == 1:
            return dense, None
        return dense, Cameras(*self.cam_dec(features[-1][1], views.shape[-2:]))

    def with_ray_cameras(self, views: torch.Tensor, strategy: str) -> tuple[Dense, Cameras]:
        """Estimate as `forward` does, with cameras from the rays of the pixels. Only for networks with that head."""
        features = self.backbone(views, strategy)
        sides = views.shape[-2:]
        dense: Dense = self.head([patches.flatten(0, 1) for patches, _ in features], sides, with_rays=True)
        assert dense.rays is not None and dense.ray_confidence is not None
        found = [cameras_of_rays(*view) for view in zip(dense.rays, dense.ray_confidence, strict=True)]
        rotation, position, focal, centre = (torch.stack(values) for values in zip(*found, strict=True))
        halves = torch.tensor((sides[1] / 2, sides[0] / 2))
        cameras = Cameras(inverted(rotation, position), intrinsics_of(focal * halves, centre * halves))
        return dense, Cameras(*(values.view(*views.shape[:2], *values.shape[1:]) for values in cameras))
