"""The video autoencoder of MiniMax H3, of any size: a convolutional encoder, and a vision transformer as decoder.

Videos `[B, 3, F, H, W]` in 0..1, latents `[B, 24, f, H/16, W/16]` standardised by the file's means and deviations. 17
frames are a clip of five latent frames: one of a single frame, and four of four frames each. A video of 5 + 17n frames
has 2 + 5n latent frames, of which the last two are those of its last 5 frames; an image is one. Clips are decoded
together with the two latent frames behind them, and fade into each other. Images are evaluated in tiles
(`vae_tiles.py`). Module names are those of the published file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.minimax_h3.sizes import CELL_PX, frames_of
from darkroom.engine.families.minimax_h3.vae_decoder import ClipDecoder
from darkroom.engine.families.minimax_h3.vae_encoder import LEAST_PX, LEVEL_STRIDES, ClipEncoder
from darkroom.engine.families.minimax_h3.vae_tiles import cross_fade, in_tiles
from darkroom.engine.layers.shapes import Shapes, count_children

LATENT_CHANNELS = 24
FRAMES_PER_LATENT = 4  # but of the first latent frame of a clip, which is one frame
CLIP_FRAMES, CLIP_LATENTS = 17, 5
LATENTS_BEHIND = 2  # of the next clip, with which a clip is decoded
FRAMES_BEHIND = 5  # that they become
DROPPED_LATENTS = CLIP_LATENTS - LATENTS_BEHIND  # at the end of a video, whose last clip is filled up
UNUSED_FRAMES = CLIP_LATENTS * FRAMES_PER_LATENT - CLIP_FRAMES  # before the frame of a clip's first latent frame
CHUNK_FRAMES = CLIP_LATENTS * FRAMES_PER_LATENT  # that the decoder makes of a clip
IMAGE_MEAN, IMAGE_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by colour

# Numbers of working memory of the published network, a byte of the dtype (ComfyUI's): a pixel of a frame, and in all.
VALUES_PER_PIXEL, IMAGE_VALUES_PER_PIXEL = 9.5, 7
IMAGE_VALUES, ENCODE_VALUES, DECODE_VALUES = 110_000_000, 1_300_000_000, 270_000_000
FRAMES_DECODED_AT_ONCE = (CLIP_LATENTS + LATENTS_BEHIND) * FRAMES_PER_LATENT + 2
MEASURED_CHANNELS, MEASURED_HIDDEN_SIZE = 128, 2048

KEY = "decoder.transformer_blocks.0.scale1"


@dataclass(frozen=True, slots=True)
class MiniMaxH3VideoVaeConfig:
    """Configuration of the network; `level_channels` are those of the encoder, largest image first."""

    level_channels: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    blocks_per_level: int = 2
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_layers: int = 36
    num_registers: int = 4
    image_channels: int = 3


def minimax_h3_video_vae_config(shapes: Shapes) -> MiniMaxH3VideoVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    levels = range(len(LEVEL_STRIDES))
    registers = shapes["decoder.register_tokens"]
    return MiniMaxH3VideoVaeConfig(
        level_channels=tuple(shapes[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in levels),
        blocks_per_level=count_children(shapes, "encoder.down.0.block"),
        hidden_size=registers[2],
        intermediate_size=shapes["decoder.transformer_blocks.0.ff.w2.weight"][1],
        num_layers=count_children(shapes, "decoder.transformer_blocks"),
        num_registers=registers[1],
        image_channels=shapes["encoder.conv_in.weight"][1],
    )


def num_latent_frames(frames: int) -> int:
    """Return the number of latent frames that frames become: that of the video filled up to whole clips."""
    return frames if frames <= 1 else -(-frames // CLIP_FRAMES) * CLIP_LATENTS - DROPPED_LATENTS


class MiniMaxH3VideoVae(nn.Module):
    """The autoencoder, which encodes and decodes videos clip by clip."""

    latent_dim = 3
    downscale_ratio = CELL_PX
    frames_ratio = FRAMES_PER_LATENT
    latent_channels = LATENT_CHANNELS
    takes_plain_images = True
    tiles_itself = True
    frames_encoded_at_once = CLIP_FRAMES

    def __init__(self, config: MiniMaxH3VideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = ClipEncoder(
            config.level_channels, config.blocks_per_level, config.image_channels, LATENT_CHANNELS
        )
        self.quant_conv = nn.Conv3d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        self.post_quant_conv = nn.Conv3d(LATENT_CHANNELS, LATENT_CHANNELS, 1)
        self.decoder = ClipDecoder(
            LATENT_CHANNELS, config.hidden_size, config.intermediate_size, config.num_layers, config.num_registers,
            config.image_channels,
        )  # fmt: skip
        self.latents_mean, self.latents_std = (nn.Parameter(torch.empty(LATENT_CHANNELS)) for _ in range(2))

    @staticmethod
    def num_frames(latent_frames: int) -> int:
        """Return the number of frames that latent frames become."""
        return frames_of(latent_frames)

    @staticmethod
    def num_latent_frames(frames: int) -> int:
        """Return the number of latent frames that frames become."""
        return num_latent_frames(frames)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one video of the shape [B, 3, F, H, W], for a byte of the dtype."""
        *_, frames, height, width = shape
        fixed, values = (IMAGE_VALUES, IMAGE_VALUES_PER_PIXEL) if frames == 1 else (ENCODE_VALUES, VALUES_PER_PIXEL)
        at_once = min(frames, CLIP_FRAMES) * height * width
        return int(values * at_once) + fixed * self.config.level_channels[0] // MEASURED_CHANNELS

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, 24, f, h, w], for a byte of the dtype."""
        *_, latent_frames, height, width = shape
        frames = frames_of(latent_frames)
        fixed = IMAGE_VALUES if frames <= CLIP_FRAMES + FRAMES_BEHIND else DECODE_VALUES
        at_once = min(frames, FRAMES_DECODED_AT_ONCE) * height * width * CELL_PX**2
        return int(VALUES_PER_PIXEL * at_once) + fixed * self.config.hidden_size // MEASURED_HIDDEN_SIZE

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Encode videos [B, 3, F, H, W]: the mean of the posterior, float32. Raises ValueError for too small ones."""
        return self.encoded_from_pieces(torch.split(videos, CLIP_FRAMES, dim=2))

    def encoded_from_pieces(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """Encode videos that come in pieces of 17 frames, the last one of fewer. Raises ValueError for too small ones.

        A single frame is an image; the last frame of a video is repeated until its last clip is whole.
        """
        clips = []
        num_seen = 0
        for piece in pieces:
            num_seen += piece.shape[2]
            missing = 0 if num_seen == 1 else CLIP_FRAMES - piece.shape[2]
            clips.append(self._encoded_clip(torch.cat([piece, *[piece[:, :, -1:]] * missing], dim=2)))
        moments = torch.cat(clips, dim=2)
        if num_seen > 1:
            moments = moments[:, :, :-DROPPED_LATENTS]
        mean, deviation = self._statistics()
        return (moments.float().chunk(2, dim=1)[0] - mean) / deviation

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode latents [B, 24, f, h, w] to frames [B, 3, F, H, W] in 0..1, float32."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, 24, f, h, w] in order, float32: [B, 3, 17, H, W] each, the last of fewer."""
        mean, deviation = (item.to(latents.dtype) for item in self._statistics())
        z = latents * deviation + mean
        if z.shape[2] == 1:
            yield self._pixels(self._decoded_clip(z)[:, :, -1:])
            return
        num_clips = max(1, -(-(z.shape[2] - LATENTS_BEHIND) // CLIP_LATENTS))
        missing = num_clips * CLIP_LATENTS + LATENTS_BEHIND - z.shape[2]
        z = torch.cat([z, *[z[:, :, -1:]] * missing], dim=2)
        left = frames_of(latents.shape[2])
        behind: torch.Tensor | None = None  # the frames of the clip before that this one begins with
        for clip in range(num_clips):
            start = clip * CLIP_LATENTS
            frames = self._decoded_clip(z[:, :, start : start + CLIP_LATENTS + LATENTS_BEHIND])
            own = frames[:, :, UNUSED_FRAMES:CHUNK_FRAMES]
            if behind is not None:
                length = behind.shape[2]
                own = torch.cat([cross_fade(behind, own[:, :, :length], 2), own[:, :, length:]], dim=2)
            behind = frames[:, :, CHUNK_FRAMES + UNUSED_FRAMES :].clone()
            del frames
            yield self._pixels(own[:, :, :left])
            left -= own.shape[2]
        if left > 0 and behind is not None:
            yield self._pixels(behind[:, :, :left])

    def _encoded_clip(self, clip: torch.Tensor) -> torch.Tensor:
        """Return the moments [B, 48, f, h, w] of a clip, or of an image, in tiles."""
        height, width = clip.shape[-2:]
        if min(height, width) < LEAST_PX:
            found, least = f"{width}x{height} pixels", f"{LEAST_PX}x{LEAST_PX}"
            raise ValueError(f"pixels: an image too small for this VAE; got {found}, expected at least {least}")
        colours = zip(clip.unbind(1), IMAGE_MEAN, IMAGE_DEVIATION, strict=True)  # numbers need no copy to the device
        normed = torch.stack([(colour - mean) / deviation for colour, mean, deviation in colours], dim=1)
        return in_tiles(normed, lambda tile: self.quant_conv(self.encoder(tile)), cell_in=CELL_PX, cell_out=1)

    def _decoded_clip(self, z: torch.Tensor) -> torch.Tensor:
        """Return the decoder's frames [B, 3, 4 f, H, W] of latents, in tiles."""
        return in_tiles(z, lambda tile: self.decoder(self.post_quant_conv(tile)), cell_in=1, cell_out=CELL_PX)

    def _pixels(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the decoder's frames as colours in 0..1, float32."""
        colours = zip(frames.float().unbind(1), IMAGE_MEAN, IMAGE_DEVIATION, strict=True)
        pixels = torch.stack([colour * deviation + mean for colour, mean, deviation in colours], dim=1)
        return pixels.clamp_(0.0, 1.0)

    def _statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and deviations of latents [1, 24, 1, 1, 1], float32."""
        mean, deviation = (item.float().view(1, -1, 1, 1, 1) for item in (self.latents_mean, self.latents_std))
        return mean, deviation
