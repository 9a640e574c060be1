"""Previews of a run: the latents and images that nodes report while they work, encoded for clients."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.events import EncodedPreview
from darkroom.engine.images.preview import decoded_preview, image_preview, latent_animation, latent_preview
from darkroom.engine.memory.device import translate_device_error
from darkroom.engine.models.tiny_decoders import TinyDecoders
from darkroom.engine.settings import EngineSettings, PreviewMethod


class Previews:
    """Encoder of previews. `method` is that of `--preview-method`; custom nodes change it for a run of theirs."""

    def __init__(self, settings: EngineSettings, decoders: TinyDecoders) -> None:
        self.method: PreviewMethod = settings.preview_method
        self._size_px = settings.preview_size_px
        self._is_animated = settings.animated_previews
        self._decoders = decoders

    def encode(self, preview: Any, latent_format: Any, method: PreviewMethod | None = None) -> EncodedPreview | None:
        """Encode a preview. Images from nodes are always shown, latents by `method`, as in ComfyUI.

        Without a `method` it is the one of `--preview-method`. With `--animated-previews` an animation of a video's
        latent frames follows, in their own colours.

        `taesd` needs a file of the folder `vae_approx` for the current kind of latents. Without one, and while the
        device is out of memory, it falls back to the latent's own colours, as with `latent2rgb` and `auto`.
        """
        if isinstance(preview, tuple):
            image_format, image, size_px = preview
            image_format = "PNG" if image_format == "PNG" else "JPEG"
            return image_preview(image, image_format, size_px), f"image/{image_format.lower()}"
        factors = None if latent_format is None else latent_format.latent_rgb_factors
        method = method or self.method
        if method == "none":
            return None
        decoded = self._decoded(preview, latent_format) if method == "taesd" else None
        if decoded is not None:
            return decoded_preview(decoded, self._size_px), "image/jpeg"
        if factors is None:
            return None
        bias = latent_format.latent_rgb_factors_bias
        reshape = getattr(latent_format, "latent_rgb_factors_reshape", None)  # those of packs may lack it
        if reshape is not None:
            preview = reshape(preview)
        first = latent_preview(preview, factors, bias, self._size_px)
        if not self._is_animated or preview.ndim != 5 or preview.shape[2] == 1:
            return first, "image/jpeg"
        return first, "image/jpeg", latent_animation(preview, factors, bias, self._size_px)

    def _decoded(self, latent: Any, latent_format: Any) -> torch.Tensor | None:
        """Return an image [1, 3, H, W] of -1..1 by the small decoder of these latents, or None without one."""
        decoder = self._decoders.find(latent_format, latent.device)
        if decoder is None:
            return None
        try:
            with translate_device_error():
                return decoder.decode(latent[:1].float())
        except OutOfMemory:
            return None
