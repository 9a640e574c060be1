"""CLIP_VISION, CLIP_VISION_OUTPUT and STYLE_MODEL: image embeddings that take the place of prompt words."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.images.naflex_pixels import naflex_pixels
from darkroom.engine.images.vision_pixels import vision_pixels
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.layers.dinov3 import Dinov3Config
from darkroom.engine.layers.image_encoders import ImageEncoderConfig
from darkroom.engine.models.network_in_use import NetworkInUse
from darkroom.engine.models.network_value import NetworkAsModel, NetworkValue
from darkroom.engine.models.weight_handle import Network, WeightHandle

BYTES_PER_VALUE = 4  # it computes in float32


class ClipVisionOutput:
    """Output of an image encoder, also readable and writable by item (`output["image_embeds"]`), as packs do."""

    last_hidden_state: torch.Tensor  # [B, T, D]
    penultimate_hidden_states: torch.Tensor  # [B, T, D] of the last layer but one
    all_hidden_states: torch.Tensor  # [B, layers, T, D], of an encoder that `return_all_hidden_states`
    image_embeds: torch.Tensor  # [B, E]
    image_sizes: list[torch.Size]  # [3, H, W] of the pixels that each image was read as
    mm_projected: Any

    def __getitem__(self, key: str) -> object:
        return getattr(self, key)

    def __setitem__(self, key: str, item: object) -> None:
        setattr(self, key, item)


def _working_bytes(network: Network, shape: torch.Size) -> int:
    """Return the bytes of one layer's inner values, the largest working memory, for images [B, 3, H, W]."""
    config = network.config
    num_tokens = max(config.num_tokens, shape[2] * shape[3] // config.patch_px**2)
    num_bytes: int = shape[0] * num_tokens * config.inner_width * 2 * BYTES_PER_VALUE
    return num_bytes


def _keeps_proportions(config: ImageEncoderConfig) -> bool:
    """Return True for SigLIP 2's NaFlex form."""
    return isinstance(config, ClipVisionConfig) and config.most_patches > 0


class ClipVision(NetworkValue):
    """An image encoder with ComfyUI's members."""

    def __init__(self, weights: WeightHandle) -> None:
        super().__init__(weights)
        self.model = NetworkInUse(self.patcher, _working_bytes)

    @property
    def image_size(self) -> int:
        """Pixels per side of the network's input."""
        size: int = self.patcher.model.config.image_px
        return size

    @property
    def image_mean(self) -> tuple[float, ...]:
        mean: tuple[float, ...] = self.patcher.model.config.mean
        return mean

    @property
    def image_std(self) -> tuple[float, ...]:
        deviation: tuple[float, ...] = self.patcher.model.config.deviation
        return deviation

    @property
    def return_all_hidden_states(self) -> bool:
        """True for an encoder of which readers ask for several layers' outputs."""
        config = self.patcher.model.config
        return not config.has_class_token and not _keeps_proportions(config)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the layers' weights; computation is in float32."""
        dtype: torch.dtype = next(weight.dtype for weight in self.patcher.model.parameters() if weight.ndim in (2, 4))
        return dtype

    @torch.no_grad()
    def encode_image(self, image: torch.Tensor, crop: bool = True) -> ClipVisionOutput:
        """Encode IMAGE [B, H, W, C]; output on the CPU, float32.

        With `crop` only the middle square is used, else the whole image is squeezed to a square; SigLIP 2's NaFlex form
        keeps the proportions in either case. Raises ValueError for DINOv3, of which other nodes read tokens at sizes
        of their own.
        """
        if isinstance(self.patcher.model.config, Dinov3Config):
            raise ValueError(
                "clip_vision: DINOv3 has no output of its last layer but one; expected CLIP, SigLIP or DINOv2 "
                "(Trellis2Conditioning and Pixal3DConditioning take DINOv3)"
            )
        pixels = self._pixels(image.to(self.load_device), crop=crop).float()
        asked = "all" if self.return_all_hidden_states else -2
        last, inner, embeds, projected = self.model(pixel_values=pixels, intermediate_output=asked)
        output = ClipVisionOutput()
        output.last_hidden_state = last.to("cpu")
        if self.return_all_hidden_states:
            output.all_hidden_states = inner.to("cpu")
            output.penultimate_hidden_states = output.all_hidden_states[:, -2]
        else:
            output.penultimate_hidden_states = inner.to("cpu")
        output.image_embeds = embeds.to("cpu")
        output.image_sizes = [pixels.shape[1:]] * pixels.shape[0]
        output.mm_projected = projected
        return output

    def _pixels(self, image: torch.Tensor, *, crop: bool) -> torch.Tensor:
        """Return IMAGE [B, H, W, C] as the network reads it, [B, 3, H', W']."""
        config = self.patcher.model.config
        if _keeps_proportions(config):
            return naflex_pixels(image, config.patch_px, config.most_patches, self.image_mean, self.image_std)
        return vision_pixels(image, self.image_size, self.image_mean, self.image_std, crop=crop)


class StyleModel(NetworkAsModel):
    """A network that turns an image's tokens into words of a prompt (`engine/models/kinds/style_adapter.py`)."""

    @torch.no_grad()
    def get_cond(self, input: ClipVisionOutput) -> torch.Tensor:
        """Return words [B, N, C], float32 on the CPU.

        Raises ValueError when the image encoder is of another width.
        """
        with self.patcher.in_use() as network:
            tokens = input.last_hidden_state
            if tokens.shape[-1] != network.config.width:
                raise ValueError(
                    f"the style model takes an image encoder of width {network.config.width}, "
                    f"this one's is {tokens.shape[-1]}"
                )
            words: torch.Tensor = network(tokens.to("cpu", torch.float32))
        return words
