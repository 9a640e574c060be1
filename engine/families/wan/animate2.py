"""The transformer of Wan-Animate 2: a figure of an image that moves as the one of another video.

The weights are those of Wan 2.1 from images. The other video, whose poses are taken, goes through the same blocks as a
video of its own, without noise, and each frame attends to the keys and values of its frame there. The first latent
frame is the reference image. `B` batch, `C` channels, `F` latent frames with that of the reference image, `h w` latent
cells, `T` tokens, `D` hidden size, `H` heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from darkroom.engine.diffusion.latent_window import WINDOW
from darkroom.engine.families.wan.blocks import SelfAttention, WanBlock, spread
from darkroom.engine.families.wan.config import WanConfig
from darkroom.engine.families.wan.pose_states import OPTION, PoseSlot, PoseStates
from darkroom.engine.families.wan.transformer import (
    Inputs,
    VideoTokens,
    WanTransformer,
    rotations_at,
    video_places,
)
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.patches import PATCH, pad_to_patches, tokens_of
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.layers.unet_layers import Options

MASK_CHANNELS = 4
POSE_TIME = 1.0  # of 1000, of the video whose poses are taken

KeysValues = tuple[torch.Tensor, torch.Tensor]  # [B, T, H, 128] and [B, T, D]
Keep = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class WanAnimate2Config(WanConfig):
    """Configuration of Animate 2, whose tensors are those of a network from images."""


@dataclass(slots=True)
class PoseBranch:
    """The video of poses on its way through the blocks.

    `vec` [B, 1, 6, D] are its modulations, `pe` its rotations, `text` its tokens behind `image_tokens` of an image.
    `tokens` [B, T, D] enter the next block; they are None where those of each block are in `slot`. Values are
    multiplied by `strength`.
    """

    vec: torch.Tensor
    pe: torch.Tensor
    strength: float
    options: Options
    slot: PoseSlot | None = None
    tokens: torch.Tensor | None = None
    text: torch.Tensor | None = None
    image_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AnimatedVideo:
    """The inputs of the blocks beside the video's tokens: patches a frame, the strength of the first one, and poses."""

    frame_tokens: int
    reference_strength: float
    pose: PoseBranch | None


class AnimatedSelfAttention(SelfAttention):
    """Self-attention whose keys and values another video reads."""

    def kept(self, x: torch.Tensor, pe: torch.Tensor, options: Options | None, *, keep: Keep) -> torch.Tensor:
        """Return [B, T, D] of tokens among each other, and hand their keys and values to `keep`."""
        q, k, v = self.heads_of(x, pe)
        keep(k, v)
        attended = optimized_attention(q.flatten(2), k.flatten(2), v, self.heads, transformer_options=options)
        return self.closed(attended, q, k, options)

    def beside_poses(
        self, x: torch.Tensor, pe: torch.Tensor, options: Options | None, *, video: AnimatedVideo,
        poses: KeysValues | None,
    ) -> torch.Tensor:  # fmt: skip
        """Return [B, T, D]: each frame but the first attends to its frame of the poses too; None for no poses."""
        q, k, v = self.heads_of(x, pe)
        count = video.frame_tokens
        if video.reference_strength != 1.0:
            v = torch.cat([v[:, :count] * video.reference_strength, v[:, count:]], dim=1)
        keys, attend = k.flatten(2), partial(optimized_attention, heads=self.heads, transformer_options=options)
        if poses is None:
            return self.closed(attend(q.flatten(2), keys, v), q, k, options)
        pose_keys, pose_values = (torch.split(item.flatten(2), count, dim=1) for item in poses)
        first, *frames = torch.split(q.flatten(2), count, dim=1)
        attended = [attend(first, keys, v)]
        # Those of the video are the same for each frame: only what is behind them is written anew.
        all_keys, all_values = torch.cat([keys, pose_keys[0]], dim=1), torch.cat([v, pose_values[0]], dim=1)
        for frame, key, value in zip(frames, pose_keys, pose_values, strict=True):
            all_keys[:, -count:], all_values[:, -count:] = key, value
            attended.append(attend(frame, all_keys, all_values))
        return self.closed(torch.cat(attended, dim=1), q, k, options)


class WanAnimate2Block(WanBlock):
    attention_type = AnimatedSelfAttention
    self_attn: AnimatedSelfAttention

    def keys_values(self, x: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor) -> KeysValues:
        """Return the keys and values that tokens [B, T, D] entering the block have in its self-attention."""
        shift, scale, *_ = (self.modulation.to(x).unsqueeze(0) + vec).unbind(2)
        normed = self.adaptive_norm(x, spread(scale, x.shape[1]), spread(shift, x.shape[1]))
        _, k, v = self.self_attn.heads_of(normed, pe)
        return k, v

    def of_poses(self, branch: PoseBranch, x: torch.Tensor) -> tuple[torch.Tensor, KeysValues]:
        """Return the tokens [B, T, D] of poses behind the block, and their keys and values in it."""
        kept: list[KeysValues] = []
        attend = partial(self.self_attn.kept, keep=lambda *found: kept.append(found))
        out = self(x, branch.text, branch.vec, branch.pe, branch.options, branch.image_tokens, attend)
        return out, kept[0]


class WanAnimate2Transformer(WanTransformer):
    """Animate 2. Without `pose_latents` [B, C, F - 1, h, w] the video goes on without them.

    `context_pose` [B, T, context_dim] and `clip_fea_pose` [B, P, image_dim] are text and image encoder's tokens of the
    poses, those of the video where they are missing. Values of poses are multiplied by `pose_strength`, those of the
    reference image by `reference_strength`.
    """

    block_type = WanAnimate2Block

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        tokens = super().tokens_of(x, timesteps, inputs)
        tokens.x, tokens.offset = x[:, :, 1:], math.prod(tokens.grid[1:])
        return tokens

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> AnimatedVideo:
        latents: torch.Tensor | None = inputs.get("pose_latents")
        pose = None if latents is None else self._branch(latents, tokens, shared["transformer_options"], inputs)
        return AnimatedVideo(math.prod(tokens.grid[1:]), inputs.get("reference_strength", 1.0), pose)

    def _branch(self, latents: torch.Tensor, video: VideoTokens, options: Options, inputs: Inputs) -> PoseBranch:
        """Return the video of poses before the first block, or with what enters every block in a slot."""
        _, rows, columns = video.grid
        frames = latents.shape[2]
        beside = {ROPE_OPTIONS: {"shift_x": float(columns)}}  # where no place of the video is
        places = video_places(frames, rows, columns, device=latents.device, first_frame=1, options=beside)
        _, vec = self.modulations(torch.full_like(video.levels[:, :1], POSE_TIME), video.img.dtype)
        branch = PoseBranch(vec, rotations_at(places), inputs.get("pose_strength", 1.0), options)
        states: PoseStates | None = options.get(OPTION)
        if states is not None:
            per_item = video.img[0, 0].nbytes * frames * rows * columns
            branch.slot = states.of(latents, per_item * len(self.blocks))
            if branch.slot is not None and branch.slot.is_filled(len(self.blocks)):
                return branch
        self._begin(branch, latents, inputs)
        if branch.slot is not None and WINDOW in options:
            self._fill(branch)
        return branch

    def _begin(self, branch: PoseBranch, latents: torch.Tensor, inputs: Inputs) -> None:
        """Set the tokens of poses that enter the first block, and their text."""
        whole = pad_to_patches(latents, PATCH)
        known = torch.ones_like(whole[:, :MASK_CHANNELS])
        branch.tokens = tokens_of(self.patch_embedding(torch.cat([whole, known, whole], dim=1)))
        text, seen = inputs.get("context_pose"), inputs.get("clip_fea_pose")
        branch.text, branch.image_tokens = self.read(
            inputs["context"] if text is None else text, inputs["clip_fea"] if seen is None else seen, inputs
        )
        if branch.slot is not None:
            branch.slot.begin()

    def _fill(self, branch: PoseBranch) -> None:
        """Let the poses go through all blocks before the video does, so that those of every window are read alike."""
        for index in range(len(self.blocks)):
            self._keys_values(index, branch)
        branch.tokens = None

    def _keys_values(self, index: int, branch: PoseBranch) -> KeysValues:
        """Return the keys and values of poses in a block, and let their tokens go through it."""
        block: Any = self.blocks[index]
        if branch.tokens is None:
            assert branch.slot is not None
            known: KeysValues = block.keys_values(branch.slot.take(index, branch.vec), branch.vec, branch.pe)
            return known
        if branch.slot is not None:
            branch.slot.keep(branch.tokens)
        found: KeysValues
        branch.tokens, found = block.of_poses(branch, branch.tokens)
        return found

    def block_function(self, index: int, image_tokens: int | None, memory: AnimatedVideo) -> BlockFunction:
        poses = None
        if memory.pose is not None:
            k, v = self._keys_values(index, memory.pose)
            poses = k, v * memory.pose.strength if memory.pose.strength != 1.0 else v
        block: Any = self.blocks[index]
        attend = partial(block.self_attn.beside_poses, video=memory, poses=poses)

        def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
            given = (args["img"], args["txt"], args["vec"], args["pe"], args["transformer_options"])
            return {"img": block(*given, image_tokens, attend)}

        return original
