"""The 3-D autoencoder of LTX-Video (HaCohen et al. 2025, arXiv 2501.00103, section 2.1): stages of any order and width.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 8n frames, latents `[B, C, 1 + n, H/32, W/32]` standardised by statistics that
the file holds; an image is a video of one frame. A video is encoded a few frames at a time. Networks of later versions
also remove the last noise: they add some and are conditioned on how much. Module names are those of the original
checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx_video.vae_layers import (
    BlocksStage,
    ChannelStatistics,
    FoldedDownStage,
    FoldedUpStage,
    Padding,
    PassingVideo,
    Stage,
    StridedStage,
    TimeEmbedder,
    VideoConv3d,
    WidthStage,
    normed,
)
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.video_cells import Stride, patched, unpatched

# Bytes of working memory per pixel of a video and byte of the dtype, of the 128-channel network (ComfyUI's).
ENCODE_BYTES_PER_PIXEL = 70
DECODE_BYTES_PER_CELL = 900 * 8 * 8 * 8 // 8  # of each frame
MEASURED_CHANNELS = 128
MARK = "decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"
FOLDS: dict[int, Stride] = {8: (2, 2, 2), 4: (1, 2, 2), 2: (2, 1, 1)}  # by the cells that become one


@dataclass(frozen=True, slots=True)
class LtxVideoVaeConfig:
    """Configuration of the network. `encoder` and `decoder` are their stages in order.

    `removes_noise`: the decoder is conditioned on how noisy the latent is. `is_causal`: no frame sees later ones in
    the decoder. Paddings are torch's names.
    """

    encoder: tuple[Stage, ...]
    decoder: tuple[Stage, ...]
    first_channels: int = 128
    last_channels: int = 512  # that enter the decoder's first stage
    latent_channels: int = 128
    patch: int = 4
    removes_noise: bool = False
    is_causal: bool = False
    encoder_padding: Padding = "zeros"
    decoder_padding: Padding = "reflect"
    moment_channels: int = 129  # of the encoder's output: means, and something of variances
    decode_time: float = 0.05  # how noisy a network that removes noise takes latents for
    decode_noise: float = 0.025  # the share of noise that they get before

    @property
    def ratio(self) -> Stride:
        """Frames, rows and columns of pixels of a latent cell."""
        frames, rows, columns = 1, self.patch, self.patch
        for stage in self.encoder:
            if stage.kind in ("strided", "folded"):
                frames, rows, columns = (
                    frames * stage.stride[0], rows * stage.stride[1], columns * stage.stride[2],
                )  # fmt: skip
        return frames, rows, columns


def ltx_video_vae_config(shapes: Shapes) -> LtxVideoVaeConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Steps of strided convolutions, the kind of padding and whether a stage is residual show in no shape: they are those
    of the published networks, unless the file's metadata say otherwise.
    """
    return LtxVideoVaeConfig(
        encoder=encoder_stages(shapes),
        decoder=_stages(shapes, "decoder.up_blocks", "decoder.conv_out.conv.weight", goes_up=True),
        first_channels=shapes["encoder.conv_in.conv.weight"][0],
        last_channels=shapes["decoder.conv_in.conv.weight"][0],
        latent_channels=shapes["decoder.conv_in.conv.weight"][1],
        patch=isqrt(shapes["encoder.conv_in.conv.weight"][1] // 3),
        removes_noise="decoder.last_scale_shift_table" in shapes,
        moment_channels=shapes["encoder.conv_out.conv.weight"][0],
    )


def encoder_stages(shapes: Shapes) -> tuple[Stage, ...]:
    """Return the stages of the encoder with these tensors (names without prefix)."""
    return _stages(shapes, "encoder.down_blocks", "encoder.conv_out.conv.weight", goes_up=False)


def _stages(shapes: Shapes, home: str, end: str, *, goes_up: bool) -> tuple[Stage, ...]:
    prefixes = [f"{home}.{index}." for index in range(count_children(shapes, home))]
    entering = [*(shapes[_first_weight(shapes, prefix)][1] for prefix in prefixes), shapes[end][1]]
    return tuple(
        _stage(shapes, prefix, entering[index], entering[index + 1], goes_up=goes_up)
        for index, prefix in enumerate(prefixes)
    )


def _stage(shapes: Shapes, prefix: str, entering: int, leaving: int, *, goes_up: bool) -> Stage:
    """Describe the stage behind `prefix`, between these numbers of channels."""
    if f"{prefix}res_blocks.0.conv1.conv.weight" in shapes:
        noise = f"{prefix}res_blocks.0.per_channel_scale1" in shapes
        num_blocks = count_children(shapes, f"{prefix}res_blocks")
        return Stage("blocks", leaving, num_blocks=num_blocks, adds_noise=noise)
    if f"{prefix}conv1.conv.weight" in shapes:
        return Stage("width", leaving, adds_noise=f"{prefix}per_channel_scale1" in shapes)
    if f"{prefix}conv.weight" in shapes:
        return Stage("strided", leaving)
    rows = shapes[f"{prefix}conv.conv.weight"][0]
    cells = rows // leaving if goes_up else leaving // rows
    stage = Stage("folded", leaving, stride=FOLDS.get(cells, FOLDS[8]))
    return replace(stage, is_residual=goes_up and leaving != entering)


def _first_weight(shapes: Shapes, prefix: str) -> str:
    """Return the name of the weight that a stage begins with. Raises LookupError for a stage of no known kind."""
    ends = ("res_blocks.0.conv1.conv.weight", "conv1.conv.weight", "conv.weight", "conv.conv.weight")
    found = next((prefix + end for end in ends if prefix + end in shapes), None)
    if found is None:
        raise LookupError(f"'{prefix}conv.conv.weight'")
    return found


class LtxVideoEncoder(nn.Module):
    def __init__(self, config: LtxVideoVaeConfig) -> None:
        super().__init__()
        padding, channels = config.encoder_padding, config.first_channels
        self.frames_ratio = config.ratio[0]
        self.frames_at_once = 2 * self.frames_ratio
        self.patch = (1, config.patch, config.patch)
        self.conv_in = VideoConv3d(3 * config.patch**2, channels, padding)
        self.down_blocks = nn.ModuleList()
        for stage in config.encoder:
            if stage.kind == "blocks":
                made: nn.Module = BlocksStage(stage, padding, is_timed=False)
            elif stage.kind == "width":
                made = WidthStage(channels, stage.channels, padding)
            elif stage.kind == "strided":
                made = StridedStage(channels, stage.channels, padding, stage.stride)
            else:
                made = FoldedDownStage(channels, stage, padding)
            self.down_blocks.append(made)
            channels = stage.channels
        self.conv_out = VideoConv3d(channels, config.moment_channels, padding)

    def forward(self, x: torch.Tensor, video: PassingVideo) -> torch.Tensor:
        """Return the moments [B, c, f, h, w] of a piece of a video: its first frame, or those of whole cells."""
        x = self.conv_in(patched(x, self.patch), is_causal=True, video=video)
        for stage in self.down_blocks:
            x = stage(x, is_causal=True, video=video)
        out: torch.Tensor = self.conv_out(functional.silu(normed(x)), is_causal=True, video=video)
        return out

    def moments(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the moments [B, c, 1 + n, h, w] of videos [B, 3, F, H, W], a few frames at a time.

        Frames behind the first one that make no whole latent frame are left out, as in ComfyUI.
        """
        video = PassingVideo(iter(()))
        whole = (videos.shape[2] - 1) // self.frames_ratio * self.frames_ratio
        pieces = [videos[:, :, :1], *torch.split(videos[:, :, 1 : 1 + whole], self.frames_at_once, dim=2)]
        return torch.cat([self(piece, video) for piece in pieces if piece.shape[2]], dim=2)


class LtxVideoDecoder(nn.Module):
    def __init__(self, config: LtxVideoVaeConfig) -> None:
        super().__init__()
        padding, channels = config.decoder_padding, config.last_channels
        self.is_causal, self.is_timed, self.decode_time = config.is_causal, config.removes_noise, config.decode_time
        self.patch = (1, config.patch, config.patch)
        self.conv_in = VideoConv3d(config.latent_channels, channels, padding)
        self.up_blocks = nn.ModuleList()
        for stage in config.decoder:
            if stage.kind == "blocks":
                made: nn.Module = BlocksStage(stage, padding, is_timed=self.is_timed)
            elif stage.kind == "width":
                made = WidthStage(channels, stage.channels, padding, adds_noise=stage.adds_noise)
            else:
                made = FoldedUpStage(channels, stage, padding)
            self.up_blocks.append(made)
            channels = stage.channels
        self.conv_out = VideoConv3d(channels, 3 * config.patch**2, padding)
        if self.is_timed:
            self.timestep_scale_multiplier = nn.Parameter(torch.empty(()))
            self.last_time_embedder = TimeEmbedder(2 * channels)
            self.last_scale_shift_table = nn.Parameter(torch.empty(2, channels))

    def forward(self, x: torch.Tensor, video: PassingVideo) -> torch.Tensor | None:
        """Return the frames [B, 3, F, H, W] that are done with this piece of a video, None where none is yet."""
        time = None
        if self.is_timed:
            scaled = self.decode_time * self.timestep_scale_multiplier.to(x)
            time = scaled.expand(x.shape[0])
        x = self.conv_in(x, is_causal=self.is_causal, video=video)
        for stage in self.up_blocks:
            x = stage(x, is_causal=self.is_causal, time=time, video=video)
        x = normed(x)
        if time is not None:
            vec = self.last_time_embedder(time, x.dtype).view(x.shape[0], 2, -1)
            shift, scale = (self.last_scale_shift_table.to(x) + vec)[..., None, None, None].unbind(1)
            x = x * (1 + scale) + shift
        out: torch.Tensor = self.conv_out(functional.silu(x), is_causal=self.is_causal, video=video)
        return unpatched(out, self.patch) if out.shape[2] else None


class LtxVideoVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    works_on_whole_videos = True  # unless they are decoded in pieces

    def __init__(self, config: LtxVideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.frames_ratio, self.downscale_ratio, _ = config.ratio
        self.frames_decoded_at_once = 2 * self.frames_ratio  # those of one latent frame, and what layers keep
        self.encoder, self.decoder = LtxVideoEncoder(config), LtxVideoDecoder(config)
        self.frames_encoded_at_once = self.encoder.frames_at_once
        self.per_channel_statistics = ChannelStatistics(config.latent_channels)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of each frame and byte of the dtype, for encoding."""
        return ENCODE_BYTES_PER_PIXEL * self.config.first_channels // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of each frame and byte of the dtype, for decoding."""
        return DECODE_BYTES_PER_CELL * self.config.decoder[-1].channels // MEASURED_CHANNELS

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w] of videos [B, 3, F, H, W], as `moments` reads them."""
        return self.per_channel_statistics.normalised(self.encoder.moments(videos)[:, : self.latent_channels])

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 8n, H, W] of latents [B, C, 1 + n, h, w].

        A network that removes noise draws it from torch's generator of the latents' device.
        """
        noise = iter(self.drawn_noise(latents.shape, latents.device, latents.dtype))
        videos: torch.Tensor = self.decoder(self.restored_latents(latents, noise), PassingVideo(noise, is_whole=True))
        return videos

    def restored_latents(self, latents: torch.Tensor, noise: Iterator[torch.Tensor]) -> torch.Tensor:
        if self.config.removes_noise:
            share = self.config.decode_noise
            latents = next(noise) * share + (1.0 - share) * latents
        return self.per_channel_statistics.restored(latents)

    def drawn_noise(
        self, shape: Sequence[int], device: torch.device | str, dtype: torch.dtype
    ) -> tuple[torch.Tensor, ...]:
        """Draw all the noise that decoding latents of the shape [B, C, f, h, w] adds, in the order of its use."""
        drawn = [torch.randn(*shape, device=device, dtype=dtype)] if self.config.removes_noise else []
        rows, columns = shape[3:]
        for stage in self.config.decoder:
            if stage.kind == "folded":
                rows, columns = rows * stage.stride[1], columns * stage.stride[2]
            elif stage.adds_noise:
                number = 2 * (1 if stage.kind == "width" else stage.num_blocks)
                drawn += [torch.randn(rows, columns, device=device, dtype=dtype) for _ in range(number)]
        return tuple(drawn)

    def decoded_pieces(
        self, latents: torch.Tensor, noise: Sequence[torch.Tensor] | None = None
    ) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: a few at a time, [B, 3, F, H, W].

        They are those of `decode` but for the last bits, which convolutions of fewer frames may round otherwise.
        `noise` is what `drawn_noise` has drawn before, None to draw it now.
        """
        left = iter(self.drawn_noise(latents.shape, latents.device, latents.dtype) if noise is None else noise)
        restored, video = self.restored_latents(latents, left), PassingVideo(left)
        given = (piece for piece in torch.split(restored, 1, dim=2))
        ended = (restored[:, :, :0] for _ in video.endings())
        for piece in itertools.chain(given, ended):
            frames = self.decoder(piece, video)
            if frames is not None:
                yield frames
