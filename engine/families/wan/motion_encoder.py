"""The motion of faces as Wan 2.2 Animate reads it: an encoder of images of faces, and tokens for each latent frame.

The encoder is that of LIA (Wang et al. 2022, arXiv 2203.09043): convolutions of StyleGAN 2 whose weights are scaled as
they are used, and orthogonal directions of motion. `B` batch, `F` latent frames, `T` images of faces, `H` heads of
the temporal encoder, `D` width of the network.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.filled import filled

SLOPE = 0.2  # of leaky rectifiers
BLUR = (1.0, 3.0, 3.0, 1.0)
CHANNELS = (32, 64, 128, 256, 512, 512, 512, 512)  # of the first convolution and of each halving
STYLE_WIDTH, MOTION_WIDTH, NUM_STYLE_LAYERS = 512, 20, 4
STABLE = 1e-8  # added to the diagonal of the directions
FACE_HEADS, FACE_WIDTH = 4, 1024
NORM_EPS = 1e-6
IMAGES_AT_ONCE = 8


def _activated(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x + bias, SLOPE) * math.sqrt(2)


class ScaledConv2d(nn.Module):
    """A convolution whose weights are scaled by the number of their inputs."""

    def __init__(self, in_channels: int, channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, in_channels, kernel, kernel))
        self.scale = 1 / math.sqrt(in_channels * kernel**2)
        self.stride, self.padding = stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, self.weight.to(x) * self.scale, stride=self.stride, padding=self.padding)


class ScaledLinear(nn.Module):
    """A linear layer whose weights are scaled by the number of their inputs."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(out_width, width)), nn.Parameter(torch.empty(out_width))
        self.scale = 1 / math.sqrt(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x) * self.scale, self.bias.to(x))


class Blur(nn.Module):
    """A blur before pixels are left out."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        line = filled(BLUR, device=x.device, dtype=x.dtype)
        kernel = line[None, :] * line[:, None]
        kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, -1, -1)
        return functional.conv2d(x, kernel, padding=self.padding, groups=x.shape[1])


class Bias(nn.Module):
    """A bias and a leaky rectifier."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1, channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _activated(x, self.bias.to(x))


def _convolution(
    in_channels: int, channels: int, kernel: int, *, halves: bool = False, is_activated: bool = True
) -> nn.Sequential:
    """Return a convolution with its blur and its activation, numbered as files number them."""
    layers: list[nn.Module] = []
    if halves:
        layers.append(Blur((len(BLUR) - 2 + kernel) // 2))
        layers.append(ScaledConv2d(in_channels, channels, kernel, stride=2))
    else:
        layers.append(ScaledConv2d(in_channels, channels, kernel, padding=kernel // 2))
    if is_activated:
        layers.append(Bias(channels))
    return nn.Sequential(*layers)


class HalvingBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, in_channels, 3)
        self.conv2 = _convolution(in_channels, channels, 3, halves=True)
        self.skip = _convolution(in_channels, channels, 1, halves=True, is_activated=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.conv2(self.conv1(x))
        both: torch.Tensor = h + self.skip(x)
        return both / math.sqrt(2)


class FaceStyle(nn.Module):
    """Images of faces [T, 3, 512, 512] -> [T, 512]."""

    def __init__(self) -> None:
        super().__init__()
        halvings = [HalvingBlock(before, after) for before, after in zip(CHANNELS, CHANNELS[1:], strict=False)]
        last = ScaledConv2d(CHANNELS[-1], STYLE_WIDTH, 4)
        self.convs = nn.ModuleList([_convolution(3, CHANNELS[0], 1), *halvings, last])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.convs:
            x = layer(x)
        style: torch.Tensor = x[:, :, 0, 0]
        return style


class MotionEncoder(nn.Module):
    """Images of faces [T, 3, 512, 512] in -1..1 -> motions [T, 512]."""

    def __init__(self) -> None:
        super().__init__()
        widths = [STYLE_WIDTH] * NUM_STYLE_LAYERS + [MOTION_WIDTH]
        fc = nn.Sequential(*(ScaledLinear(STYLE_WIDTH, width) for width in widths))
        self.enc = nn.ModuleDict({"net_app": FaceStyle(), "fc": fc})
        self.dec = nn.ModuleDict({"direction": Directions()})

    def forward(self, faces: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dec["direction"](self.enc["fc"](self.enc["net_app"](faces)))
        return out


class Directions(nn.Module):
    """The sum of orthogonal directions, each as far as a motion goes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(STYLE_WIDTH, MOTION_WIDTH))

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(lengths)
        diagonal = torch.eye(STYLE_WIDTH, MOTION_WIDTH, device=weight.device, dtype=weight.dtype)
        directions, _ = torch.linalg.qr((weight + STABLE * diagonal).float())
        return torch.sum(lengths.unsqueeze(-1) * directions.T.to(lengths.dtype), dim=1)


class PastConv1d(nn.Module):
    """A convolution of three steps with those before it; the first one is repeated."""

    def __init__(self, in_width: int, width: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_width, width, 3, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, W] for [B, T, V]."""
        padded = functional.pad(x.transpose(1, 2), (2, 0), mode="replicate")
        out: torch.Tensor = self.conv(padded)
        return out.transpose(1, 2)


def settled(x: torch.Tensor) -> torch.Tensor:
    """Normalise [B, T, W] and apply the activation."""
    return functional.silu(functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS))


class FaceEncoder(nn.Module):
    """Motions [B, T, 512] -> tokens [B, T / 4, 5, D], the last of which is the same everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1_local = PastConv1d(STYLE_WIDTH, FACE_WIDTH * FACE_HEADS)
        self.conv2, self.conv3 = (PastConv1d(FACE_WIDTH, FACE_WIDTH, stride=2) for _ in range(2))
        self.out_proj = Linear(FACE_WIDTH, width)
        self.padding_tokens = nn.Parameter(torch.empty(1, 1, 1, width))

    def forward(self, motions: torch.Tensor) -> torch.Tensor:
        batch = motions.shape[0]
        x: torch.Tensor = self.conv1_local(motions)
        x = x.view(batch, x.shape[1], FACE_HEADS, FACE_WIDTH).transpose(1, 2).flatten(0, 1)  # [B * H, T, W]
        x = settled(self.conv3(settled(self.conv2(settled(x)))))
        x = self.out_proj(x)
        x = x.view(batch, FACE_HEADS, *x.shape[1:]).transpose(1, 2)
        return torch.cat([x, self.padding_tokens.to(x).expand(batch, x.shape[1], -1, -1)], dim=2)
