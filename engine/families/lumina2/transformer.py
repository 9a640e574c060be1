"""The transformer of Lumina-Image 2.0 (Qin et al. 2025, arXiv 2503.21758) and of Z-Image (Cai et al. 2025, 2511.22699).

Blocks that refine text and image by themselves are followed by blocks for both in one sequence. Norms stand on both
sides of attention and feed-forward layers, and the time scales and gates what lies between them. Places are rotations
(Su et al. 2021, arXiv 2104.09864) on three axes: token of the text, row, column. `B` batch, `C` channels, `h w` latent
cells, `L` tokens of text, `T` tokens of text and image, `D` width, `H` heads. Module names are those of the original
checkpoints. The output is the noise minus the image, as other flow networks give it.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches["noise_refiner"]` and
`patches["double_block"]` have functions of the image's tokens behind each block of the kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.lumina2.layers import FinalLayer, JointBlock, Lumina2Config, TimeEmbedder
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import image_channels_last, pad_to_patches, patches_channels_last
from darkroom.engine.layers.rope_options import axis_positions
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.transformer_layers import Modulator, Stretches
from darkroom.engine.layers.unet_layers import Options

PAD_MULTIPLE = 32  # tokens


def text_places(num_tokens: int, first: int, device: torch.device) -> torch.Tensor:
    """Return the places [1, L, 3] of a text, from `first` on the first axis."""
    places = torch.zeros(1, num_tokens, 3, device=device)
    places[..., 0] = torch.arange(first, first + num_tokens, device=device)
    return places


def image_places(
    rows: int, columns: int, index: int, device: torch.device, options: Options | None = None
) -> torch.Tensor:
    """Return the places [1, rows * columns, 3] of an image, at `index` of the first axis.

    The transformer options may scale and shift rows and columns.
    """
    places = torch.zeros(rows, columns, 3, device=device)
    places[..., 0] = index
    places[..., 1] = axis_positions(rows, "y", options, device)[:, None]
    places[..., 2] = axis_positions(columns, "x", options, device)[None, :]
    return places.flatten(0, 1).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The image that is generated: its latent [B, C, h, w] of whole patches, its time and rotations.

    `clean` is the time of tokens of references, as `time` [B, time width]. `pe` [1, 1, T, pairs, 2, 2] are those of its
    tokens alone.
    """

    padded: torch.Tensor
    time: torch.Tensor
    clean: torch.Tensor
    pe: torch.Tensor

    def times(self, lengths: tuple[int, int]) -> Modulator:
        """Return the times of so many tokens of references, and of others behind them."""
        return Stretches(lengths, (self.clean, self.time)) if lengths[0] else self.time

    def given(self, image: torch.Tensor) -> dict[str, object]:
        """Return the inputs that a patch reads for the image's tokens before its blocks, [B, T, D]."""
        return {"img_input": image, "pe": self.pe, "vec": self.time, "x": self.padded}


class Lumina2Transformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, D])` -> `[B, C, h, w]`.

    All L tokens of the text are read, whatever mask came with it. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = config.patch
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.x_embedder = Linear(config.patch**2 * config.in_channels, config.width)
        self.noise_refiner = nn.ModuleList(JointBlock(config) for _ in range(config.num_refiners))
        self.context_refiner = nn.ModuleList(JointBlock(config, is_modulated=False) for _ in range(config.num_refiners))
        self.t_embedder = TimeEmbedder(config)
        self.cap_embedder = nn.Sequential(RmsNorm(config.context_dim, 1e-5), Linear(config.context_dim, config.width))
        self.layers = nn.ModuleList(JointBlock(config) for _ in range(config.num_layers))
        if config.has_last_norm:
            self.norm_final = RmsNorm(config.width, 1e-5)
        self.add_head()
        if config.pads_tokens:
            self.x_pad_token, self.cap_pad_token = (nn.Parameter(torch.empty(1, config.width)) for _ in range(2))

    def add_head(self) -> None:
        """Add the layers behind the blocks."""
        self.final_layer = FinalLayer(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.x_embedder.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        height, width = x.shape[-2:]
        padded = pad_to_patches(x, self.patch_size)
        time = self.time_of(timesteps, x.dtype)
        text, text_places, after = self.embedded_text(context)
        text_pe = self.rotations(text_places)
        text = self.refined_text(text, text_pe, transformer_options)
        image, places = self.embedded_image(padded, after, transformer_options)
        drawn = Drawn(padded, time, time, self.rotations(places))
        image = self.refined_image(image, drawn.pe, drawn, text, transformer_options)
        pe = torch.cat([text_pe, drawn.pe], dim=2)
        out = self.through(torch.cat([text, image], dim=1), pe, drawn, image, transformer_options)
        return -self.image_of(out, drawn)[..., :height, :width]

    def time_of(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the embedded time [B, time width]."""
        out: torch.Tensor = self.t_embedder((1.0 - timesteps) * self.config.time_factor, dtype)
        return out

    def embedded_text(self, context: torch.Tensor, after: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return a text [B, L, D], its positions [1, L, 3] behind `after` on the first axis, and the one behind it."""
        text = self.cap_embedder(context)
        first = after
        if self.config.pads_tokens:
            text, first = filled_up(text, self.cap_pad_token), after + 1
        return text, text_places(text.shape[1], first, text.device), first + text.shape[1]

    def refined_text(self, text: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return the text [B, L, D] behind its own blocks."""
        for block in self.context_refiner:
            text = block(text, None, pe, options=options)
        return text

    def embedded_image(
        self, padded: torch.Tensor, index: int, options: Options | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image [B, T, D] and its positions [1, T, 3]. Filling tokens have the place of no text or row."""
        image = self.x_embedder(patches_channels_last(padded, self.patch_size))
        rows, columns = (side // self.patch_size for side in padded.shape[-2:])
        places = image_places(rows, columns, index, padded.device, options)
        if self.config.pads_tokens:
            image = filled_up(image, self.x_pad_token)
            places = functional.pad(places, (0, 0, 0, image.shape[1] - places.shape[1]))
        return image, places

    def refined_image(
        self, image: torch.Tensor, pe: torch.Tensor, drawn: Drawn, text: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return images [B, T, D] behind their own blocks. The one that is generated is last."""
        first = image.shape[1] - drawn.pe.shape[2]
        patches = {} if options is None else options.get("patches", {})
        given = {
            **drawn.given(image[:, first:]), "txt": text, "transformer_options": options, "block_type": "noise_refiner",
        }  # fmt: skip
        lengths = (first, image.shape[1] - first)
        for number, block in enumerate(self.noise_refiner):
            image = block(image, None, pe, drawn.times(lengths), options)
            for patch in patches.get("noise_refiner", ()):
                out = patch({**given, "img": image[:, first:], "block_index": number})
                image = torch.cat([image[:, :first], out["img"]], dim=1) if "img" in out else image
        return image

    def through(
        self,
        tokens: torch.Tensor,
        pe: torch.Tensor,
        drawn: Drawn,
        image: torch.Tensor,
        options: Options | None,
        num_clean: int = 0,
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] of the generated image, the last of those given, behind all blocks.

        `num_clean` tokens before the others are those of references.
        """
        num_drawn = drawn.pe.shape[2]
        first = tokens.shape[1] - num_drawn
        options_of_patches = {} if options is None else options
        given = {**drawn.given(image[:, -num_drawn:]), "transformer_options": options_of_patches}
        time = drawn.times((num_clean, tokens.shape[1] - num_clean))
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens, None, pe, time, options)
            for patch in options_of_patches.get("patches", {}).get("double_block", ()):
                inputs = {**given, "img": tokens[:, first:], "txt": tokens[:, :first], "block_index": index}
                out = patch(inputs)
                tokens = torch.cat([out.get("txt", inputs["txt"]), out.get("img", inputs["img"])], dim=1)
        return tokens[:, first:]

    def image_of(self, tokens: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Return the generated image [B, C, h, w], of whole patches, from its tokens and those that fill it up."""
        height, width = drawn.padded.shape[-2:]
        num_patches = height * width // self.patch_size**2
        out = self.final_layer(tokens[:, :num_patches], drawn.time)
        return image_channels_last(out, height, width, self.patch_size)

    def rotations(self, places: torch.Tensor) -> torch.Tensor:
        """Return the rotations [1, 1, T, pairs, 2, 2] of positions [1, T, 3]."""
        return rotations(places, self.config.axes, self.config.theta)


def filled_up(tokens: torch.Tensor, filling: torch.Tensor, multiple: int = PAD_MULTIPLE) -> torch.Tensor:
    """Return tokens [B, T, D] with `filling` [1, D] behind them, up to a multiple of that many tokens."""
    missing = -tokens.shape[1] % multiple
    behind = filling.to(tokens).expand(tokens.shape[0], missing, -1)
    return torch.cat([tokens, behind], dim=1) if missing else tokens
