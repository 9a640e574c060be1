"""The inputs of Wan's networks that read more than text and images: controls, cameras, audio, faces.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, NoiseShapedInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow, cut_input
from darkroom.engine.families.wan.video_denoiser import MASK_CHANNELS, VideoDenoiser

LATENT_CHANNELS, CELL_PX = 16, 8
CONTROL_LATENTS, CONTROL_MASKS = 2, 64  # latents and channels of masks of VACE
FACES_PER_FRAME = 4  # images of a face for each latent frame but the first
LEAST_SIDE_PX = 64  # of videos with earlier frames, of which 8 cells a side become one token
# What the VAE makes of black: its first, its second and every further latent frame, by channel.
BLACK_FIRST = (
    0.8660, -0.4326, -0.0017, -0.4884, -0.5283, 0.9207, -0.9896, 0.4433, -0.5543, -0.0113, 0.5753, -0.6000, -0.8346,
    -0.3497, -0.1926, -0.6938,
)  # fmt: skip
BLACK_SECOND = (
    1.0869, -1.2370, 0.0206, -0.4357, -0.6411, 2.0307, -1.5972, 1.2659, -0.8595, -0.4654, 0.9638, -1.6330, -1.4310,
    -0.1098, -0.3856, -1.4583,
)  # fmt: skip
BLACK = (
    0.8642, -1.8583, 0.1577, 0.1350, -0.3641, 2.5863, -1.9670, 1.6065, -1.0475, -0.8678, 1.1734, -1.8138, -1.5933,
    -0.7721, -0.3289, -1.3745,
)  # fmt: skip


class ImageVideoDenoiser(VideoDenoiser):
    """Wan from images, which always reads a mask."""

    always_masked = True


class ControlledVideoDenoiser(VideoDenoiser):
    """VACE, which follows videos and masks."""

    comfy_name = "WAN21_Vace"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        noise = kwargs["noise"]
        empty = noise.new_zeros(noise.shape[0], CONTROL_LATENTS * LATENT_CHANNELS, *noise.shape[2:])
        frames = kwargs.get("vace_frames") or [empty]
        everywhere = noise.new_ones(noise.shape[0], CONTROL_MASKS, *noise.shape[2:])
        masks = kwargs.get("vace_mask") or [everywhere] * len(frames)
        controls = [
            torch.cat([self._each_processed(video.to(noise)), mask.to(noise)], dim=1)
            for video, mask in zip(frames, masks, strict=False)
        ]
        inputs["vace_context"] = RegularInput(torch.stack(controls, dim=1))
        inputs["vace_strength"] = ConstantInput(kwargs.get("vace_strength", [1.0] * len(controls)))
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is."""
        return cut_input(given, window, 3, retained=retained) if name == "vace_context" else None


class CameraVideoDenoiser(VideoDenoiser):
    """Wan that follows a camera."""

    comfy_name = "WAN21_Camera"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        if kwargs.get("camera_conditions") is not None:
            inputs["camera_conditions"] = RegularInput(kwargs["camera_conditions"])
        return inputs


class AudioVideoDenoiser(VideoDenoiser):
    """Wan 2.2 S2V, a figure that moves after audio."""

    comfy_name = "WAN22_S2V"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for another audio encoder's audio, or an image too small."""
        inputs = super().extra_conds(**kwargs)
        heard: torch.Tensor | None = kwargs.get("audio_embed")  # [1, layers, width, steps]
        if heard is not None:
            config: Any = self.diffusion_model.config
            _check_encoder((heard.shape[1], heard.shape[2]), (config.audio_layers, config.audio_dim))
            inputs["audio_embed"] = RegularInput(heard)
        references = kwargs.get("reference_latents")
        latents = {
            "reference_latent": None if references is None else references[-1],
            "reference_motion": kwargs.get("reference_motion"),
            "control_video": kwargs.get("control_video"),
        }
        side_px = min(kwargs["noise"].shape[-2:]) * CELL_PX
        if latents["reference_motion"] is not None and side_px < LEAST_SIDE_PX:
            raise ValueError(
                f"width and height: too small for a video with earlier frames; got {side_px} pixels, expected at least "
                f"{LEAST_SIDE_PX}"
            )
        for name, latent in latents.items():
            if latent is not None:
                inputs[name] = RegularInput(self.process_latent_in(latent))
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is."""
        return cut_input(given, window, 1) if name == "audio_embed" else None


class SpeechVideoDenoiser(VideoDenoiser):
    """HuMo, a figure that speaks. The larger network reads the reference image with its mask."""

    comfy_name = "WAN21_HuMo"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for another audio encoder's audio."""
        inputs = super().extra_conds(**kwargs)
        heard: torch.Tensor | None = kwargs.get("audio_embed")  # [B, f, 8 steps, 5 groups of layers, width]
        if heard is not None:
            config: Any = self.diffusion_model.config
            _check_encoder((heard.shape[-2], heard.shape[-1]), (heard.shape[-2], config.speech_dim))
            inputs["audio_embed"] = RegularInput(heard)
        references = kwargs.get("reference_latents")
        reference = None if references is None else self.process_latent_in(references[-1])
        reads_mask = "c_concat" in inputs
        if reads_mask:
            inputs["c_concat"] = NoiseShapedInput(_black(kwargs["noise"]))
        if reference is not None:
            inputs["reference_latent"] = RegularInput(_given(reference) if reads_mask else reference)
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is."""
        return cut_input(given, window, 1) if name == "audio_embed" else None


class AnimatedVideoDenoiser(VideoDenoiser):
    """Wan 2.2 Animate, a figure that moves as poses and faces do."""

    comfy_name = "WAN22_Animate"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        if kwargs.get("face_video_pixels") is not None:
            inputs["face_pixel_values"] = RegularInput(kwargs["face_video_pixels"])
        if kwargs.get("pose_video_latent") is not None:
            inputs["pose_latents"] = RegularInput(self.process_latent_in(kwargs["pose_video_latent"]))
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is.

        Poses and faces, four images a latent frame, begin at the second latent frame.
        """
        if name == "face_pixel_values":
            return cut_input(given, window, 2, per_place=FACES_PER_FRAME, num_before=1)
        return cut_input(given, window, 2, num_before=1) if name == "pose_latents" else None


def _check_encoder(found: tuple[int, int], expected: tuple[int, int]) -> None:
    """Raise ValueError for features of other numbers of layers and channels than the network was trained with."""
    if found != expected:
        raise ValueError(
            f"audio_encoder_output: of another audio encoder than the model's; got {found[0]} layers {found[1]} wide, "
            f"expected {expected[0]} layers {expected[1]} wide"
        )


def _black(noise: torch.Tensor) -> torch.Tensor:
    """Return a mask of nothing and the latent of black [B, 4 + 16, f, h, w] for noise [B, 16, f, h, w]."""
    concat = noise.new_zeros(noise.shape[0], MASK_CHANNELS + noise.shape[1], *noise.shape[2:])
    for frames, colours in ((slice(None), BLACK), (slice(0, 1), BLACK_FIRST), (slice(1, 2), BLACK_SECOND)):
        concat[:, MASK_CHANNELS:, frames] = noise.new_tensor(colours).view(1, -1, 1, 1, 1)
    return concat


def _given(reference: torch.Tensor) -> torch.Tensor:
    """Return nothing drawn, a mask of all and an image's latent beside each other [B, 16 + 4 + 16, f, h, w]."""
    nothing = torch.zeros_like(reference)
    return torch.cat([nothing, torch.ones_like(reference)[:, :MASK_CHANNELS], reference], dim=1)
