"""The inputs of MiniMax H3 beside the noisy latent: the layout of its sequence, what it is given, and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.diffusion.nested_latent import NestedLatent, StreamShapes, packed, streams_of, unpacked
from darkroom.engine.families.minimax_h3.conditions import (
    AUDIO_NOISE,
    TAGS,
    VIDEO_NOISE,
    given_tokens,
    guides_of,
    references_of,
)
from darkroom.engine.families.minimax_h3.layout import CELLS, PackedLayout, Source, flat, packed_layout
from darkroom.engine.families.minimax_h3.masks import token_levels, token_masks
from darkroom.engine.families.minimax_h3.noise_levels import AUDIO_TIME, VIDEO_TIME
from darkroom.engine.families.minimax_h3.sampling import AudioVideoFlow, shifted_again
from darkroom.engine.families.minimax_h3.transformer import LEAST_SIGMA

NODE = "MiniMaxH3SigmaShift"


class MiniMaxH3Denoiser(Denoiser):
    """MiniMax H3, which custom nodes find by its name in ComfyUI."""

    comfy_name = "MiniMaxH3"
    takes_streams = True
    uncast_inputs = ("positions", "given_video", "given_audio", "video_levels", "audio_levels")

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs of one condition.

        Raises:
            ValueError: the latent has no audio, or is of several videos; the text is not of this family's encoder, or
                a guide is of another size.
        """
        inputs = super().extra_conds(**kwargs)
        shapes = _checked_shapes(kwargs.get("latent_shapes"))
        network: Any = self.diffusion_model
        context = network.refined_text(kwargs["cross_attn"].to(device=kwargs["device"], dtype=self.compute_dtype))
        inputs["c_crossattn"] = RegularInput(context)
        seen = (float(kwargs.get(VIDEO_NOISE) or VIDEO_TIME), float(kwargs.get(AUDIO_NOISE) or AUDIO_TIME))
        layout, given = _arranged(kwargs, context.shape[1], shapes, seen)
        inputs["stretches"] = ConstantInput(flat(layout.stretches))
        inputs["positions"] = RegularInput(torch.cat(layout.positions).float()[None])
        inputs["given_times"] = ConstantInput(seen)
        inputs["audio_scale"] = ConstantInput(self.audio_scale())
        optional = dict(zip(("given_video", "given_audio"), given, strict=True)) | _mask_inputs(
            kwargs.get("denoise_mask"), shapes
        )
        inputs |= {name: RegularInput(tensor) for name, tensor in optional.items() if tensor is not None}
        return inputs

    def cut_for_window(self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]) -> NoReturn:
        """Refuse context windows: the layout is that of the whole video. Raises ValueError."""
        raise ValueError(
            f"context windows: MiniMax H3 has none; got a video of {window.total_frames} latent frames, expected a "
            "model without them, or a video no longer than a window"
        )

    def audio_scale(self) -> float:
        """Return the factor at which samplers carry the clean audio. Raises ValueError for a flow without audio."""
        if not isinstance(self.model_sampling, AudioVideoFlow):
            raise ValueError(
                f"model: its noise levels are those of one stream; got {type(self.model_sampling).__name__}, expected "
                f"those of a video with audio, which {NODE} sets"
            )
        return self.model_sampling.audio_scale

    def process_latent_in(self, latent: Any) -> Any:
        """Return the latent as samplers carry it: the audio as loud as the flow has it."""
        return self._with_louder_audio(super().process_latent_in(latent), self.audio_scale())

    def process_latent_out(self, latent: Any) -> Any:
        return super().process_latent_out(self._with_louder_audio(latent, 1.0 / self.audio_scale()))

    def _with_louder_audio(self, latent: Any, factor: float) -> Any:
        streams = streams_of(latent)
        if not streams or factor == 1.0:
            return latent
        return NestedLatent([streams[0], streams[1] * factor, *streams[2:]])

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """Return the latent that the sampler may not paint as the network sees given parts: nearly without noise.

        Between the mask of a cell and that of its token the latent stays as it is: the token is seen at the level of
        its least kept cell.
        """
        given: Mapping[str, Any] = kwargs
        shapes: StreamShapes = given["latent_shapes"]
        video, audio = unpacked(latent_image, shapes)
        noise_of_video = unpacked(noise, shapes)[0]
        kept = packed([VIDEO_TIME * video + (1.0 - VIDEO_TIME) * noise_of_video, audio * self._carried(sigma)])
        mask: torch.Tensor | None = given.get("denoise_mask")
        x: torch.Tensor | None = given.get("x")
        if x is None or mask is None:
            return kept
        by_token = packed(token_masks(mask, shapes))
        own = ((by_token - mask) / (1.0 - mask).clamp(min=LEAST_SIGMA)).clamp(0.0, 1.0)
        own = torch.where(mask < 1.0, own, torch.zeros_like(own))
        return kept + own.to(kept.dtype) * (x - kept)

    def _carried(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the factor [B, 1, 1, 1] from audio in the loudness of clean one to what samplers carry at a level."""
        flow: Any = self.model_sampling
        scale = self.audio_scale()
        if scale == 1.0:
            return torch.ones(1, 1, 1, 1, device=sigma.device)
        level = sigma.clamp(min=LEAST_SIGMA)
        factor = (level / shifted_again(level, flow.shift, flow.audio_shift)) / scale
        return factor.view(-1, 1, 1, 1)


def _checked_shapes(shapes: StreamShapes | None) -> StreamShapes:
    """Return the shapes of the two streams. Raises ValueError for a latent without audio."""
    if not shapes or len(shapes) < 2:
        raise ValueError(
            "latent_image: a latent of a video alone; got one stream, expected a video and its audio "
            "(EmptyMiniMaxH3LatentAV, or LTXVConcatAVLatent for encoded ones)"
        )
    return shapes


def _arranged(
    condition: Mapping[str, Any], text_tokens: int, shapes: StreamShapes, seen: tuple[float, float]
) -> tuple[PackedLayout, tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Return the layout of a condition's sequence, and the tokens of what the network is given."""
    (_, _, frames, *sides), audio = shapes[0], shapes[1]
    height, width = (side + side % CELLS for side in sides)
    guides, references = guides_of(condition, (height, width)), references_of(condition)
    layout = packed_layout(
        _modalities(condition.get(TAGS), text_tokens), (frames, height, width), audio[-1], guides, references
    )
    return layout, given_tokens([*guides, *references], seen, int(condition.get("seed") or 0))


def _modalities(tags: torch.Tensor | Sequence[int] | None, num_tokens: int) -> list[int]:
    """Return the modality of each token of the text; without tags all are text. Raises ValueError for other lengths."""
    if tags is None:
        return [int(Source.TEXT)] * num_tokens
    found = [int(tag) for tag in torch.as_tensor(tags).flatten()]
    if len(found) != num_tokens:
        raise ValueError(
            f"conditioning: its tokens are not those of one prompt; got {num_tokens} tokens and the kinds of "
            f"{len(found)}, expected as many"
        )
    return found


def _mask_inputs(mask: torch.Tensor | None, shapes: StreamShapes) -> dict[str, torch.Tensor]:
    """Return the values of a mask and those of each token, for both streams where they are masked."""
    if mask is None:
        return {}
    found = dict(zip(("video", "audio"), token_levels(mask, shapes), strict=True))
    inputs: dict[str, torch.Tensor] = {}
    for stream, levels in found.items():
        if levels is not None:
            inputs |= {f"{stream}_levels": levels.values, f"{stream}_level_of": levels.by_token}
    return inputs
