"""Description of a VAE: sizes, types, channels and memory of its network, and its form of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.models.network_value import NetworkValue
from darkroom.engine.models.weight_handle import Network


class DescribedVae(NetworkValue):
    """The members of ComfyUI's VAE that describe it and change pixels for it. Pixels are `[B, H, W, C]`, 0..1."""

    crop_input = True
    latent_dim = 2
    disable_offload = False
    not_video = False
    extra_1d_channel: int | None = None

    @property
    def first_stage_model(self) -> Network:
        """The network itself (`engine/layers/vae_kl.py::AutoencoderKl`)."""
        return self.patcher.model

    @property
    def device(self) -> torch.device:
        return self.patcher.load_device

    @property
    def output_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def vae_dtype(self) -> torch.dtype:
        return stored_dtype(self.first_stage_model)

    @property
    def working_dtypes(self) -> list[torch.dtype]:
        """Types in which it may compute, the preferred one first."""
        return list(dict.fromkeys((self.vae_dtype, torch.float32)))

    @property
    def downscale_index_formula(self) -> tuple[int, int, int] | None:
        """Frames, rows and columns of a latent cell; None for a VAE of still images."""
        return None

    @property
    def upscale_index_formula(self) -> tuple[int, int, int] | None:
        """Frames, rows and columns that a latent cell becomes; None for a VAE of still images."""
        return None

    def throw_exception_if_invalid(self) -> None:
        """Do nothing: a file without a VAE gives no value of this class."""

    def memory_used_decode(self, shape: Sequence[int], dtype: torch.dtype) -> float:
        """Return the bytes that decoding latents of that shape takes in that type, besides the weights."""
        own = getattr(self.first_stage_model, "decode_bytes", None)
        if own is not None:
            return float(own(tuple(shape)) * dtype.itemsize)
        return float(self._decode_bytes_per_cell() * math.prod(shape[2:]) * dtype.itemsize)

    def memory_used_encode(self, shape: Sequence[int], dtype: torch.dtype) -> float:
        """Return the bytes that encoding images [B, C, H, W] takes in that type, besides the weights."""
        own = getattr(self.first_stage_model, "encode_bytes", None)
        if own is not None:
            return float(own(tuple(shape)) * dtype.itemsize)
        return float(self._encode_bytes_per_pixel() * math.prod(shape[2:]) * dtype.itemsize)

    def vae_output_dtype(self) -> torch.dtype:
        """Return the type of its results."""
        return torch.float32

    @property
    def latent_channels(self) -> int:
        channels: int = self.first_stage_model.latent_channels
        return channels

    @property
    def output_channels(self) -> int:
        """Channels of its images."""
        channels: int = getattr(self.first_stage_model, "output_channels", 3)
        return channels

    @property
    def pad_channel_value(self) -> float | None:
        """Value of a channel that images lack, None where all have to be there."""
        missing: float | None = getattr(self.first_stage_model, "missing_channel", None)
        return missing

    @property
    def downscale_ratio(self) -> int:
        """Pixels per side of one latent cell."""
        ratio: int = self.first_stage_model.downscale_ratio
        return ratio

    @property
    def upscale_ratio(self) -> int:
        """Pixels a side that one latent cell becomes."""
        ratio: int = getattr(self.first_stage_model, "upscale_ratio", self.downscale_ratio)
        return ratio

    def spacial_compression_encode(self) -> int:
        return self.downscale_ratio

    def spacial_compression_decode(self) -> int:
        return self.upscale_ratio

    def temporal_compression_decode(self) -> int | None:
        """Return the frames that a latent frame becomes, None for a VAE of still images."""
        return None

    def _takes_plain_images(self) -> bool:
        """Return True for a network of images of 0..1, whose results are not clipped."""
        return getattr(self.first_stage_model, "takes_plain_images", False)

    def process_input(self, image: torch.Tensor) -> torch.Tensor:
        return image if self._takes_plain_images() else image * 2.0 - 1.0

    def process_output(self, image: torch.Tensor) -> torch.Tensor:
        if self._takes_plain_images():
            return image
        return torch.clamp((image + 1.0) / 2.0, min=0.0, max=1.0)

    def vae_encode_crop_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Cut the sides of `[..., H, W, C]`, evenly, to multiples of a latent cell, if the network needs that."""
        if not self.crop_input or getattr(self.first_stage_model, "takes_any_size", False):
            return pixels
        ratio = self.downscale_ratio
        for dim in (pixels.ndim - 3, pixels.ndim - 2):
            size = pixels.shape[dim]
            if size % ratio:
                pixels = pixels.narrow(dim, (size % ratio) // 2, size // ratio * ratio)
        return pixels

    def with_channels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return `[..., C]` with as many channels as the network reads: cut, or filled with `pad_channel_value`."""
        lacking = self.output_channels - pixels.shape[-1]
        if lacking > 0 and self.pad_channel_value is not None:
            return torch.nn.functional.pad(pixels, (0, lacking), value=self.pad_channel_value)
        return pixels[..., : self.output_channels]

    def _decode_bytes_per_cell(self) -> int:
        num_bytes: int = self.first_stage_model.decode_bytes_per_cell
        return num_bytes

    def _encode_bytes_per_pixel(self) -> int:
        num_bytes: int = self.first_stage_model.encode_bytes_per_pixel
        return num_bytes
