"""MediaPipe's networks of one face: 478 landmarks (Grishchenko et al. 2020, arXiv 2006.10962) and 52 expressions.

`B` faces. Names of modules are those of published files.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.models.kinds.face_landmarks.blaze_layers import Blocks, LeakyBlazeBlock, conv_of_pixels, padded_for
from darkroom.engine.models.kinds.face_landmarks.face_points import EXPRESSIONS, NUM_LANDMARKS, OF_EXPRESSIONS

IMAGE_CHANNELS = 3
SIDE_PX = 192  # of the square that the network reads, in which landmarks are
STEM = 16
BLOCKS: Final[Blocks] = (
    (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1),
    (64, 128, 2), (128, 128, 1), (128, 128, 1), (128, 128, 2), (128, 128, 1), (128, 128, 1), (128, 128, 2),
    (128, 128, 1), (128, 128, 1),
)  # fmt: skip
HEAD = 8

NUM_TOKENS = 96
HIDDEN_SIZE, TOKEN_HIDDEN, CHANNEL_HIDDEN = 64, 384, 256
NUM_MIXERS = 4
NORM_EPS = 1e-6
SPREAD = 0.5  # of normalised landmarks
LEAST_SPREAD = 1e-12


class FaceMesh(nn.Module):
    """`forward(images [B, 3, 192, 192], 0..1)` -> landmarks [B, 478, 3] in pixels, logits [B] of a face being there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv2d(IMAGE_CHANNELS, STEM, 3, 2)
        self.prelu_stem = nn.PReLU(STEM)
        self.blocks = nn.ModuleList(LeakyBlazeBlock(*block) for block in BLOCKS)
        self.head_reduce = conv_of_pixels(BLOCKS[-1][1], HEAD)
        self.prelu_head_reduce = nn.PReLU(HEAD)
        self.head_block = LeakyBlazeBlock(HEAD, HEAD, 1)
        self.head_presence = Conv2d(HEAD, 1, 3)
        self.head_landmarks = Conv2d(HEAD, NUM_LANDMARKS * 3, 3)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.prelu_stem(self.stem(padded_for(images, 3, 2)))
        for block in self.blocks:
            x = block(x)
        x = self.head_block(self.prelu_head_reduce(self.head_reduce(x)))
        return self.head_landmarks(x).view(-1, NUM_LANDMARKS, 3), self.head_presence(x).view(-1)


class Mixer(nn.Module):
    """A block of an MLP-Mixer (Tolstikhin et al. 2021, arXiv 2105.01601) on [B, T, D]; its norms have no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(HIDDEN_SIZE, eps=NORM_EPS, bias=False)
        self.ln2 = nn.LayerNorm(HIDDEN_SIZE, eps=NORM_EPS, bias=False)
        self.token_mlp1 = Linear(NUM_TOKENS + 1, TOKEN_HIDDEN)
        self.token_mlp2 = Linear(TOKEN_HIDDEN, NUM_TOKENS + 1)
        self.channel_mlp1 = Linear(HIDDEN_SIZE, CHANNEL_HIDDEN)
        self.channel_mlp2 = Linear(CHANNEL_HIDDEN, HIDDEN_SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.token_mlp2(functional.relu(self.token_mlp1(self.ln1(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        out: torch.Tensor = x + self.channel_mlp2(functional.relu(self.channel_mlp1(self.ln2(x))))
        return out


class FaceBlendshapes(nn.Module):
    """`forward(landmarks [B, 478, 3])` -> how much of each expression a face has, [B, 52] of 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.token_reduce = Linear(len(OF_EXPRESSIONS), NUM_TOKENS)
        self.token_embed = Linear(2, HIDDEN_SIZE)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, HIDDEN_SIZE))
        self.blocks = nn.ModuleList(Mixer() for _ in range(NUM_MIXERS))
        self.head = Linear(HIDDEN_SIZE, len(EXPRESSIONS))

    def forward(self, landmarks: torch.Tensor) -> torch.Tensor:
        points = landmarks[:, torch.tensor(OF_EXPRESSIONS, device=landmarks.device), :2]
        points = points - points.mean(dim=1, keepdim=True)
        distance = points.norm(dim=-1, keepdim=True).mean(dim=1, keepdim=True)
        points = points / distance.clamp(min=LEAST_SPREAD) * SPREAD
        tokens = self.token_embed(self.token_reduce(points.transpose(1, 2)).transpose(1, 2))
        x = torch.cat((self.cls_token.expand(len(tokens), -1, -1), tokens), dim=1)
        for block in self.blocks:
            x = block(x)
        return torch.sigmoid(self.head(x[:, 0]))
