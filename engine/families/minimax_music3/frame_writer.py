"""Writing of a song by MiniMax Music 3's language model: frames of eight codes behind a prompt.

The model is asked with the prompt and with one whose words are replaced by a token for nothing, and is led away from
that (Ho and Salimans 2022, arXiv 2207.12598). Diffusion reads the states from which codes were drawn. `B` prompts, two
of them, `T` tokens, `F` frames, `D` hidden size, `V` tokens with scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from darkroom.engine.families.minimax_music3.song_writer import SongWriter
from darkroom.engine.layers.keys_values import KeysValues

FRAMES_PER_SECOND = 25
MAX_FRAMES = 9000
LOOK_EVERY = 25  # frames between looks for the end of the song, each of which waits for the device
LARGEST, LEAST_SUM = 1e9, 1e-12
PERSON, DRAWS = b"minimax-ttm", "ar"  # of the hash that makes seeds
SEED_BYTES = 8


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """The most frames, and how codes are drawn: among the `top_k` best, led away from nothing by `cfg_scale`."""

    max_frames: int = MAX_FRAMES
    seed: int = 0
    cfg_scale: float = 1.5
    top_k: int = 50


def seed_of_draws(seed: int) -> int:
    """Return the seed of the draws of codes, by that of a node."""
    digest = hashlib.blake2b(seed.to_bytes(SEED_BYTES, "little"), digest_size=SEED_BYTES, person=PERSON)
    name = DRAWS.encode()
    digest.update(len(name).to_bytes(4, "little") + name)
    return int.from_bytes(digest.digest(), "little") & (2**63 - 1)


def drawn(scores: torch.Tensor, top_k: int, generator: torch.Generator) -> torch.Tensor:
    """Return a token [1] among the `top_k` best by scores [1, V]."""
    scores = scores.nan_to_num(nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    chances = _best(scores, scores, top_k).softmax(dim=-1).nan_to_num(nan=0.0)
    chances = chances / chances.sum(dim=-1, keepdim=True).clamp_min(LEAST_SUM)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def _best(scores: torch.Tensor, by: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return scores [1, V], minus infinity for tokens that are not among the `top_k` best of `by` [1, V]."""
    least = by.topk(min(top_k, by.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(by < least, -torch.inf)


def guided(scores: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Return the scores [1, V] of the prompt [B, V], led away from those of nothing."""
    return scores[1:] + (scores[:1] - scores[1:]) * cfg_scale


class FrameWriter:
    """One song that is being written. `rows` [B, T, D] are the embedded prompts."""

    def __init__(self, network: SongWriter, rows: torch.Tensor, sampling: FrameSampling) -> None:
        self.network, self.sampling = network, sampling
        self.generator = torch.Generator(device=rows.device).manual_seed(seed_of_draws(sampling.seed))
        self.dtype = rows.dtype
        self._past: list[KeysValues] = network.model.empty_past(rows.shape[1] + sampling.max_frames + 1)
        self._state = self._read(rows)

    def write(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a frame; return the states [8 D] that its codes were drawn from, and whether it ends the song [1]."""
        network, state = self.network, self._state
        scores = network.scores(state)
        allowed = _best(guided(scores, self.sampling.cfg_scale), scores[:1], self.sampling.top_k)
        token = drawn(allowed, self.sampling.top_k, self.generator)
        is_end = token == network.end
        first = torch.where(is_end, 0, token - network.first_offset).expand(2)
        codes, states = self._further(state, first)
        rows = network.first_rows(first, self.dtype) + network.further_rows(codes, 0, self.dtype).sum(dim=1)
        self._state = self._read((rows * (codes.shape[1] + 1) ** -0.5)[:, None])
        return torch.cat([state[0], *states]), is_end

    def _read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the state [B, D] behind further rows [B, T, D]."""
        *_, last = self.network.model.states(rows, past=self._past)
        out: torch.Tensor = self.network.model.norm(last[:, -1])
        return out

    def _further(self, state: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the further codes [B, 7] of a frame, and the states [D] that they were drawn from."""
        network, decoder = self.network, self.network.model.audio_decoder
        rows = decoder.projection(torch.stack([state, network.first_rows(first, self.dtype)], dim=1))
        codes: list[torch.Tensor] = []
        states: list[torch.Tensor] = []
        for book, head in enumerate(decoder.audio_heads):
            if book:
                row = network.further_rows(codes[-1][:, None], book - 1, self.dtype)
                rows = torch.cat([rows, decoder.projection(row)], dim=1)
            out = decoder(rows)
            scores = guided(head(out).float(), self.sampling.cfg_scale)
            codes.append(drawn(scores, self.sampling.top_k, self.generator).expand(2))
            states.append(out[0])
        return torch.stack(codes, dim=1), states


def written_states(
    network: SongWriter, rows: torch.Tensor, sampling: FrameSampling, on_frame: Callable[[int], None]
) -> torch.Tensor:
    """Return the states [F, 8 D] of a song's frames on the CPU, float32.

    The first frame that is written is none of the song's. `on_frame` is called with the number of each before it is
    computed. Raises ValueError for a song that ends before its first frame.
    """
    parts = [*_parts(FrameWriter(network, rows, sampling), sampling.max_frames + 1, on_frame)]
    states = torch.cat(parts)[1:]
    if not states.shape[0]:
        raise ValueError(
            "clip: the song ended before its first frame; got none, expected some: another seed, caption or lyrics"
        )
    return states


def _parts(writer: FrameWriter, num_frames: int, on_frame: Callable[[int], None]) -> Iterator[torch.Tensor]:
    """Yield the states [F, 8 D] of at most so many frames, up to the one that ends the song, by seconds."""
    for start in range(0, num_frames, LOOK_EVERY):
        states, ends = [], []
        for index in range(start, min(start + LOOK_EVERY, num_frames)):
            on_frame(index)
            state, is_end = writer.write()
            states.append(state)
            ends.append(is_end)
        part, is_last = torch.stack(states).float().to("cpu"), torch.cat(ends).tolist()
        if True in is_last:
            yield part[: is_last.index(True)]
            return
        yield part
