"""A control that lets the camera of a rendered video steer Wan (Uni3C), as a function among a MODEL's options.

`B` batch, `C` channels, `F` frames, `f` latent frames, `h w` latent cells, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.wan.nodes.latents import fitted, held_to
from darkroom.engine.families.wan.uni3c import Uni3c
from darkroom.engine.layers.unet_layers import Options
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import IMAGE, MODEL, MODEL_PATCH, VAE
from darkroom.engine.nodes.widgets import Float

SEEN_CHANNELS = 20  # of the model's input: the noisy latent, and the mask of networks from images

Share = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]


@dataclass(frozen=True, slots=True)
class _Step:
    """Inputs of the next block of the control: tokens [B, T, D], the embedded time [B, V], rotations."""

    tokens: torch.Tensor
    time: torch.Tensor
    pe: torch.Tensor


class CameraControlPatch:
    """A `double_block` patch with a network of its own. `render` [F, H, W, 3] of 0..1 is what it follows.

    It is encoded at the size of the latent, when that is first known. The control is at work from the noise level
    `levels[0]` down to `levels[1]`.
    """

    def __init__(
        self, control: ModulePatcher, vae: Vae, latent_format: LatentFormat, render: torch.Tensor, strength: float,
        levels: tuple[float, float],
    ) -> None:  # fmt: skip
        self._control, self._vae, self._latent_format = control, vae, latent_format
        self._render, self._strength, self._levels = render, strength, levels
        self._latent: torch.Tensor | None = None  # [1, C, f, h, w], scaled
        self._step: _Step | None = None

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Add the control to the video's tokens, behind the block `block_index`."""
        network: Uni3c = self._control.model
        index, img = inputs["block_index"], inputs["img"]
        if index == 0:
            self._step = self._begin(network, inputs) if self._is_at_work(inputs["transformer_options"]) else None
        if self._step is None or index >= network.config.num_blocks:
            return inputs
        step = self._step
        tokens, added = network.added(index, step.tokens, step.time, step.pe)
        self._step = None if index == network.config.num_blocks - 1 else _Step(tokens, step.time, step.pe)
        added = (added * self._strength).to(img).repeat(img.shape[0] // added.shape[0], 1, 1)
        first, end = inputs["img_offset"], inputs["img_offset"] + added.shape[1]
        steered = torch.cat([img[:, :first], img[:, first:end] + added, img[:, end:]], dim=1)
        return {**inputs, "img": steered}

    def __deepcopy__(self, memo: object) -> CameraControlPatch:
        """Return itself: clones of a MODEL share the control's network."""
        return self

    def to(self, target: object) -> CameraControlPatch:
        """Move what was encoded to a device."""
        if self._latent is not None and not isinstance(target, torch.dtype):
            self._latent = self._latent.to(torch.device(str(target)))
        self._step = None
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self._control]

    def _is_at_work(self, options: Options) -> bool:
        sigmas: torch.Tensor | None = options.get("sigmas")
        if sigmas is None:
            return True
        level = float(on_host(sigmas)[0])
        return self._levels[1] <= level <= self._levels[0]

    def _begin(self, network: Uni3c, inputs: dict[str, Any]) -> _Step:
        """Return the first block's inputs. Conditions of one step share their latents, so those of one are read."""
        x: torch.Tensor = inputs["x"]
        num_conditions = len(inputs["transformer_options"].get("cond_or_uncond", [0]))
        count = x.shape[0] // num_conditions if num_conditions and x.shape[0] % num_conditions == 0 else x.shape[0]
        seen = x[:count, :SEEN_CHANNELS]
        seen = functional.pad(seen, (0, 0, 0, 0, 0, 0, 0, SEEN_CHANNELS - seen.shape[1]))
        if self._latent is None or self._latent.shape[2:] != seen.shape[2:]:
            self._latent = self._encoded(*seen.shape[2:])
        self._latent = self._latent.to(seen.device)
        render = self._latent.to(seen).expand(count, -1, -1, -1, -1)
        tokens, pe = network.embedded(torch.cat([seen, render], dim=1))
        return _Step(tokens, inputs["vec"][:count, 0].to(tokens), pe)

    def _encoded(self, num_frames: int, height: int, width: int) -> torch.Tensor:
        """Return the scaled latent [1, C, f, h, w] of the render, held at its last frame."""
        ratio, cell_px = self._vae.temporal_compression_decode() or 1, self._vae.spacial_compression_encode()
        length = (num_frames - 1) * ratio + 1
        frames = held_to(self._render[:length], length)
        if frames.shape[1:3] != (height * cell_px, width * cell_px):
            frames = fitted(frames, width * cell_px, height * cell_px)
        return self._latent_format.process_in(self._vae.encode(frames))


@node(
    "WanUni3CControlnetApply",
    display_name="Apply Wan Uni3C ControlNet",
    category="model/patch/wan",
    python_module="comfy_extras.nodes_model_patch",
    experimental=True,
)
def wan_uni3c_controlnet_apply(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    render_video: IMAGE,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    start_percent: Share = 0.0,
    end_percent: Share = 1.0,
) -> MODEL:
    """Let a video of Wan follow the camera of a rendered one, in a share of the sampling.

    Raises ValueError for a model patch of another kind or for another model.
    """
    control: Any = model_patch.model
    if not isinstance(control, Uni3c):
        raise ValueError(f"model_patch: it is none of Uni3C; got {type(control).__name__}")
    config: Any = getattr(model.model.diffusion_model, "config", None)
    width = getattr(config, "width", None)
    if width != control.config.model_width:
        raise ValueError(
            f"model_patch: it is for another model; got one for hidden size {control.config.model_width}, expected "
            f"{width}, as the model has"
        )
    sampling = model.get_model_object("model_sampling")
    levels = (float(sampling.percent_to_sigma(start_percent)), float(sampling.percent_to_sigma(end_percent)))
    latent_format = model.get_model_object("latent_format")
    patched = model.clone()
    patched.set_model_double_block_patch(
        CameraControlPatch(model_patch, vae, latent_format, render_video[..., :3], strength, levels)
    )
    return patched


NODES = (wan_uni3c_controlnet_apply,)
