"""`VideoGuide`: the conditioning and the empty latent of a video, which nodes add images, controls and masks to.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells, `F` frames.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch

from darkroom.engine.families.wan.nodes.latents import FRAMES_RATIO, empty_video, fitted, latent_of, nothing_like
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended, with_options
from darkroom.engine.nodes.sockets import Conditioning, Latent


@dataclass
class VideoGuide:
    """Both conditionings of videos of `length` frames of a size in pixels, and their latent [B, C, f, h, w].

    The latent has Wan's 16 channels and cells of 8 pixels, or with `follows_vae` those of the VAE. Options are set in
    `positive` and `negative`, which are copied at each change.
    """

    positive: Conditioning
    negative: Conditioning
    vae: Vae
    width: int
    height: int
    length: int
    batch_size: int
    follows_vae: InitVar[bool] = False

    def __post_init__(self, follows_vae: bool) -> None:
        cells = (self.vae.latent_channels, self.vae.spacial_compression_encode()) if follows_vae else ()
        self.latent = empty_video(self.batch_size, self.length, self.width, self.height, *cells)

    def encode(self, frames: torch.Tensor, method: str = "bilinear") -> torch.Tensor:
        """Return the latent [1, C, f, h, w] of frames [F, H, W, C], fitted to the video's size."""
        latent: torch.Tensor = self.vae.encode(fitted(frames, self.width, self.height, method)[..., :3])
        return latent

    def begun_with(self, frames: torch.Tensor) -> torch.Tensor:
        """Return a latent like the video's that begins with frames [F, H, W, C], and is nothing behind them."""
        given = self.encode(frames)[:, :, : self.latent.shape[2]]
        latent = nothing_like(self.latent)
        latent[:, :, : given.shape[2]] = given
        return latent

    def frame_mask(self, num_given: int = 0) -> torch.Tensor:
        """Return a mask of frames [1, 1, 4 f, h, w]: 0 for `num_given` frames from the first on, 1 elsewhere.

        The first frame stands there four times, as it has a latent frame of its own.
        """
        mask = torch.ones(1, 1, self.latent.shape[2] * FRAMES_RATIO, *self.latent.shape[-2:])
        if num_given:
            mask[:, :, : num_given + FRAMES_RATIO - 1] = 0.0
        return mask

    def set(self, **options: object) -> None:
        """Set options of both conditionings."""
        self.positive = with_options(self.positive, **options)
        self.negative = with_options(self.negative, **options)

    def set_clip_vision(self, output: object | None) -> None:
        """Set the output of an image encoder, None for none."""
        if output is not None:
            self.set(clip_vision_output=output)

    def append(self, name: str, item: object) -> None:
        """Append to a list of both conditionings."""
        self.positive, self.negative = (with_appended(entry, name, item) for entry in (self.positive, self.negative))

    @property
    def outputs(self) -> tuple[Conditioning, Conditioning, Latent]:
        """The outputs of the nodes: positive, negative and the latent."""
        return self.positive, self.negative, latent_of(self.latent)
