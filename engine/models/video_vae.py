"""VAE of a network that compresses time: latents `[B, C, f, h, w]`, an image is a video of one frame.

`F` frames, `f` latent frames. Latents are decoded to videos `[B, F, H, W, 3]`. Videos of that shape are encoded, and
images `[F, H, W, 3]` as the frames of one video, as in ComfyUI.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from darkroom.engine.diffusion.sampling_run import SamplingRun, sampling_run
from darkroom.engine.layers.tiles import AxisScale, even_scale, run_in_tiles, stretches_in_tiles
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.weight_handle import Network

WHOLE_VIDEO = 9999  # frames; more than fit any memory
LONG_VIDEO = 8192  # latent frames, of which the first ones hardly count
TILE_PX = 256  # a side, of tiles for lack of memory
TILE_FRAMES, SHARED_FRAMES = 64, 16  # of them along time, for networks that see all frames of a video together
WHOLE_FRAMES = 65  # such a network decodes at once anywhere; more only where the device has the memory for it
PIXEL_BYTES = 12  # of a decoded frame in memory while others are computed, a byte of the dtype: 3 channels, twice


@dataclass(frozen=True, slots=True)
class TimeTiling:
    """Sizes of tiles and of what they share: in cells along the sides, in latent frames along time.

    `saves_memory` is True for tiles that nobody asked for.
    """

    tile_x: int
    tile_y: int
    overlap: int
    tile_t: int | None = None
    overlap_t: int | None = None
    saves_memory: bool = False

    @property
    def tile(self) -> tuple[int, int, int]:
        """Return latent frames and the two sides, in ComfyUI's order of them."""
        return WHOLE_VIDEO if self.tile_t is None else max(2, self.tile_t), self.tile_x, self.tile_y

    @property
    def overlaps(self) -> tuple[int, int, int]:
        return 1 if self.overlap_t is None else max(1, self.overlap_t), self.overlap, self.overlap


class VideoVae(Vae):
    """VAE of videos with ComfyUI's members.

    It is large because it has those members, which custom nodes call, beside the streams of frames.
    """

    latent_dim = 3

    @property
    def frames_ratio(self) -> int:
        """Frames, behind a video's first one, of one latent frame."""
        ratio: int = self.first_stage_model.frames_ratio
        return ratio

    def temporal_compression_decode(self) -> int:
        """Return the frames that a latent frame becomes, on average over a long video."""
        return round(self.num_frames(LONG_VIDEO) / LONG_VIDEO)

    @property
    def downscale_index_formula(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels of a latent cell."""
        return self.frames_ratio, self.downscale_ratio, self.downscale_ratio

    @property
    def upscale_index_formula(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels that a latent cell becomes."""
        return self.frames_ratio, self.upscale_ratio, self.upscale_ratio

    def num_frames(self, latent_frames: int) -> int:
        """Return the number of frames that latent frames become."""
        own = getattr(self.first_stage_model, "num_frames", None)
        if own is not None:
            return int(own(latent_frames))
        return max(0, latent_frames * self.frames_ratio - (self.frames_ratio - 1))

    def frames_at_once(self, latent_frames: int) -> int:
        """Return the number of frames that latent frames become which are decoded as one video, not in tiles of time.

        Some networks make more frames of an even number.
        """
        own = getattr(self.first_stage_model, "frames_at_once", None)
        return self.num_frames(latent_frames) if own is None else int(own(latent_frames))

    def num_latent_frames(self, frames: int) -> int:
        """Return the number of latent frames that frames become."""
        own = getattr(self.first_stage_model, "num_latent_frames", None)
        if own is not None:
            return int(own(frames))
        return max(0, (frames + self.frames_ratio - 1) // self.frames_ratio)

    def _is_decoded_in_tiles(self, samples: torch.Tensor) -> bool:
        """Return True for latents that are decoded in tiles of time and sides unasked.

        After memory ran out; and before that, long videos of a network that sees all of their frames together: ComfyUI
        tries to decode those at once, and takes tiles when that fails, which RAM does not survive.
        """
        if self._tiles_itself:
            return False
        if self.patcher.memory_savings.tiles:
            return True
        frames = self.frames_at_once(samples.shape[2])
        if self._is_decoded_in_pieces or not self._sees_whole_videos or frames <= WHOLE_FRAMES:
            return False
        return self._decode_bytes_at_once(tuple(samples.shape)) > self.patcher.weights.device_bytes

    def _decoded_in_small_tiles(self, samples: torch.Tensor) -> torch.Tensor:
        return self._decoded_in_tiles(samples, self._saving_tiling())

    def decode_item_bytes(self, shape: tuple[int, ...]) -> int:
        return self._decode_bytes_at_once(shape, self._piece_frames())

    def _decoded_once(self, run: SamplingRun, samples: torch.Tensor, item_bytes: int) -> torch.Tensor:
        """Decode latents as `Vae` does; frames of a network that yields them in pieces leave the device one by one."""
        if not self._is_decoded_in_pieces or samples.shape[2] == 1:
            return super()._decoded_once(run, samples, item_bytes)
        frames, ratio = self.frames_at_once(samples.shape[2]), self.upscale_ratio
        sides = (samples.shape[3] * ratio, samples.shape[4] * ratio)
        videos = torch.empty(samples.shape[0], frames, *sides, self.output_channels, device=self.output_device)
        with self.patcher.in_use(working_bytes=item_bytes) as network, run.tuned_decoder(self.patcher, network):
            first = 0
            for part in self._batches(samples, item_bytes):
                items, place = slice(first, first + part.shape[0]), 0
                for piece in network.decoded_pieces(part.to(self.device, self.vae_dtype)):
                    end = place + piece.shape[2]
                    pixels = self.process_output(piece.to(self.output_device).float())
                    videos[items, place:end] = pixels.movedim(1, -1)
                    place = end
                first += part.shape[0]
        return videos

    def frame_stream(self, samples_in: torch.Tensor) -> FrameStream | None:
        """Return the frames that `decode` makes, to be decoded as they are taken.

        None for images, and for videos that the network decodes at once. Raises ValueError for latents of another
        VAE.
        """
        samples = self._latents_of(samples_in)
        if samples.shape[2] == 1:
            return None
        if self._is_decoded_in_tiles(samples):
            return self._tiled_stream(samples, self._saving_tiling())
        if not self._is_decoded_in_pieces:
            return None
        if samples.shape[0] > 1 and hasattr(self.first_stage_model, "drawn_noise"):
            return None  # the videos of a batch share the noise that their cells get
        decode = partial(self._decoded_frames, samples, self._drawn_noise(samples))
        return self._stream(samples, decode, self.frames_at_once(samples.shape[2]))

    def _drawn_noise(self, samples: torch.Tensor) -> dict[str, Sequence[torch.Tensor]]:
        """Draw the noise that the network adds, now: generators may be seeded anew before the frames are taken."""
        draw = getattr(self.first_stage_model, "drawn_noise", None)
        return {} if draw is None else {"noise": draw(samples.shape, self.device, self.vae_dtype)}

    def _tiled_stream(self, samples: torch.Tensor, tiling: TimeTiling) -> FrameStream:
        decode = partial(self._tiled_frames, samples, tiling)
        return self._stream(samples, decode, self._tiled_length(samples, tiling)(samples.shape[2]))

    def _stream(
        self, samples: torch.Tensor, decode: Callable[[], Iterator[torch.Tensor]], num_frames: int
    ) -> FrameStream:
        """Return the stream of so many frames of each video."""
        height, width = (cells * self.upscale_ratio for cells in samples.shape[3:])
        frames = samples.shape[0] * num_frames
        return FrameStream((frames, height, width, self.output_channels), decode, samples.nbytes)

    @torch.no_grad()
    def _decoded_frames(
        self, samples: torch.Tensor, noise: dict[str, Sequence[torch.Tensor]]
    ) -> Iterator[torch.Tensor]:
        """Yield the frames [f, H, W, 3] of one video after the other; in tiles when memory ran out before."""
        if self._is_decoded_in_tiles(samples):
            yield from self._tiled_frames(samples, self._saving_tiling())
            return
        yield from sampling_run().attempt_stream(self.patcher, lambda run: self._frames_once(run, samples, noise))

    def _frames_once(
        self, run: SamplingRun, samples: torch.Tensor, noise: dict[str, Sequence[torch.Tensor]]
    ) -> Generator[torch.Tensor, None, None]:
        item_bytes = self.decode_item_bytes(tuple(samples.shape))
        with self.patcher.in_use(working_bytes=item_bytes) as network, run.tuned_decoder(self.patcher, network):
            self.patcher.weights.begin_work(item_bytes)
            for item in torch.split(samples, 1):
                for piece in network.decoded_pieces(item.to(self.device, self.vae_dtype), **noise):
                    yield self._as_frames(piece)

    def tiled_frame_stream(
        self,
        samples: torch.Tensor,
        tile_x: int = 32,
        tile_y: int = 32,
        overlap: int = 8,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> FrameStream | None:
        """Return the frames that `decode_tiled` makes, to be decoded as they are taken; None for images.

        No more of them are held than tiles that overlap along time share.
        """
        if self._tiles_itself:
            return self.frame_stream(samples)
        samples = self._latents_of(samples)
        if samples.shape[2] == 1:
            return None
        return self._tiled_stream(samples, TimeTiling(tile_x, tile_y, overlap, tile_t, overlap_t))

    @torch.no_grad()
    def _tiled_frames(self, samples: torch.Tensor, tiling: TimeTiling) -> Iterator[torch.Tensor]:
        with self.patcher.in_use(working_bytes=self._tile_decode_bytes(samples, tiling)) as network:
            for item in torch.split(samples, 1):
                for stretch in stretches_in_tiles(
                    item, partial(self._decode_tile, network), tile=tiling.tile, overlap=tiling.overlaps,
                    scale=self._decode_scale(samples, tiling), output_device=self.output_device,
                ):  # fmt: skip
                    yield self._as_frames(stretch)

    def _as_frames(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the network's output [1, 3, f, H, W] as images [f, H, W, 3] on the CPU."""
        return self.process_output(videos.to(self.output_device).float())[0].movedim(0, -1)

    def _decode_scale(self, samples: torch.Tensor, tiling: TimeTiling) -> tuple[AxisScale, AxisScale, AxisScale]:
        sides = even_scale(self.upscale_ratio)
        return AxisScale(self._tiled_length(samples, tiling), lambda start: start * self.frames_ratio), sides, sides

    def _tiled_length(self, samples: torch.Tensor, tiling: TimeTiling) -> Callable[[int], int]:
        """Return the number of frames of a video in tiles, by that of its latent frames.

        It is that of the video as a whole in one tile and where the tiles are nobody's wish, else ComfyUI's.
        """
        is_one = all(length <= limit for length, limit in zip(samples.shape[2:], tiling.tile, strict=True))
        return self.frames_at_once if is_one or tiling.saves_memory else self.num_frames

    def _tile_decode_bytes(self, samples: torch.Tensor, tiling: TimeTiling) -> int:
        sizes = (min(pair) for pair in zip(tiling.tile, samples.shape[2:], strict=True))
        return self._decode_bytes_at_once((1, samples.shape[1], *sizes))

    def _encoded_in_small_tiles(self, pixels: torch.Tensor) -> torch.Tensor:
        time = (TILE_FRAMES, SHARED_FRAMES) if self._sees_whole_videos else (None, None)
        return self.encode_tiled(pixels, TILE_PX, TILE_PX, TILE_PX // 4, *time)

    @torch.no_grad()
    def decode_tiled(
        self,
        samples: torch.Tensor,
        tile_x: int = 32,
        tile_y: int = 32,
        overlap: int = 8,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Decode latents to videos on the CPU by tiles. Sizes are in cells, and in latent frames along time.

        A network that computes in tiles of a fixed size takes those.
        """
        if self._tiles_itself:
            return self.decode(samples)
        tiling = TimeTiling(tile_x, tile_y, overlap, tile_t, overlap_t)
        return self._decoded_in_tiles(self._latents_of(samples), tiling)

    def _decoded_in_tiles(self, samples: torch.Tensor, tiling: TimeTiling) -> torch.Tensor:
        with self.patcher.in_use(working_bytes=self._tile_decode_bytes(samples, tiling)) as network:
            videos = run_in_tiles(
                samples, partial(self._decode_tile, network), tile=tiling.tile, overlap=tiling.overlaps,
                scale=self._decode_scale(samples, tiling), out_channels=self.output_channels,
                output_device=self.output_device,
            )  # fmt: skip
        return self.process_output(videos).movedim(1, -1)

    @torch.no_grad()
    def encode_tiled(
        self,
        pixel_samples: torch.Tensor,
        tile_x: int = 512,
        tile_y: int = 512,
        overlap: int = 64,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Encode the frames of a video on the CPU as `decode_tiled` does, sizes in pixels and frames."""
        if self._tiles_itself:
            items = self._items_of(pixel_samples)
            return self._encoded(items, self._encode_bytes(tuple(items.shape)))
        pixels = self._items_of(pixel_samples)
        pixels = pixels[:, :, : self.num_frames(self.num_latent_frames(pixels.shape[2]))]
        latent_tile = WHOLE_VIDEO if tile_t is None else max(2, self.num_latent_frames(tile_t))
        shared = 1
        if overlap_t is not None:
            shared = self.num_frames(max(1, min(latent_tile // 2, self.num_latent_frames(overlap_t))))
        tile = (self.num_frames(latent_tile), tile_x, tile_y)
        shape = (1, 3, *(min(pair) for pair in zip(tile, pixels.shape[2:], strict=True)))
        with self.patcher.in_use(working_bytes=self._encode_bytes(shape)) as network:
            sides = even_scale(1 / self.downscale_ratio)
            return run_in_tiles(
                pixels, partial(self._encode_tile, network), tile=tile, overlap=(shared, overlap, overlap),
                scale=(AxisScale(self.num_latent_frames, lambda start: start / self.frames_ratio), sides, sides),
                out_channels=self.latent_channels, output_device=self.output_device,
            )  # fmt: skip

    def _latents_of(self, samples: torch.Tensor) -> torch.Tensor:
        """Return latents as those of videos [B, C, f, h, w]. Raises ValueError for those of another VAE."""
        checked = super()._latents_of(samples)
        return checked.unsqueeze(2) if checked.ndim == 4 else checked

    def _items_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return images as videos [B, 3, F, H, W], their sides cut to whole cells.

        They are the frames of one video, or each is a video of its own for a network of images.
        """
        cut = super()._items_of(pixels)
        if cut.ndim == 5:
            return cut
        is_of_images = getattr(self.first_stage_model, "is_of_images", False)
        return cut.unsqueeze(2) if is_of_images else cut.movedim(1, 0).unsqueeze(0)

    def _encode_on_device(self, network: Network, pixels: torch.Tensor) -> torch.Tensor:
        """Return the latents of videos; those of a network that takes them in pieces reach the device one by one."""
        if not hasattr(self.first_stage_model, "encoded_from_pieces"):
            return super()._encode_on_device(network, pixels)
        latents: torch.Tensor = network.encoded_from_pieces(self._pieces_on_device(pixels))
        return latents

    def _pieces_on_device(self, videos: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames [B, 3, f, H, W] of videos on the device, as many at a time as the network encodes."""
        own = getattr(self.first_stage_model, "encoded_pieces", None)
        sizes = self.first_stage_model.frames_encoded_at_once if own is None else own(videos.shape[2])
        for piece in torch.split(videos, sizes, dim=2):
            yield self.process_input(piece).to(self.device, self.vae_dtype)

    def _decode_bytes_at_once(self, shape: tuple[int, ...], at_once: int | None = None) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, f, h, w], `at_once` frames at a time.

        None: as many as the network computes together.
        """
        if hasattr(self.first_stage_model, "decode_bytes"):
            return int(self.first_stage_model.decode_bytes(shape)) * self.vae_dtype.itemsize
        cells = math.prod(shape[3:])
        frames = self.frames_at_once(shape[2])
        left = self.frames_ratio if self._is_decoded_in_pieces else frames
        frames_px = min(frames, left) * cells * self.upscale_ratio**2
        itemsize: int = self.vae_dtype.itemsize
        if at_once is None:
            at_once = frames if self._sees_whole_videos else self._piece_frames() or 1
        working = self._decode_bytes_per_cell() * cells * min(frames, at_once)
        return (working + frames_px * PIXEL_BYTES) * itemsize

    def _encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one video of the shape [B, 3, F, H, W]."""
        if hasattr(self.first_stage_model, "encode_bytes"):
            return int(self.first_stage_model.encode_bytes(shape)) * self.vae_dtype.itemsize
        frame_px, itemsize = math.prod(shape[3:]), self.vae_dtype.itemsize
        is_whole = getattr(self.first_stage_model, "encodes_whole_videos", False)
        at_once = shape[2] if is_whole else self._frames_at_once(shape[2])
        at_once = min(at_once, getattr(self.first_stage_model, "frames_encoded_at_once", at_once))
        working = self._encode_bytes_per_pixel() * frame_px * at_once
        return (working + shape[2] * frame_px * PIXEL_BYTES) * itemsize

    def _frames_at_once(self, frames: int) -> int:
        """Return the number of a video's frames that are processed at a time."""
        return frames if self._sees_whole_videos else 1

    @property
    def _is_decoded_in_pieces(self) -> bool:
        """True for a network that yields the frames of a video as it decodes them."""
        return hasattr(self.first_stage_model, "decoded_pieces")

    @property
    def _tiles_itself(self) -> bool:
        """True for a network that computes in tiles of a fixed size, which are part of its results."""
        return bool(getattr(self.first_stage_model, "tiles_itself", False))

    def _piece_frames(self) -> int | None:
        """Return the number of frames processed at a time while a video is decoded in pieces; None for all."""
        frames: int | None = getattr(self.first_stage_model, "frames_decoded_at_once", None)
        return frames

    @property
    def _sees_whole_videos(self) -> bool:
        """True for a network that has all frames of a video in work together."""
        return bool(getattr(self.first_stage_model, "works_on_whole_videos", False))

    def _saving_tiling(self) -> TimeTiling:
        """Return the tiles after memory ran out, also of time where memory would grow with the frames."""
        tile = TILE_PX // self.upscale_ratio
        if not self._sees_whole_videos:
            return TimeTiling(tile, tile, tile // 4, saves_memory=True)
        frames, shared = TILE_FRAMES // self.frames_ratio, SHARED_FRAMES // self.frames_ratio
        return TimeTiling(tile, tile, tile // 4, frames, shared, saves_memory=True)
