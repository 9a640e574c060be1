"""InfiniteTalk (Yang et al. 2025, arXiv 2508.14033): attention of Wan's blocks to the speech of one or two speakers.

Speech is what the layers of wav2vec 2.0 heard, 25 steps a second, one for each frame. `S` speakers, `F` frames, `f`
latent frames, `L` layers and `A` width of the encoder, `T` tokens, `D` hidden size of Wan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import Network
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.families.wan.config import HEAD_WIDTH
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.rotary import THETA, rotated_pairs
from darkroom.engine.layers.shapes import Shapes, count_children

FIRST = "audio_proj.proj1.weight"
REACH = 2  # steps of speech before and behind a frame's own
WINDOW = 2 * REACH + 1
FRAMES_RATIO = 4
JOINED = WINDOW + FRAMES_RATIO - 1  # steps of a latent frame of four frames
NUM_TOKENS = 32  # of a latent frame
# Places on one axis: those of the tokens of each speaker are in a range, their speech is in its middle.
SPEAKERS = ((0.0, 4.0), (20.0, 24.0))
NEAR_ZERO = 1e-8


@dataclass(frozen=True, slots=True)
class InfiniteTalkConfig:
    """Configuration of InfiniteTalk: `speech_dim` is L * A, `token_dim` the width of the tokens of speech."""

    width: int
    num_blocks: int
    speech_dim: int
    inner_width: int
    token_dim: int


def infinite_talk_config(shapes: Shapes) -> InfiniteTalkConfig:
    """Return the configuration of InfiniteTalk with these tensors."""
    return InfiniteTalkConfig(
        width=shapes["blocks.0.audio_cross_attn.proj.weight"][0],
        num_blocks=count_children(shapes, "blocks"),
        speech_dim=shapes[FIRST][1] // WINDOW,
        inner_width=shapes[FIRST][0],
        token_dim=shapes["audio_proj.norm.weight"][0],
    )


class SpeechProjection(nn.Module):
    """Steps of speech -> tokens of each latent frame."""

    def __init__(self, config: InfiniteTalkConfig) -> None:
        super().__init__()
        inner = config.inner_width
        self.token_dim = config.token_dim
        self.proj1 = Linear(WINDOW * config.speech_dim, inner)
        self.proj1_vf = Linear(JOINED * config.speech_dim, inner)
        self.proj2, self.proj3 = Linear(inner, inner), Linear(inner, NUM_TOKENS * config.token_dim)
        self.norm = nn.LayerNorm(config.token_dim)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return tokens [S, f, 32, token_dim] for the windows [S, F, 5, L, A] of frames, F = 4 f - 3."""
        first = windows[:, :1].flatten(2)
        groups = windows[:, 1:].reshape(len(windows), -1, FRAMES_RATIO, *windows.shape[2:])  # [S, f - 1, 4, 5, L, A]
        joined = torch.cat(
            [groups[:, :, 0, : REACH + 1], groups[:, :, 1:-1, REACH], groups[:, :, -1, REACH:]], dim=2
        ).flatten(2)
        hidden = torch.cat([self.proj1(first), self.proj1_vf(joined)], dim=1)
        hidden = functional.relu(self.proj2(functional.relu(hidden)))
        tokens: torch.Tensor = self.norm(self.proj3(hidden).unflatten(2, (NUM_TOKENS, self.token_dim)))
        return tokens


class SpeakerAttention(nn.Module):
    """Attention of each frame's tokens to its speech."""

    def __init__(self, config: InfiniteTalkConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = width // HEAD_WIDTH
        self.q_linear, self.proj = Linear(width, width), Linear(width, width)
        self.kv_linear = Linear(config.token_dim, 2 * width)

    def forward(self, x: torch.Tensor, speech: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
        """Return [B, f * n, D] for tokens [B, f * n, D] and speech [f, N, token_dim].

        `places` [B, f * n] are those of the tokens between two speakers, None for one.
        """
        batch, frames = x.shape[0], speech.shape[0]
        q = self.q_linear(x).unflatten(2, (self.heads, HEAD_WIDTH))
        k, v = self.kv_linear(speech).chunk(2, dim=-1)
        k = k.unflatten(2, (self.heads, HEAD_WIDTH))
        if places is not None:
            q, k = _turned(q, places), _turned(k, _speech_places(k))
        q = q.reshape(batch * frames, -1, x.shape[-1])
        keys, values = (item.flatten(2).repeat(batch, 1, 1) if item.ndim == 4 else item.repeat(batch, 1, 1)
                        for item in (k, v))  # fmt: skip
        out: torch.Tensor = self.proj(optimized_attention(q, keys, values, self.heads))
        return out.reshape(x.shape)


class SpeechBlock(nn.Module):
    def __init__(self, config: InfiniteTalkConfig) -> None:
        super().__init__()
        self.audio_cross_attn = SpeakerAttention(config)
        self.norm_x = nn.LayerNorm(config.width)


class InfiniteTalk(nn.Module):
    """The layers beside the blocks of Wan. They are called one by one (`engine/families/wan/nodes/talk_patch.py`)."""

    def __init__(self, config: InfiniteTalkConfig) -> None:
        super().__init__()
        self.config = config
        self.audio_proj = SpeechProjection(config)
        self.blocks = nn.ModuleList(SpeechBlock(config) for _ in range(config.num_blocks))

    def speech_tokens(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the tokens [f, S * 32, token_dim] of all speakers' windows [S, F, 5, L, A]."""
        tokens: torch.Tensor = self.audio_proj(windows)
        return tokens.transpose(0, 1).flatten(1, 2)

    def added(self, index: int, x: torch.Tensor, speech: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
        """Return the addition behind a block to the tokens [B, f * n, D]."""
        block = self.blocks[index]
        out: torch.Tensor = block.audio_cross_attn(block.norm_x(x), speech, places)  # type: ignore[operator]
        return out


def _turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return heads [B, T, H, W] turned by places [B, T] on one axis."""
    steps = torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32, device=x.device) / HEAD_WIDTH
    angles = places.float()[..., None] * (1.0 / THETA**steps)  # [B, T, W / 2]
    return rotated_pairs(x, (angles.cos()[:, :, None], angles.sin()[:, :, None]), is_float32=True)


def _speech_places(keys: torch.Tensor) -> torch.Tensor:
    """Return the places [f, N] of the keys of two speakers' speech [f, N, H, W]: the first half is the first one's."""
    frames, count = keys.shape[:2]
    middles = filled(tuple(sum(ends) / 2 for ends in SPEAKERS), device=keys.device, dtype=torch.float32)
    return middles.repeat_interleave(count // len(SPEAKERS)).expand(frames, -1)


def speaker_places(q: torch.Tensor, k: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return the places [B, T] of a video's tokens between two speakers, by what they see of the first frame.

    `q` and `k` [B, T, H, W] are those of self-attention, `masks` [2, n] the tokens of each speaker in that frame. A
    token is the speaker's whom it sees more of; of each speaker, it is the farther along the more it sees.
    """
    count = masks.shape[1]
    weights = (masks / (masks.sum(dim=1, keepdim=True) + NEAR_ZERO)).to(q)  # [2, n]
    keys = k[:, :count].permute(0, 2, 3, 1)  # [B, H, W, n]
    seen = []
    for part in torch.split(q, count, dim=1):  # a frame at a time: a whole map would not fit
        scores = (part.transpose(1, 2) * HEAD_WIDTH**-0.5) @ keys
        seen.append((scores.softmax(dim=-1) @ weights.T).mean(dim=1))  # [B, n, 2]
    shares = torch.cat(seen, dim=1)
    lowest, highest = shares.amin(dim=1, keepdim=True), shares.amax(dim=1, keepdim=True)
    ends = filled(tuple(end for ends in SPEAKERS for end in ends), device=q.device, dtype=shares.dtype).view(2, 2)
    along = (shares - lowest) / (highest - lowest + NEAR_ZERO) * (ends[:, 1] - ends[:, 0]) + ends[:, 0]
    return along.gather(2, shares.argmax(dim=2, keepdim=True))[..., 0]


def speech_windows(speakers: Sequence[torch.Tensor], first: int, length: int) -> torch.Tensor:
    """Return the steps around each of `length` frames from `first` on, [S, length, 5, L, A], of steps [F, L, A] each.

    Behind the end of the first speaker's speech the first step stands, which is most likely silence.
    """
    missing = max(0, first + length - speakers[0].shape[0])
    steps = torch.arange(-REACH, REACH + 1)
    places = torch.arange(first, first + length)[:, None] + steps
    found = []
    for speech in speakers:
        filled_up = torch.cat([speech, speech[:1].expand(missing, -1, -1)])
        found.append(filled_up[places.clamp(0, filled_up.shape[0] - 1)])
    return torch.stack(found)


INFINITE_TALK = Network(
    layouts=(behind_first(("",), FIRST),), in_checkpoint=(), configure=infinite_talk_config, build=InfiniteTalk
)
