"""The node that lets a video of edges, depth or poses, or a mask of what is painted, control MiniMax H3."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch.nn.functional import interpolate

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.families.minimax_h3.fun_control import MiniMaxH3FunControl
from darkroom.engine.families.minimax_h3.latents import VIDEO_CHANNELS
from darkroom.engine.families.minimax_h3.layout import Sequencing
from darkroom.engine.families.minimax_h3.nodes.block_functions import Arguments, BlockFunction, Function, set_in_blocks
from darkroom.engine.families.minimax_h3.nodes.inputs import MODULE, encoded
from darkroom.engine.families.minimax_h3.sizes import CELL_PX, frames_of
from darkroom.engine.families.minimax_h3.transformer import MiniMaxH3Transformer
from darkroom.engine.families.minimax_h3.vae import IMAGE_MEAN
from darkroom.engine.images.pixels import resize
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, MASK, MODEL, MODEL_PATCH, VAE
from darkroom.engine.nodes.widgets import Float

OVERRIDE = "optimized_attention_override"
PAINTED = 0.5  # a mask's least value where the video is painted

Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]


class ControlVideo:
    """The video that controls [F, H, W, 3], and the mask [F, 1, H, W] of what is painted into `source` [F, H, W, 3].

    Each is cut to the length and the proportions of the video that is made; the last frame of a shorter one stays.
    """

    def __init__(
        self, vae: Vae, video: torch.Tensor | None, mask: torch.Tensor | None, source: torch.Tensor | None
    ) -> None:
        self._vae = vae
        self._video, self._source = (None if item is None else item[..., :3].movedim(-1, 1) for item in (video, source))
        self._mask = None if mask is None else (mask.reshape(-1, 1, *mask.shape[-2:]) > PAINTED).float()

    def hint(self, size: tuple[int, int, int], *, masks_to_grey: bool) -> torch.Tensor:
        """Return the latent [1, 24 or 49, t, h, w] for a video of latent frames, rows and columns."""
        controlling = None if self._video is None else self._encoded(self._fitted(self._video, size))
        if self._mask is None:
            if controlling is None:
                raise ValueError("control_video: nothing to control with; got neither it nor a mask, expected one")
            return controlling
        kept = 1.0 - (self._fitted(self._mask, size) > PAINTED).float()
        source = kept.new_zeros(len(kept), 3, 1, 1) if self._source is None else self._fitted(self._source, size)
        seen = source * kept
        if masks_to_grey:
            seen = seen + (1.0 - kept) * torch.tensor(IMAGE_MEAN).view(1, 3, 1, 1)
        around = self._encoded(seen)
        cells = interpolate(kept.movedim(1, 0)[None], size=size, mode="trilinear", align_corners=False)
        return torch.cat([torch.zeros_like(around) if controlling is None else controlling, cells, around], dim=1)

    def _encoded(self, frames: torch.Tensor) -> torch.Tensor:
        return encoded(self._vae, frames.movedim(1, -1))

    def _fitted(self, frames: torch.Tensor, size: tuple[int, int, int]) -> torch.Tensor:
        """Return frames [F, C, H, W] for a video of latent frames, rows and columns."""
        count = frames_of(size[0])
        chosen = frames[torch.arange(count).clamp(max=len(frames) - 1)]
        return resize(chosen, size[2] * CELL_PX, size[1] * CELL_PX, "bilinear", "center")


class FunControl:
    """A control with a network of its own, within noise levels, for all blocks that it adds to."""

    def __init__(
        self, control: ModulePatcher, shown: ControlVideo, strength: float, highest: float, lowest: float
    ) -> None:
        self.control = control
        self._shown = shown
        self._strength = strength
        self._highest, self._lowest = highest, lowest
        self._hint: torch.Tensor | None = None
        self._hint_size: tuple[int, int, int] | None = None
        self._stream: torch.Tensor | None = None  # [B, S, D], what the next block of the control reads

    def is_active(self, options: Options) -> bool:
        """Return True at the noise levels where the control adds."""
        sigmas: torch.Tensor | None = options.get("sigmas")
        return sigmas is None or self._lowest <= float(on_host(sigmas)[0]) <= self._highest

    def added(self, layer: int, args: Arguments, after: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, S, D] behind a block of the network, with the control added. `args` are the block's."""
        network: MiniMaxH3FunControl = self.control.model
        layout: Sequencing = args["layout"]
        index = network.config.layers.index(layer)
        if index == 0:
            before: torch.Tensor = args["img"]
            self._stream = network.begin(before, self._hint_for(layout.size, before.device), layout)
        if self._stream is None:
            raise RuntimeError("a block of a control before its first one")
        options = {name: item for name, item in args["transformer_options"].items() if name != OVERRIDE}
        self._stream, addition = network.step(
            index, self._stream, args["t_emb"], args["mod_segments"], args["rope_freqs"], layout, options
        )
        if index == len(network.config.layers) - 1:
            self._stream = None
        return after + addition * self._strength

    def move(self, target: object) -> None:
        """Move what was encoded to a device."""
        if self._hint is not None and not isinstance(target, torch.dtype):
            self._hint = self._hint.to(torch.device(str(target)))
        self._stream = None

    def _hint_for(self, size: tuple[int, int, int], device: torch.device) -> torch.Tensor:
        if self._hint is None or self._hint_size != size:
            masks_to_grey = self.control.model.config.masks_to_grey
            self._hint, self._hint_size = self._shown.hint(size, masks_to_grey=masks_to_grey), size
        self._hint = self._hint.to(device)  # once: later steps find it there
        return self._hint


class FunControlBlock(BlockFunction):
    """A function in place of a block, behind which a control adds."""

    def __init__(self, control: FunControl, index: int, previous: Function | None) -> None:
        super().__init__(index, previous)
        self._control = control

    def __call__(self, args: Arguments, extra: Arguments) -> dict[str, torch.Tensor]:
        """Return the block's result with the control added."""
        result = self.inner(args, extra)
        if not self._control.is_active(args["transformer_options"]):
            return result
        return {**result, "img": self._control.added(self.index, args, result["img"])}

    def to(self, target: object) -> BlockFunction:
        """Move what the control and what was there before hold, to a device."""
        self._control.move(target)
        return super().to(target)

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device; the control's counts for its first block."""
        own = [self._control.control] if self.index == 0 else []
        return [*own, *super().models()]


@node(
    "MiniMaxH3FunControlNetApply",
    display_name="Apply MiniMax H3 Fun ControlNet",
    category="model/patch/minimax",
    python_module=MODULE,
    search_aliases=["minimax controlnet", "h3 controlnet", "video inpaint controlnet"],
    advanced=("start_percent", "end_percent"),
)
def minimax_h3_fun_control_net_apply(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
    control_video: Annotated[IMAGE | None, Optional()] = None,
    mask: Annotated[MASK | None, Optional()] = None,
    source_video: Annotated[IMAGE | None, Optional()] = None,
) -> MODEL:
    """Let a video, or a mask of what is painted into another, control what a model makes.

    Without either, or at a strength of 0, the model stays as it is. `source_video` is read with a mask alone.
    """
    if strength == 0 or (control_video is None and mask is None):
        return model
    _check_fits(model, model_patch, vae, has_mask=mask is not None)
    sampling = model.get_model_object("model_sampling")
    highest, lowest = (float(sampling.percent_to_sigma(percent)) for percent in (start_percent, end_percent))
    shown = ControlVideo(vae, control_video, mask, source_video)
    control = FunControl(model_patch, shown, strength, highest, lowest)
    controlled = model.clone()
    set_in_blocks(controlled, model_patch.model.config.layers, partial(FunControlBlock, control))
    return controlled


def _check_fits(model: MODEL, model_patch: MODEL_PATCH, vae: VAE, *, has_mask: bool) -> None:
    """Raise ValueError for networks that do not fit each other."""
    network, control = model.model.diffusion_model, model_patch.model
    if not isinstance(network, MiniMaxH3Transformer) or not isinstance(control, MiniMaxH3FunControl):
        raise ValueError("model_patch: it does not fit the model; got another kind, expected those of MiniMax H3")
    base, own = network.config, control.config.blocks
    if (own.hidden_size, own.head_dim) != (base.hidden_size, base.head_dim):
        raise ValueError(
            f"model_patch: it does not fit the model; got a hidden size of {own.hidden_size} and heads of "
            f"{own.head_dim}, expected {base.hidden_size} and {base.head_dim}"
        )
    if own.time_embed_dim != base.time_embed_dim or bool(own.curve_points) != bool(base.curve_points):
        raise ValueError(
            f"model_patch: it reads the time in another form than the model; got {_form(own.curve_points)} of "
            f"{own.time_embed_dim}, expected {_form(base.curve_points)} of {base.time_embed_dim} (both files pruned, "
            "or neither)"
        )
    if control.config.layers[-1] >= base.num_layers:
        raise ValueError(
            f"model_patch: it does not fit the model; got one for block {control.config.layers[-1]}, expected one for "
            f"a model of {base.num_layers} blocks"
        )
    needed = 2 * VIDEO_CHANNELS + 1 if has_mask else VIDEO_CHANNELS
    if control.config.hint_channels < needed:
        raise ValueError(
            f"{'mask' if has_mask else 'model_patch'}: the control does not read it; got one of "
            f"{control.config.hint_channels} channels, expected {needed}"
        )
    if vae.latent_channels != VIDEO_CHANNELS:
        raise ValueError(f"vae: one of another family; got {vae.latent_channels} channels, expected {VIDEO_CHANNELS}")


def _form(curve_points: int) -> str:
    return "coordinates of a curve" if curve_points else "an embedding"


NODES = (minimax_h3_fun_control_net_apply,)
