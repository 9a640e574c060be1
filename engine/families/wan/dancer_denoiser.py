"""The inputs of WanDancer: music, its frame rate, and what an image encoder saw of the dancer."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.families.wan.dancer import TOKENS_PER_FRAME
from darkroom.engine.families.wan.denoiser import ImageVideoDenoiser
from darkroom.engine.layers.patches import PATCH


class DancingVideoDenoiser(ImageVideoDenoiser):
    """WanDancer, a figure that dances to music."""

    comfy_name = "WAN22_WanDancer"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for frames whose tokens are not whole eighths, and for other audio."""
        inputs = super().extra_conds(**kwargs)
        features = kwargs.get("audio_embed")
        if features is not None:
            config: Any = self.diffusion_model.config
            if features.ndim != 3 or features.shape[-1] != config.num_features:
                raise ValueError(
                    f"audio_encoder_output: no features of music; got {tuple(features.shape)}, expected steps of "
                    f"{config.num_features}, as WanDancerEncodeAudio makes them"
                )
            rows, columns = (-(-side // PATCH) for side in kwargs["noise"].shape[-2:])
            if rows * columns % TOKENS_PER_FRAME:
                raise ValueError(
                    f"width and height: music is read by eighths of a frame; got {rows * columns} cells of 16 pixels, "
                    f"expected a multiple of {TOKENS_PER_FRAME}"
                )
            inputs["audio_embed"] = RegularInput(features)
        seen = kwargs.get("clip_vision_output_ref")
        if seen is not None:
            inputs["clip_fea_ref"] = RegularInput(self.seen_tokens(seen.penultimate_hidden_states))
        for name in ("fps", "audio_inject_scale"):
            if kwargs.get(name) is not None:
                inputs[name] = ConstantInput(kwargs[name])
        return inputs
