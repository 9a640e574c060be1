"""The inputs of HiDream-O1 beside the noisy image: the text's tokens, reference images, and the positions of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.hidream_o1.positions import NUM_BEFORE_IMAGES, positions_of
from darkroom.engine.families.hidream_o1.references import Reference, prepared
from darkroom.engine.families.hidream_o1.text import TEXT_TOKENS
from darkroom.engine.families.hidream_o1.transformer import HEAD_DIM, PATCH_PX
from darkroom.engine.layers.language_model import QWEN3_VL
from darkroom.engine.layers.token_rotations import rotation
from darkroom.engine.text.qwen_tokens import IMAGE_TOKEN

VISION_START, VISION_END = 151652, 151653  # before and behind an image among a text's tokens


class HiDreamO1Denoiser(Denoiser):
    """HiDream-O1, whose language model reads the text's tokens in every step."""

    comfy_name = "HiDreamO1"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for a text or reference images that are not for it."""
        inputs = super().extra_conds(**kwargs)
        tokens: torch.Tensor | None = kwargs.get(TEXT_TOKENS)
        if tokens is None:
            raise ValueError(
                "conditioning: its text encoder does not fit the model; got text without the numbers of its tokens, "
                "expected that of the CLIP of a HiDream-O1 checkpoint"
            )
        noise, device = kwargs["noise"], kwargs["device"]
        height, width = _drawn_size(noise, kwargs.get("area"))
        references = prepared(_checked(kwargs.get("reference_latents") or ()), height, width)
        ids = [int(token) for token in tokens.flatten().tolist()]
        with_images, spans = _with_images(ids, references)
        seen = [item.seen_grid for item in references]
        drawn = (height // PATCH_PX, width // PATCH_PX)
        positions = positions_of(len(ids), drawn, seen, [item.grid for item in references])
        cosines, sines = _turns(positions)
        inputs["input_ids"] = RegularInput(torch.tensor([with_images], device=device))
        inputs["cosines"], inputs["sines"] = RegularInput(cosines.to(device)), RegularInput(sines.to(device))
        if references:
            network: Any = self.diffusion_model
            read = network.read_images([item.seen.to(device) for item in references], self.compute_dtype)
            inputs["ref_tokens"], inputs["ref_spans"] = RegularInput(read), ConstantInput(spans)
            inputs["ref_patches"] = RegularInput(torch.cat([item.patches for item in references], dim=1).to(device))
        return inputs

    def memory_required(
        self, input_shape: Sequence[int], cond_shapes: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> float:
        """Estimate the working memory in bytes; references are images [B, H, W, C], seen at the drawn size at most."""
        drawn = math.prod(input_shape[2:])
        sizes = {
            name: [(shape[0], 3, min(shape[1] * shape[2], drawn)) for shape in shapes]
            for name, shapes in (cond_shapes or {}).items()
        }
        return super().memory_required(input_shape, sizes)

    def check_text(self, condition: Mapping[str, Any]) -> None:
        """Raise ValueError for text of an encoder, and for tokens that the language model has not."""
        super().check_text(condition)
        tokens: torch.Tensor | None = condition.get(TEXT_TOKENS)
        config: Any = self.diffusion_model.config
        for token in () if tokens is None or not tokens.numel() else (int(tokens.min()), int(tokens.max())):
            if not 0 <= token < config.vocabulary_size:
                raise ValueError(
                    f"conditioning: {TEXT_TOKENS} has a token that the model has not; got {token}, expected 0 to "
                    f"{config.vocabulary_size - 1}"
                )


def _drawn_size(noise: torch.Tensor, area: Sequence[int] | None) -> tuple[int, int]:
    """Return height and width in pixels of what a condition draws: all, or its area (height, width, top, left).

    Raises ValueError for an image of no whole patches.
    """
    height, width = noise.shape[-2:]
    if area is not None:
        height, width = min(height - area[2], area[0]), min(width - area[3], area[1])
    if noise.ndim != 4 or noise.shape[1] != 3 or height % PATCH_PX or width % PATCH_PX or not height * width:
        raise ValueError(
            f"latent_image: the model draws pixels in patches of {PATCH_PX} a side; got a latent of shape "
            f"{list(noise.shape)}, expected 3 channels and sides that are multiples of {PATCH_PX}, such as those of "
            "EmptyHiDreamO1LatentImage"
        )
    return height, width


def _checked(images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return reference images. Raises ValueError for latents in their place."""
    for number, image in enumerate(images, start=1):
        if image.ndim != 4 or image.shape[-1] not in (3, 4):
            raise ValueError(
                f"reference image {number}: the model reads images, not latents; got shape {list(image.shape)}, "
                "expected those of HiDreamO1ReferenceImages"
            )
    return list(images)


def _with_images(ids: Sequence[int], references: Sequence[Reference]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a text's tokens with those of images behind its beginning, and first position and number of each image."""
    found, spans = list(ids[:NUM_BEFORE_IMAGES]), []
    for item in references:
        rows, columns = item.seen_grid
        found.append(VISION_START)
        spans.append((len(found), rows * columns))
        found += [IMAGE_TOKEN] * (rows * columns) + [VISION_END]
    return found + list(ids[NUM_BEFORE_IMAGES:]), spans


def _turns(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [1, T, W / 2] of positions [3, T]."""
    kind = QWEN3_VL
    cos, sin = rotation(positions, HEAD_DIM, kind.theta, sections=kind.sections, interleaved=True)
    half = HEAD_DIM // 2
    return cos[0, :, :, :half], sin[0, :, :, :half]
