"""The networks of the demo checkpoint: SD1.5's own, narrower, built of the engine's classes.

Group norms have 32 groups. A group of one or two channels forgets the level of a plain image, so the levels that end
in a norm (the first and the last of the autoencoder) have three channels to a group.

What a short training on a processor cannot afford rests: blocks whose last layer is zero, so that they add nothing and
need not be computed while training. They are in the file like all others, and a longer training can wake them.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.sd15.unet_files import level_unet
from darkroom.engine.layers.clip_text import ClipTextConfig, ClipTextModel
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.vae_kl import AutoencoderKl, ResnetBlock, VaeConfig

WIDTH = 64  # of a token
VAE = VaeConfig(base_channels=32, level_channels=(96, 64, 64, 96), blocks_per_level=2)
TEXT = ClipTextConfig(num_layers=12, width=WIDTH, heads=WIDTH // 64, inner_width=WIDTH * 4)
UNET = level_unet(model_channels=64, context_dim=WIDTH, channel_mult=(1, 1, 2, 1))

# The channels that carry red, green, blue, and how brightness changes across a cell, each first of its group of three.
CARRIERS = torch.tensor([0, 3, 6, 9])
SLOPE = 9
BRIGHTNESS = torch.tensor([0.9, 1.8, 0.3])
STEADY = 1.5  # the constant, with both signs, in the other two channels of such a group
LINEAR = 4.0  # around here SiLU is nearly a straight line
MEAN_OF_FOUR = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 0]]) / 4
SMOOTH = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16
ACROSS = torch.tensor([[0.5, -0.5, 0], [0.5, -0.5, 0], [0, 0, 0]])

RESTING_BLOCKS = (  # at full size all, at half but one
    "encoder.down.0.block.0", "encoder.down.0.block.1", "encoder.down.1.block.1",
    "decoder.up.0.block.0", "decoder.up.0.block.1", "decoder.up.0.block.2", "decoder.up.1.block.1",
    "decoder.up.1.block.2",
)  # fmt: skip
RESTING_TRANSFORMERS = ("input_blocks.1.1", "output_blocks.9.1", "output_blocks.10.1")  # of five at the largest size
ACTIVE_TEXT_LAYERS = 4  # few words need few layers


@torch.no_grad()
def carry_colours(vae: AutoencoderKl) -> None:
    """Weights from which training starts: a latent is about the mean colour of its 64 pixels and their slope.

    Colours and slope run along the skip connections; the constants keep the group norms at either end nearly linear.
    """
    weights = dict(vae.named_parameters())
    for name, module in vae.named_modules():
        if name.endswith(("conv2", "proj_out")):
            _spare_carriers(module)
        elif name.endswith("nin_shortcut") and isinstance(module, nn.Conv2d):
            _pass_on(module, torch.ones(1, 1))
        elif name.endswith("downsample.conv"):
            _pass_on(module, MEAN_OF_FOUR)
        elif name.endswith("upsample.conv"):
            _pass_on(module, SMOOTH)
    for inlet in ("encoder.conv_in", "decoder.conv_in"):
        weights[f"{inlet}.weight"][CARRIERS] = 0
        weights[f"{inlet}.bias"][CARRIERS] = 0
    weights["encoder.conv_in.weight"][CARRIERS[:3], torch.arange(3), 1, 1] = 1
    weights["decoder.conv_in.weight"][CARRIERS, torch.arange(4), 1, 1] = 1
    halving = weights["encoder.down.2.downsample.conv.weight"]
    halving[SLOPE] = 0
    halving[SLOPE, CARRIERS[:3]] = BRIGHTNESS[:, None, None] * ACROSS
    for shortcut in ("encoder.down.3.block.0.nin_shortcut", "decoder.up.0.block.0.nin_shortcut"):
        for channel, constant in ((1, STEADY), (2, -STEADY)):
            weights[f"{shortcut}.weight"][CARRIERS + channel] = 0
            weights[f"{shortcut}.bias"][CARRIERS + channel] = constant
    for part, gain, offset in (("encoder", 1.3, 0.0), ("decoder", 2.0, 0.35)):
        _read_carriers(weights, part, gain, offset)
    for mixer in ("quant_conv", "post_quant_conv"):
        weight = weights[f"{mixer}.weight"]
        weight.zero_()
        weights[f"{mixer}.bias"].zero_()
        weight[range(len(weight)), range(len(weight))] = 1


def _read_carriers(weights: dict[str, nn.Parameter], part: str, gain: float, offset: float) -> None:
    """The last layer of encoder or decoder: the carriers, through a norm and SiLU that are nearly linear there."""
    weight, bias = weights[f"{part}.conv_out.weight"], weights[f"{part}.conv_out.bias"]
    weights[f"{part}.norm_out.bias"][CARRIERS] = LINEAR
    ends = CARRIERS[: len(weight)]
    rows = torch.arange(len(ends))
    weight[rows] *= 0.05
    weight[rows, ends] = 0
    weight[rows, ends, 1, 1] = gain
    bias[rows] = offset - gain * LINEAR * torch.sigmoid(torch.tensor(LINEAR))


def _spare_carriers(convolution: nn.Module) -> None:
    """The end of a residual branch: small, and at first nothing for the carriers."""
    weight, bias = convolution.get_parameter("weight"), convolution.get_parameter("bias")
    weight.mul_(0.2)
    weight[CARRIERS] = 0
    bias[CARRIERS] = 0


def _pass_on(convolution: nn.Module, kernel: torch.Tensor) -> None:
    """Every channel goes through unmixed, as far as there are as many; the carriers hear nothing else."""
    weight, bias = convolution.get_parameter("weight"), convolution.get_parameter("bias")
    weight.mul_(0.3)
    weight[CARRIERS] = 0
    bias[CARRIERS] = 0
    same = range(min(weight.shape[:2]))
    weight[same, same] += kernel


def rest_large_blocks(vae: AutoencoderKl) -> None:
    """The autoencoder's `RESTING_BLOCKS`."""
    for name in RESTING_BLOCKS:
        block = vae.get_submodule(name)
        if isinstance(block, ResnetBlock):
            block.requires_grad_(False)
            block.nin_shortcut.requires_grad_(True)
            _silence(block, "conv2")
            block.forward = block.nin_shortcut.forward  # type: ignore[method-assign,assignment]


def rest_large_transformers(unet: UnetModel) -> None:
    """The UNet's `RESTING_TRANSFORMERS`."""
    for name in RESTING_TRANSFORMERS:
        transformer = unet.get_submodule(name)
        transformer.requires_grad_(False)
        _silence(transformer, "proj_out")
        transformer.forward = _unchanged


def rest_text_layers(text: ClipTextModel) -> None:
    """All layers of the text encoder but the first few."""
    for layer in list(text.text_model.encoder.layers)[ACTIVE_TEXT_LAYERS:]:
        layer.requires_grad_(False)
        _silence(layer, "self_attn.out_proj")
        _silence(layer, "mlp.fc2")
        layer.forward = _unchanged


def _silence(module: nn.Module, last: str) -> None:
    nn.init.zeros_(module.get_submodule(last).get_parameter("weight"))
    nn.init.zeros_(module.get_submodule(last).get_parameter("bias"))


def _unchanged(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x


@torch.no_grad()
def channels_last(network: nn.Module) -> None:
    """Convolutions are faster so, on either device."""
    for weight in network.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
